// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for up to 16 rows: decode and short chains, bound by memory. For the scores, 8
/// warps are two halves of a 16-token tile by four slices of the head dimension; partial scores
/// meet in shared memory, where every warp reads all of them and takes the same softmax step, so
/// that no weights travel; for the output, a warp has 64 of the 512 columns. The scores of the next
/// tile are multiplied while those of the current one are softened. Two barriers a tile; all other
/// stages are in flight.

#include "kernels/mla_walk.cuh"

#include <cstdint>

namespace packstone::kernels::mla {

template <KvType type>
class FewRows : public Walk<type, MlaShape::few_rows> {
  using Base = Walk<type, MlaShape::few_rows>;
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
  __device__ explicit FewRows(const MlaArgs& args)
      : Base(args), slice_(this->warp_ >> 1U), half_tile_(this->warp_ & 1U) {}

  __device__ void run() {
    if (!this->begin_share()) return;
    if (warp_ == 0) this->fill_ring(kStages);
    __syncthreads();
    do {
      run_piece();
    } while (this->next_piece());
  }

 private:
  __device__ void run_piece() {
    this->start_piece();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* row = this->query_of(static_cast<std::int32_t>(8 * half + (lane_ >> 2U)));
#pragma unroll
      for (int k = 0; k < 9; ++k) this->load_query(query_[k], row, half, k, slice_);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out_[i][0] = out_[i][1] = out_[i][2] = out_[i][3] = 0.0F;
    peak_[0] = peak_[1] = -INFINITY;
    total_[0] = total_[1] = 0.0F;
    float partial[4];
    std::uint32_t bad = score_tile(at_, tile_, partial);
    publish(partial);
    __syncthreads();
    while (true) {
      const bool last = tile_ + 1 == tile_end_;
      const bool copies = warp_ == (at_ & 7U);
      const bool finds = copies && at_ + 1 + kStages < this->tiles();
      PendingRow row{PendingRow::Kind::none, 0, 0};
      if (finds) row = this->find_rows();
      float s[2][4];
      read_scores(s);
      std::uint32_t next_bad = 0;
      if (!last) next_bad = score_tile(at_ + 1, tile_ + 1, partial);
      __syncthreads();
      if (!last) publish(partial);
      attend(s, bad);
      if (finds) this->store_codes(at_ + 1 + kStages, row);
      __syncthreads();
      if (copies && at_ + kStages < this->tiles()) {
        const std::uint32_t next = at_ + kStages;
        copy_tile<type>(args_, this->codes(next), this->stage(next), this->full(next));
      }
      ++at_;
      if (last) break;
      ++tile_;
      bad = next_bad;
    }
    finish_piece();
  }

  /// Partial scores of the warp's 8 tokens over its slice. Gives the tokens that are not finite.
  __device__ std::uint32_t score_tile(std::uint32_t at, std::int32_t tile, float (&sum)[4]) {
    barrier_wait(this->full(at), Base::parity(at));
    std::uint32_t bad = 0;
    if (this->masked(tile)) {
      this->clean_stage(at);
      bad = this->bad_tokens();
    }
    const std::uint32_t stage = this->stage(at);
    // Three sums, so that products need not wait for each other.
    float s[3][4] = {};
    std::uint32_t b[4];
    if constexpr (kEightBit) {
      const std::uint32_t row =
          stage + (8U * half_tile_ + (lane_ >> 2U)) * kPitch + 128U * slice_ + 16U * (lane_ & 3U);
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        load_shared_16(b, row + 64U * i);
#pragma unroll
        for (std::uint32_t j = 0; j < 4; ++j) {
          multiply_add(Math{}, s[(4 * i + j) % 3], query_[4 * i + j], widen_e4m3(b[j] & 0xFFFFU),
                       widen_e4m3(b[j] >> 16U));
        }
      }
    } else {
      const std::uint32_t row =
          stage + (8U * half_tile_ + (lane_ & 7U)) * kPitch + 256U * slice_ + 16U * (lane_ >> 3U);
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        load_matrices(b, row + 64U * i);
        multiply_add(Math{}, s[(2 * i) % 3], query_[2 * i], b[0], b[1]);
        multiply_add(Math{}, s[(2 * i + 1) % 3], query_[2 * i + 1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] = s[0][j] + s[1][j] + s[2][j];
    if constexpr (kTileScales) {
      const std::uint32_t token = 8U * half_tile_ + 2U * (lane_ & 3U);
      const float scale0 = this->tile_scale(stage, token, slice_);
      const float scale1 = this->tile_scale(stage, token + 1U, slice_);
      sum[0] *= scale0;
      sum[1] *= scale1;
      sum[2] *= scale0;
      sum[3] *= scale1;
    }
    if (args_.params.rope_dim != 0) {
      if constexpr (type == KvType::e4m3) {
        std::uint32_t bytes;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(bytes)
                     : "r"(stage + (8U * half_tile_ + (lane_ >> 2U)) * kPitch + kRopeAt +
                           16U * slice_ + 4U * (lane_ & 3U))
                     : "memory");
        b[0] = widen_e4m3(bytes & 0xFFFFU);
        b[1] = widen_e4m3(bytes >> 16U);
      } else {
        load_matrices(b, stage + (8U * half_tile_ + (lane_ & 7U)) * kPitch + kRopeAt +
                             32U * slice_ + 16U * ((lane_ >> 3U) & 1U));
        if constexpr (kTileScales) {
          b[0] = bf16_to_fp16(b[0]);
          b[1] = bf16_to_fp16(b[1]);
        }
      }
      multiply_add(Math{}, sum, query_[8], b[0], b[1]);
    }
    return bad;
  }

  __device__ std::uint32_t exchange_at(std::uint32_t slice, std::uint32_t half_tile) const {
    return this->exchange() + (2U * slice + half_tile) * 512U + 16U * lane_;
  }
  __device__ void publish(const float (&sum)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(exchange_at(slice_, half_tile_)),
                 "f"(sum[0]), "f"(sum[1]), "f"(sum[2]), "f"(sum[3])
                 : "memory");
  }
  __device__ void read_scores(float (&s)[2][4]) {
#pragma unroll
    for (std::uint32_t n = 0; n < 2; ++n) {
      s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0F;
#pragma unroll
      for (std::uint32_t slice = 0; slice < 4; ++slice) {
        float x[4];
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(exchange_at(slice, n))
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) s[n][j] += x[j];
      }
    }
  }

  /// The softmax step and the product with V for the current tile.
  __device__ void attend(float (&s)[2][4], std::uint32_t bad) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] = this->score(s[n][j]);
    }
    if (this->masked(tile_)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) mask_row(s, half, bad);
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]),
                        fmaxf(s[1][2 * half], s[1][2 * half + 1]));
      top = row_max(top);
      factor[half] = 1.0F;
      if (top > peak_[half] + kSlack) {
        factor[half] = peak_[half] == -INFINITY ? 1.0F : exp2_fast(peak_[half] - top);
        peak_[half] = top;
        total_[half] *= factor[half];
      }
      const float base = peak_[half] == -INFINITY ? 0.0F : peak_[half] - kShift;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        s[n][2 * half] = exp2_fast(s[n][2 * half] - base);
        s[n][2 * half + 1] = exp2_fast(s[n][2 * half + 1] - base);
        total_[half] += s[n][2 * half] + s[n][2 * half + 1];
      }
    }
    std::uint32_t weights[4] = {pack(Math{}, s[0][0], s[0][1]), pack(Math{}, s[0][2], s[0][3]),
                                pack(Math{}, s[1][0], s[1][1]), pack(Math{}, s[1][2], s[1][3])};
    const std::uint32_t stage = this->stage(at_);
    if constexpr (kTileScales) {
      const float unit = this->scale_weights(weights, stage, slice_);
      factor[0] *= unit;
      factor[1] *= unit;
    }
    if (__any_sync(kAll, factor[0] != 1.0F || factor[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][j] *= factor[j / 2];
      }
    }
    accumulate(stage, weights);
  }

  __device__ void mask_row(float (&s)[2][4], int half, std::uint32_t bad) {
    const std::uint32_t seen =
        this->seen(tile_, static_cast<std::int32_t>(8 * half + (lane_ >> 2U)));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t token = 8U * n + 2U * (lane_ & 3U) + static_cast<std::uint32_t>(j);
        float& score = s[n][2 * half + j];
        if ((seen >> token & 1U) == 0) {
          score = -INFINITY;
        } else if ((bad >> token & 1U) != 0) {
          score = NAN;
        }
      }
    }
  }

  __device__ void accumulate(std::uint32_t stage, const std::uint32_t (&weights)[4]) {
    std::uint32_t b[4];
    const std::uint32_t row = stage + (lane_ & 15U) * kPitch + (lane_ >> 4U) * 16U;
    if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        load_matrices_transposed(b, row + 64U * warp_ + 32U * i);
#pragma unroll
        for (std::uint32_t j = 0; j < 2; ++j) {
#pragma unroll
          for (std::uint32_t odd = 0; odd < 2; ++odd) {
            // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
            const std::uint32_t pick = odd == 0 ? 0x4420U : 0x4431U;
            multiply_add(Math{}, out_[4 * i + 2 * j + odd], weights,
                         widen_e4m3(__byte_perm(b[2 * j], 0, pick)),
                         widen_e4m3(__byte_perm(b[2 * j + 1], 0, pick)));
          }
        }
      }
    } else {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        load_matrices_transposed(b, row + 128U * warp_ + 32U * i);
        multiply_add(Math{}, out_[2 * i], weights, b[0], b[1]);
        multiply_add(Math{}, out_[2 * i + 1], weights, b[2], b[3]);
      }
    }
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_sum(total_[half]);
      const float scale = total == 0.0F ? 0.0F : this->value_scale() / total;
      const auto row = static_cast<std::int32_t>(8 * half + (lane_ >> 2U));
      if (warp_ == 0 && (lane_ & 3U) == 0) {
        const float lse = total == 0.0F ? -INFINITY : peak_[half] - kShift + log2f(total);
        this->store_lse(row, whole, lse);
      }
      const auto to = this->target(row, whole);
      if (to.out == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        this->store_columns(to, 64U * warp_, i, half, out_[2 * i], out_[2 * i + 1], scale);
    }
  }

  std::uint32_t slice_;
  std::uint32_t half_tile_;
  std::uint32_t at_{0};  ///< tile of the share
  std::uint32_t query_[9][4];
  float out_[8][4];
  float peak_[2];
  float total_[2];
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kThreads, 1)
    few_rows_kernel(const __grid_constant__ MlaArgs args) {
  FewRows<type> worker(args);
  worker.run();
}

}  // namespace packstone::kernels::mla
