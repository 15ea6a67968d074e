// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for many rows: 64 a block, 8 warps as two groups of 32 rows by four slices of the
/// head dimension (128 latent and 16 rope values each). A warp keeps its part of Q and of the
/// output in registers, so that each KV value read from shared memory feeds two products of 16
/// rows.
///
/// The four warps of a group add up their partial scores through shared memory: each owns 8 of the
/// 32 rows, sums these, takes the softmax step for them, and hands weights and row factors back.
/// Both exchanges are split into arriving and waiting, with products in between: while the scores
/// of a tile travel, the tile before it is multiplied with V. The softmax is the online one in base
/// 2; a row's peak follows the scores only when they pass it by 2^8 (as in FlashAttention-4), so
/// that outputs are seldom rescaled.

#include "kernels/mla_walk.cuh"

#include <cstdint>

namespace packstone::kernels::mla {

template <KvType type>
class ManyRows : public Walk<type, MlaShape::many_rows> {
  using Base = Walk<type, MlaShape::many_rows>;
  using Base::args_;
  using Base::kAll;
  using Base::kEightBit;
  using Base::kPitch;
  using Base::kRopeAt;
  using Base::kShift;
  using Base::kSlack;
  using Base::kStages;
  using Base::kTile;
  using Base::kTileScales;
  using Base::lane_;
  using Base::tile_;
  using Base::tile_end_;
  using Base::warp_;
  using typename Base::Math;

 public:
  __device__ explicit ManyRows(const MlaArgs& args) : Base(args), slice_(this->warp_ & 3U) {}

  __device__ void run() {
    if (!this->begin_share()) return;
    if (warp_ == 0) this->fill_ring(kStages - 1);
    __syncthreads();
    do {
      run_piece();
    } while (this->next_piece());
  }

 private:
  __device__ std::uint32_t group() const { return warp_ >> 2U; }
  __device__ std::uint32_t scored() const {
    return this->small() + SmallMap::kScored + 8U * group();
  }
  __device__ std::uint32_t weighed() const {
    return this->small() + SmallMap::kWeighed + 8U * group();
  }
  /// The row of the segment whose softmax the lane takes part in.
  __device__ std::int32_t own_row() const {
    return static_cast<std::int32_t>(32U * group() + 8U * slice_ + (lane_ >> 2U));
  }

  __device__ void run_piece() {
    this->start_piece();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* row = this->query_of(
            static_cast<std::int32_t>(32U * group() + 16U * m + 8U * half + (lane_ >> 2U)));
#pragma unroll
        for (int k = 0; k < 9; ++k) this->load_query(query_[m][k], row, half, k, slice_);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        out_[m][i][0] = out_[m][i][1] = out_[m][i][2] = out_[m][i][3] = 0.0F;
    }
    peak_ = -INFINITY;
    total_ = 0.0F;
    score_tile(at_);
    soften_tile(at_);
    collect_weights(at_);
    while (true) {
      const std::uint32_t stage = this->stage(at_);
      const bool last = tile_ + 1 == tile_end_;
      if (!last) {
        ++tile_;
        score_tile(at_ + 1);
      }
      accumulate<0>(stage);
      const bool copies = warp_ == (at_ & 3U);
      PendingRow row{PendingRow::Kind::none, 0, 0};
      if (copies) row = copy_ahead();
      accumulate<1>(stage);
      if (!last) soften_tile(at_ + 1);
      if (copies && at_ + kStages < this->tiles()) this->store_codes(at_ + kStages, row);
      accumulate<2>(stage);
      accumulate<3>(stage);
      __syncwarp();
      if (lane_ == 0) barrier_arrive(this->empty(at_));
      ++at_;
      if (last) break;
      collect_weights(at_);
    }
    finish_piece();
  }

  /// Refills the stage that the tile before the current one has left, and looks up the rows of the
  /// tile after that.
  __device__ PendingRow copy_ahead() {
    const std::uint32_t next = at_ + kStages - 1;
    if (next < this->tiles()) {
      if (at_ > 0) barrier_wait(this->empty(at_ - 1), Base::parity(at_ - 1));
      copy_tile<type>(args_, this->codes(next), this->stage(next), this->full(next));
    }
    PendingRow row{PendingRow::Kind::none, 0, 0};
    if (at_ + kStages < this->tiles()) row = this->find_rows();
    return row;
  }

  /// Partial scores of the group's rows over the slice, for tile `at` of the share; publishes those
  /// of other warps' rows and keeps its own.
  __device__ void score_tile(std::uint32_t at) {
    barrier_wait(this->full(at), Base::parity(at));
    if (this->masked(tile_)) this->clean_stage(at);
    const std::uint32_t stage = this->stage(at);
    float s[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0F;
    }
    std::uint32_t b[4];
    const std::uint32_t lane = this->own_lane();
    const std::uint32_t matrix_row =
        stage + ((lane & 7U) + ((lane >> 4U) << 3U)) * kPitch + ((lane >> 3U) & 1U) * 16U;
    if constexpr (kEightBit) {
      const std::uint32_t row = stage + (lane >> 2U) * kPitch + 128U * slice_ + 16U * (lane & 3U);
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i) {
          load_shared_16(b, row + 8U * n * kPitch + 64U * i);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const std::uint32_t low = widen_e4m3(b[j] & 0xFFFFU);
            const std::uint32_t high = widen_e4m3(b[j] >> 16U);
#pragma unroll
            for (int m = 0; m < 2; ++m)
              multiply_add(Math{}, s[m][n], query_[m][4 * i + static_cast<std::uint32_t>(j)], low,
                           high);
          }
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        load_matrices(b, matrix_row + 256U * slice_ + 32U * static_cast<std::uint32_t>(k));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(Math{}, s[m][0], query_[m][k], b[0], b[1]);
          multiply_add(Math{}, s[m][1], query_[m][k], b[2], b[3]);
        }
      }
    }
    if constexpr (kTileScales) {
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        const std::uint32_t token = 8U * n + 2U * (lane_ & 3U);
        const float scale0 = this->tile_scale(stage, token, slice_);
        const float scale1 = this->tile_scale(stage, token + 1U, slice_);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          s[m][n][0] *= scale0;
          s[m][n][1] *= scale1;
          s[m][n][2] *= scale0;
          s[m][n][3] *= scale1;
        }
      }
    }
    if (args_.params.rope_dim != 0) {
      load_rope(b, stage, matrix_row);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(Math{}, s[m][0], query_[m][8], b[0], b[1]);
        multiply_add(Math{}, s[m][1], query_[m][8], b[2], b[3]);
      }
    }
    publish_scores(s);
  }

  /// Operands of the slice's 16 rope values for 16 tokens.
  __device__ void load_rope(std::uint32_t (&b)[4], std::uint32_t stage, std::uint32_t matrix_row) {
    if constexpr (type == KvType::e4m3) {
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        std::uint32_t bytes;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(bytes)
                     : "r"(stage + (8U * n + (lane_ >> 2U)) * kPitch + kRopeAt + 16U * slice_ +
                           4U * (lane_ & 3U))
                     : "memory");
        b[2 * n] = widen_e4m3(bytes & 0xFFFFU);
        b[2 * n + 1] = widen_e4m3(bytes >> 16U);
      }
    } else {
      load_matrices(b, matrix_row + kRopeAt + 32U * slice_);
      if constexpr (kTileScales) {
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = bf16_to_fp16(b[j]);
      }
    }
  }

  /// Scores of 8 rows go to the warp that owns them: 16 bytes a lane, lane by lane.
  __device__ std::uint32_t exchange_at(std::uint32_t owner, std::uint32_t source) const {
    return this->exchange() + ((4U * group() + owner) * 4U + source) * 512U +
           16U * this->own_lane();
  }
  __device__ void publish_scores(const float (&s)[2][2][4]) {
#pragma unroll
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      const std::uint32_t m = owner >> 1U;
      const std::uint32_t half = owner & 1U;
      if (owner == slice_) {
        own_[0] = s[m][0][2 * half];
        own_[1] = s[m][0][2 * half + 1];
        own_[2] = s[m][1][2 * half];
        own_[3] = s[m][1][2 * half + 1];
      } else {
        asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(exchange_at(owner, slice_)),
                     "f"(s[m][0][2 * half]), "f"(s[m][0][2 * half + 1]), "f"(s[m][1][2 * half]),
                     "f"(s[m][1][2 * half + 1])
                     : "memory");
      }
    }
    __syncwarp();
    if (lane_ == 0) barrier_arrive(scored());
  }

  /// The softmax step of the warp's own rows: weights and factors to the whole group.
  __device__ void soften_tile(std::uint32_t at) {
    barrier_wait(scored(), at & 1U);
#pragma unroll
    for (std::uint32_t source = 0; source < 4; ++source) {
      if (source == slice_) continue;
      float x[4];
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(exchange_at(slice_, source))
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) own_[j] += x[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) own_[j] = this->score(own_[j]);
    if (this->masked(tile_)) mask_own(this->bad_tokens());
    float top = fmaxf(fmaxf(own_[0], own_[1]), fmaxf(own_[2], own_[3]));
    top = row_max(top);
    float factor = 1.0F;
    if (top > peak_ + kSlack) {
      factor = peak_ == -INFINITY ? 1.0F : exp2_fast(peak_ - top);
      peak_ = top;
      total_ *= factor;
    }
    const float base = peak_ == -INFINITY ? 0.0F : peak_ - kShift;
#pragma unroll
    for (int j = 0; j < 4; ++j) own_[j] = exp2_fast(own_[j] - base);
    total_ += (own_[0] + own_[1]) + (own_[2] + own_[3]);
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(weights_at(slice_)),
                 "r"(pack(Math{}, own_[0], own_[1])), "r"(pack(Math{}, own_[2], own_[3]))
                 : "memory");
    if ((lane_ & 3U) == 0)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(factor_at(slice_)), "f"(factor) : "memory");
    __syncwarp();
    if (lane_ == 0) barrier_arrive(weighed());
  }

  __device__ std::uint32_t weights_at(std::uint32_t owner) const {
    return this->small() + SmallMap::kWeights + (4U * group() + owner) * 256U +
           8U * this->own_lane();
  }
  __device__ std::uint32_t factor_at(std::uint32_t owner) const {
    return this->small() + SmallMap::kFactors +
           4U * (32U * group() + 8U * owner + (this->own_lane() >> 2U));
  }

  __device__ void mask_own(std::uint32_t bad) {
    const std::uint32_t seen = this->seen(tile_, own_row());
    const std::uint32_t quad = 2U * (lane_ & 3U);
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      const std::uint32_t token = quad + (j & 1U) + 8U * (j >> 1U);
      if ((seen >> token & 1U) == 0) {
        own_[j] = -INFINITY;
      } else if ((bad >> token & 1U) != 0) {
        own_[j] = NAN;
      }
    }
  }

  /// Takes the weights of the group's 32 rows for tile `at`, and rescales what has been summed up.
  __device__ void collect_weights(std::uint32_t at) {
    barrier_wait(weighed(), at & 1U);
    float factor[4];
#pragma unroll
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      const std::uint32_t m = owner >> 1U;
      const std::uint32_t half = owner & 1U;
      asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                   : "=r"(weights_[m][half]), "=r"(weights_[m][half + 2])
                   : "r"(weights_at(owner))
                   : "memory");
      asm volatile("ld.shared.f32 %0, [%1];"
                   : "=f"(factor[owner])
                   : "r"(factor_at(owner))
                   : "memory");
    }
    if constexpr (kTileScales) {
      const float unit = this->template scale_weights_of<2>(weights_, this->stage(at), slice_);
#pragma unroll
      for (int i = 0; i < 4; ++i) factor[i] *= unit;
    }
    const bool rescale =
        factor[0] != 1.0F || factor[1] != 1.0F || factor[2] != 1.0F || factor[3] != 1.0F;
    if (__any_sync(kAll, rescale)) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) out_[m][i][j] *= factor[2 * m + j / 2];
        }
      }
    }
  }

  /// Adds weights * V for a quarter of the slice's columns.
  template <int quarter>
  __device__ void accumulate(std::uint32_t stage) {
    std::uint32_t b[4];
    const std::uint32_t lane = this->own_lane();
    const std::uint32_t row = stage + (lane & 15U) * kPitch + (lane >> 4U) * 16U;
    if constexpr (kEightBit) {
      load_matrices_transposed(b, row + 128U * slice_ + 32U * quarter);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
          const std::uint32_t pick = odd == 0 ? 0x4420U : 0x4431U;
          const std::uint32_t low = widen_e4m3(__byte_perm(b[2 * j], 0, pick));
          const std::uint32_t high = widen_e4m3(__byte_perm(b[2 * j + 1], 0, pick));
#pragma unroll
          for (int m = 0; m < 2; ++m)
            multiply_add(Math{}, out_[m][4 * quarter + 2 * j + odd], weights_[m], low, high);
        }
      }
    } else {
#pragma unroll
      for (int i = 2 * quarter; i < 2 * quarter + 2; ++i) {
        load_matrices_transposed(b, row + 256U * slice_ + 32U * static_cast<std::uint32_t>(i));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(Math{}, out_[m][2 * i], weights_[m], b[0], b[1]);
          multiply_add(Math{}, out_[m][2 * i + 1], weights_[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
    const float total = row_sum(total_);
    if ((lane_ & 3U) == 0) {
      const float scale = total == 0.0F ? 0.0F : 1.0F / total;
      const float lse = total == 0.0F ? -INFINITY : peak_ - kShift + log2f(total);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(factor_at(slice_)), "f"(scale) : "memory");
      this->store_lse(own_row(), whole, lse);
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      const std::uint32_t m = owner >> 1U;
      const int half = static_cast<int>(owner & 1U);
      float scale;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(factor_at(owner)) : "memory");
      scale *= this->value_scale();
      const auto to = this->target(
          static_cast<std::int32_t>(32U * group() + 8U * owner + (lane_ >> 2U)), whole);
      if (to.out == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        this->store_columns(to, 128U * slice_, i, half, out_[m][2 * i], out_[m][2 * i + 1], scale);
    }
  }

  std::uint32_t slice_;
  std::uint32_t at_{0};  ///< tile of the share whose products with V come next
  std::uint32_t query_[2][9][4];
  float out_[2][16][4];
  std::uint32_t weights_[2][4];
  float own_[4];
  float peak_;
  float total_;
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kThreads, 1)
    many_rows_kernel(const __grid_constant__ MlaArgs args) {
  ManyRows<type> worker(args);
  worker.run();
}

}  // namespace packstone::kernels::mla
