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
  using Base::tile_;
  using Base::tile_end_;
  using typename Base::Math;

 public:
  __device__ explicit ManyRows(const MlaArgs& args) : Base(args), slice_(this->warp() & 3U) {}

  __device__ void run() {
    if (!this->begin_share()) return;
    // The first tiles, one a warp, each with its own cursor for once.
    if (this->warp() < kStages && this->warp() < this->tiles_of_share()) {
      if (this->lane() == 0) this->step_ahead(this->now(), this->warp());
      __syncwarp();
      store_places(this->warp(), this->find_rows(this->now(), 0), kTile);
    }
    __syncthreads();
    if (this->lane() == 0) this->now() = this->ahead();
    __syncthreads();
    if (threadIdx.x == 0) this->step_ahead(this->ahead(), kStages);
    __syncthreads();
    for (std::uint32_t tile = 0; tile + 1 < kStages && tile < this->tiles_of_share(); ++tile)
      copy_own_rows(tile);
    const std::uint32_t lane = this->lane();
    const std::uint32_t base = this->shared();
    key_at_ = base + ((lane & 7U) + ((lane >> 4U) << 3U)) * kPitch + ((lane >> 3U) & 1U) * 16U +
              256U * slice_;
    value_at_ = base + (lane & 15U) * kPitch + (lane >> 4U) * 16U + kSliceBytes * slice_;
    do {
      run_piece();
    } while (this->next_piece());
  }

 private:
  __device__ std::uint32_t group() const { return this->warp() >> 2U; }
  __device__ std::uint32_t scored() const {
    return this->small() + SmallMap::kScored + 8U * group();
  }
  __device__ std::uint32_t weighed() const {
    return this->small() + SmallMap::kWeighed + 8U * group();
  }
  /// The row of the segment whose softmax the lane takes part in.
  __device__ std::int32_t own_row() const {
    return static_cast<std::int32_t>(32U * group() + 8U * slice_ + (this->lane() >> 2U));
  }

  __device__ void run_piece() {
    this->start_piece();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const char* row = this->query_of(
            static_cast<std::int32_t>(32U * group() + 16U * m + 8U * half + (this->lane() >> 2U)));
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
    score_tile(at_, false);
    Scores own;
    gather_scores(own, at_);
    find_weights(own);
    publish_weights(own);
    while (true) {
      const std::uint32_t offset = at_ % kStages * Base::kStageBytes;
      const bool last = tile_ + 1 == tile_end_;
      if (last) {
        collect_weights(at_);
      } else {
        ++tile_;
        score_tile(at_ + 1, true);
      }
      accumulate<0>(offset);
      if (!last) gather_scores(own, at_ + 1);
      accumulate<1>(offset);
      if (!last) find_weights(own);
      accumulate<2>(offset);
      if (!last) publish_weights(own);
      accumulate<3>(offset);
      copy_ahead();
      __syncwarp();
      if (this->lane() == 0) barrier_arrive(this->empty(at_));
      ++at_;
      if (last) break;
    }
    finish_piece();
  }

  /// Refills the stage that the tile before the current one has left, and every second tile looks
  /// up rows further ahead. Waiting for all warps to leave that stage also orders lookups and
  /// places: who stores them arrives there afterwards.
  __device__ void copy_ahead() {
    const std::uint32_t next = at_ + kStages - 1;
    if (next >= this->tiles_of_share()) return;
    if (at_ > 0) barrier_wait(this->empty(at_ - 1), Base::parity(at_ - 1));
    copy_own_rows(next);
    if ((at_ & 1U) == 0 && this->warp() == (at_ >> 1U & 7U)) find_ahead(at_ + kStages);
  }
  /// All warps copy: a bulk copy takes a warp tens of cycles to issue, one lane after the other.
  __device__ void copy_own_rows(std::uint32_t tile) {
    constexpr std::uint32_t kRows = kTile / 8;
    RowPlace place{nullptr, nullptr};
    if (this->lane() < kRows) place = places(tile)[kRows * this->warp() + this->lane()];
    copy_rows<type, kRows>(args_, place, kRows * this->warp(), this->stage(tile), this->full(tile));
  }
  /// Places of rows of a tile; tiles up to 7 apart have their own.
  __device__ static RowPlace* places(std::uint32_t tile) {
    return reinterpret_cast<RowPlace*>(Base::small_memory() + SmallMap::kPlaces) +
           kTile * (tile & 7U);
  }
  __device__ void store_places(std::uint32_t tile, const PendingRow& row, std::uint32_t rows) {
    const std::uint32_t lane = this->lane();
    if (lane < rows) places(tile + lane / kTile)[lane % kTile] = place_of<type>(args_, row);
    __syncwarp();
  }
  /// Looks up the rows of two tiles, at once where they are of one segment.
  __device__ void find_ahead(std::uint32_t tile) {
    if (tile >= this->tiles_of_share()) return;
    Cursor& at = this->ahead();
    if (at.tile + 1 < at.line.tiles) {
      const auto lane = static_cast<std::int32_t>(this->lane());
      const PendingRow row = find_row(args_, at.line, at.tile * kTile + lane);
      __syncwarp();
      if (lane == 0) this->step_ahead(at, 2);
      store_places(tile, row, 2 * kTile);
    } else {
      store_places(tile, this->find_rows(at, 1), kTile);
      if (tile + 1 < this->tiles_of_share()) store_places(tile + 1, this->find_rows(at, 1), kTile);
    }
  }

  /// Partial scores of the group's rows over the slice, for tile `at` of the share. With
  /// `collects`, takes the weights of the tile before in between: after the products, when they
  /// have had time to arrive, and before the exchange buffer is written anew, which all have then
  /// read.
  __device__ void score_tile(std::uint32_t at, bool collects) {
    barrier_wait(this->full(at), Base::parity(at));
    if (this->masked(tile_)) this->clean_stage(at);
    const std::uint32_t stage = this->stage(at);
    float s[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0F;
    }
    std::uint32_t b[2][4];
    const std::uint32_t offset = at % kStages * Base::kStageBytes;
    if constexpr (kEightBit) {
      const std::uint32_t lane = this->lane();
      const std::uint32_t row = stage + (lane >> 2U) * kPitch + 128U * slice_ + 16U * (lane & 3U);
      load_shared_16(b[0], row);
#pragma unroll
      for (std::uint32_t step = 0; step < 4; ++step) {
        const std::uint32_t n = step / 2;
        if (step < 3) {
          load_shared_16(b[(step + 1) & 1U],
                         row + 8U * ((step + 1) / 2) * kPitch + 64U * ((step + 1) & 1U));
        }
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) {
          const std::uint32_t low = widen_e4m3(b[step & 1U][j] & 0xFFFFU);
          const std::uint32_t high = widen_e4m3(b[step & 1U][j] >> 16U);
#pragma unroll
          for (int m = 0; m < 2; ++m)
            multiply_add(Math{}, s[m][n], query_[m][4 * (step & 1U) + j], low, high);
        }
      }
    } else {
      load_matrices(b[0], key_at_ + offset);
#pragma unroll
      for (std::uint32_t k = 0; k < 8; ++k) {
        if (k < 7) load_matrices(b[(k + 1) & 1U], key_at_ + offset + 32U * (k + 1));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(Math{}, s[m][0], query_[m][k], b[k & 1U][0], b[k & 1U][1]);
          multiply_add(Math{}, s[m][1], query_[m][k], b[k & 1U][2], b[k & 1U][3]);
        }
      }
    }
    if constexpr (kTileScales) {
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        const std::uint32_t token = 8U * n + 2U * (this->lane() & 3U);
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
      load_rope(b[0], stage, offset);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(Math{}, s[m][0], query_[m][8], b[0][0], b[0][1]);
        multiply_add(Math{}, s[m][1], query_[m][8], b[0][2], b[0][3]);
      }
    }
    if (collects) collect_weights(at - 1);
    publish_scores(s);
  }

  /// Operands of the slice's 16 rope values for 16 tokens.
  __device__ void load_rope(std::uint32_t (&b)[4], std::uint32_t stage, std::uint32_t offset) {
    if constexpr (type == KvType::e4m3) {
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        std::uint32_t bytes;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(bytes)
                     : "r"(stage + (8U * n + (this->lane() >> 2U)) * kPitch + kRopeAt +
                           16U * slice_ + 4U * (this->lane() & 3U))
                     : "memory");
        b[2 * n] = widen_e4m3(bytes & 0xFFFFU);
        b[2 * n + 1] = widen_e4m3(bytes >> 16U);
      }
    } else {
      load_matrices(b, key_at_ + offset + kRopeAt + 32U * slice_ - 256U * slice_);
      if constexpr (kTileScales) {
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = bf16_to_fp16(b[j]);
      }
    }
  }

  /// Scores of 8 rows go to the warp that owns them: 8 bytes a lane, lane by lane.
  __device__ std::uint32_t exchange_at() const {
    return this->exchange() + 8192U * group() + 8U * this->lane();
  }
  __device__ void publish_scores(const float (&s)[2][2][4]) {
    const std::uint32_t to = exchange_at() + 512U * slice_;
#pragma unroll
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      const std::uint32_t half = 2 * (owner & 1U);
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to + 2048U * owner + 256U * n),
                     "f"(s[owner >> 1U][n][half]), "f"(s[owner >> 1U][n][half + 1])
                     : "memory");
      }
    }
    __syncwarp();
    if (this->lane() == 0) barrier_arrive(scored());
  }

  /// The softmax step of the warp's own rows, in three parts between which products go on.
  struct Scores {
    float x[4];    ///< scores, then weights
    float factor;  ///< of what has been summed up before
  };
  __device__ void gather_scores(Scores& own, std::uint32_t at) {
    barrier_wait(scored(), at & 1U);
    const std::uint32_t from = exchange_at() + 2048U * slice_;
#pragma unroll
    for (std::uint32_t source = 0; source < 4; source += 2) {
      float x[2][4];
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
#pragma unroll
        for (std::uint32_t n = 0; n < 2; ++n) {
          asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
                       : "=f"(x[i][2 * n]), "=f"(x[i][2 * n + 1])
                       : "r"(from + 512U * (source + i) + 256U * n)
                       : "memory");
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        own.x[j] = source == 0 ? x[0][j] + x[1][j] : own.x[j] + (x[0][j] + x[1][j]);
    }
  }
  __device__ void find_weights(Scores& own) {
    this->finish_scores(own.x);
    if (this->masked(tile_)) mask_own(own.x, this->bad_tokens());
    float top = fmaxf(fmaxf(own.x[0], own.x[1]), fmaxf(own.x[2], own.x[3]));
    top = row_max(top);
    own.factor = 1.0F;
    if (top > peak_ + kSlack) {
      own.factor = peak_ == -INFINITY ? 1.0F : exp2_fast(peak_ - top);
      peak_ = top;
      total_ *= own.factor;
    }
    const float base = peak_ == -INFINITY ? 0.0F : peak_ - kShift;
#pragma unroll
    for (int j = 0; j < 4; ++j) own.x[j] = exp2_fast(own.x[j] - base);
  }
  __device__ void publish_weights(const Scores& own) {
    total_ += (own.x[0] + own.x[1]) + (own.x[2] + own.x[3]);
    // The operand of a lane is rows g and g + 8 of tokens 0 to 7, then of tokens 8 to 15.
    const std::uint32_t to = weights_at() + 512U * (slice_ >> 1U) + 4U * (slice_ & 1U);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pack(Math{}, own.x[0], own.x[1]))
                 : "memory");
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + 8U), "r"(pack(Math{}, own.x[2], own.x[3]))
                 : "memory");
    if ((this->lane() & 3U) == 0)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(factors_at() + 4U * slice_), "f"(own.factor)
                   : "memory");
    __syncwarp();
    if (this->lane() == 0) barrier_arrive(weighed());
  }

  __device__ std::uint32_t weights_at() const {
    return this->small() + SmallMap::kWeights + 1024U * group() + 16U * this->lane();
  }
  __device__ std::uint32_t factors_at() const {
    return this->small() + SmallMap::kFactors + 128U * group() + 16U * (this->lane() >> 2U);
  }
  __device__ void load_factors(float (&factor)[4]) const {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(factor[0]), "=f"(factor[1]), "=f"(factor[2]), "=f"(factor[3])
                 : "r"(factors_at())
                 : "memory");
  }

  __device__ void mask_own(float (&own)[4], std::uint32_t bad) {
    const std::uint32_t seen = this->seen(tile_, own_row());
    const std::uint32_t quad = 2U * (this->lane() & 3U);
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      const std::uint32_t token = quad + (j & 1U) + 8U * (j >> 1U);
      if ((seen >> token & 1U) == 0) {
        own[j] = -INFINITY;
      } else if ((bad >> token & 1U) != 0) {
        own[j] = NAN;
      }
    }
  }

  /// Takes the weights of the group's 32 rows for tile `at`, and rescales what has been summed up.
  __device__ void collect_weights(std::uint32_t at) {
    barrier_wait(weighed(), at & 1U);
    float factor[4];
    load_factors(factor);
    load_shared_16(weights_[0], weights_at());
    load_shared_16(weights_[1], weights_at() + 512U);
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
  __device__ void accumulate(std::uint32_t offset) {
    std::uint32_t b[2][4];
    const std::uint32_t from = value_at_ + offset;
    if constexpr (kEightBit) {
      load_matrices_transposed(b[0], from + 32U * quarter);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
          const std::uint32_t pick = odd == 0 ? 0x4420U : 0x4431U;
          const std::uint32_t low = widen_e4m3(__byte_perm(b[0][2 * j], 0, pick));
          const std::uint32_t high = widen_e4m3(__byte_perm(b[0][2 * j + 1], 0, pick));
#pragma unroll
          for (int m = 0; m < 2; ++m)
            multiply_add(Math{}, out_[m][4 * quarter + 2 * j + odd], weights_[m], low, high);
        }
      }
    } else {
      load_matrices_transposed(b[0], from + 64U * quarter);
      load_matrices_transposed(b[1], from + 64U * quarter + 32U);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(Math{}, out_[m][4 * quarter + 2 * i], weights_[m], b[i][0], b[i][1]);
          multiply_add(Math{}, out_[m][4 * quarter + 2 * i + 1], weights_[m], b[i][2], b[i][3]);
        }
      }
    }
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
    const float total = row_sum(total_);
    if ((this->lane() & 3U) == 0) {
      const float scale = total == 0.0F ? 0.0F : 1.0F / total;
      const float lse = total == 0.0F ? -INFINITY : peak_ - kShift + log2f(total);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(factors_at() + 4U * slice_), "f"(scale)
                   : "memory");
      this->store_lse(own_row(), whole, lse);
    }
    __syncthreads();
    float factor[4];
    load_factors(factor);
#pragma unroll
    for (std::uint32_t owner = 0; owner < 4; ++owner) {
      const std::uint32_t m = owner >> 1U;
      const int half = static_cast<int>(owner & 1U);
      const float scale = factor[owner] * this->value_scale();
      const auto to = this->target(
          static_cast<std::int32_t>(32U * group() + 8U * owner + (this->lane() >> 2U)), whole);
      if (to.out == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        this->store_columns(to, 128U * slice_, i, half, out_[m][2 * i], out_[m][2 * i + 1], scale);
    }
  }

  static constexpr std::uint32_t kSliceBytes = kEightBit ? 128 : 256;

  std::uint32_t slice_;
  std::uint32_t key_at_;    ///< of the lane's row of 8 x 8 matrices of K in stage 0, ...
  std::uint32_t value_at_;  ///< ... and of V
  std::uint32_t at_{0};     ///< tile of the share whose products with V come next
  std::uint32_t query_[2][9][4];
  float out_[2][16][4];
  std::uint32_t weights_[2][4];
  float peak_;
  float total_;
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kMathThreads, 1)
    many_rows_kernel(const __grid_constant__ MlaArgs args) {
  ManyRows<type> worker(args);
  worker.run();
}

}  // namespace packstone::kernels::mla
