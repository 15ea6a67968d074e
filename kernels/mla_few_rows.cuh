// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for up to 16 rows: decode and short chains, bound by memory. Four warps only look
/// up rows and start copies, a tile each in turn; eight multiply, 32 tokens a step. For the scores
/// they are four groups of 8 tokens by two halves of the head dimension; the partial scores meet in
/// shared memory, where every warp reads all of them and takes the same softmax step, so that no
/// weights travel; for the output, a warp has 64 of the 512 columns.

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
  using Base::tile_;
  using Base::tile_end_;
  using typename Base::Math;

 public:
  __device__ explicit FewRows(const MlaArgs& args) : Base(args) {}

  __device__ void run() {
    if (!this->begin_share()) return;
    if (this->warp() >= MlaPolicy::kMathThreads / 32) {
      copy_tiles(this->warp() - MlaPolicy::kMathThreads / 32);
      return;
    }
    do {
      run_piece();
    } while (this->next_piece());
  }

 private:
  /// Half of every second tile of the share: a bulk copy takes a warp tens of cycles to issue, one
  /// lane after the other, so two warps fill a stage in half the time. The row numbers of a tile
  /// are on their way while the tile before is copied.
  __device__ void copy_tiles(std::uint32_t copier) {
    constexpr std::uint32_t kStep = MlaPolicy::kCopyWarps / 2;
    constexpr std::uint32_t kRows = kTile / 2;
    const std::uint32_t first = copier / 2;
    const std::uint32_t first_row = copier % 2 * kRows;
    Cursor& at = this->ahead(copier);
    if (this->lane() == 0) this->step_ahead(at, first);
    __syncwarp();
    const std::uint32_t tiles = this->tiles_of_share();
    if (first >= tiles) return;
    PendingRow row = this->find_rows(at, kStep, first_row, kRows);
    for (std::uint32_t tile = first; tile < tiles; tile += kStep) {
      const RowPlace place = place_of<type>(args_, row);
      if (tile + kStep < tiles) row = this->find_rows(at, kStep, first_row, kRows);
      if (tile >= kStages) barrier_wait(this->empty(tile), Base::parity(tile) ^ 1U);
      copy_rows<type, kRows>(args_, place, first_row, this->stage(tile), this->full(tile));
    }
  }

  __device__ std::uint32_t part() const {
    return this->warp() >> 2U;
  }  ///< half of the head dimension
  __device__ std::uint32_t octet() const { return this->warp() & 3U; }  ///< 8 tokens of a step
  __device__ std::uint32_t slice(int k) const { return 2U * part() + (k >= 9 ? 1U : 0U); }

  __device__ void run_piece() {
    this->start_piece();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const char* row = this->query_of(static_cast<std::int32_t>(8 * half + (this->lane() >> 2U)));
#pragma unroll
      for (int k = 0; k < 18; ++k) this->load_query(query_[k], row, half, k % 9, slice(k));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out_[i][0] = out_[i][1] = out_[i][2] = out_[i][3] = 0.0F;
    exponent_ = Base::kNoExponent;
    peak_[0] = peak_[1] = -INFINITY;
    total_[0] = total_[1] = 0.0F;
    for (; tile_ < tile_end_; tile_ += 2) {
      this->forget();
      const bool two = tile_ + 1 < tile_end_;
      std::uint32_t bad = 0;
      barrier_wait(this->full(at_), Base::parity(at_));
      if (two) barrier_wait(this->full(at_ + 1), Base::parity(at_ + 1));
      if (this->masked(tile_ + 1) || !two) {
        const auto row = static_cast<std::int32_t>(this->lane() >> 2U);
        if (this->masked(tile_) || !two) {
          this->clean_stage(at_);
          bad = this->bad_tokens();
        }
        this->note_seen(tile_, row, 0);
        if (two) {
          this->clean_stage(at_ + 1);
          bad |= this->bad_tokens() << 16U;
          this->note_seen(tile_ + 1, row, 16);
        } else {
          this->note_none(16);
        }
      }
      float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      if (two || octet() < 2) score_tile(this->stage(at_ + (octet() >> 1U)), sum);
      // All have read the scores of the step before, for which they had the time of a product.
      this->sync_math();
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(exchange_at() +
                                                                 512U * (4U * part() + octet())),
                   "f"(sum[0]), "f"(sum[1]), "f"(sum[2]), "f"(sum[3])
                   : "memory");
      this->sync_math();
      attend(bad, two);
      __syncwarp();
      if (this->lane() == 0) {
        barrier_arrive(this->empty(at_));
        if (two) barrier_arrive(this->empty(at_ + 1));
      }
      at_ += two ? 2 : 1;
    }
    finish_piece();
  }

  /// Partial scores of the warp's 8 tokens over its half of the head dimension.
  __device__ void score_tile(std::uint32_t stage, float (&sum)[4]) {
    const std::uint32_t tokens = stage + 8U * (octet() & 1U) * kPitch;
    // Three sums, so that products need not wait for each other.
    float s[3][4] = {};
    float rope[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t slice = 2U * part() + static_cast<std::uint32_t>(h);
      if constexpr (kTileScales) {
#pragma unroll
        for (int i = 0; i < 3; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0F;
      }
      score_latent(tokens, h, slice, s);
      if constexpr (kTileScales) {
        const std::uint32_t token = 8U * (octet() & 1U) + 2U * (this->lane() & 3U);
        const float scale0 = this->tile_scale(stage, token, slice);
        const float scale1 = this->tile_scale(stage, token + 1U, slice);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sum[j] += (s[0][j] + s[1][j] + s[2][j]) * ((j & 1) != 0 ? scale1 : scale0);
      }
    }
    if (args_.params.rope_dim != 0) score_rope(tokens, rope);
    if constexpr (!kTileScales) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] = s[0][j] + s[1][j] + s[2][j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] += rope[j];
  }

  __device__ void score_latent(std::uint32_t tokens, int h, std::uint32_t slice, float (&s)[3][4]) {
    std::uint32_t b[4];
    if constexpr (kEightBit) {
      const std::uint32_t row =
          tokens + (this->lane() >> 2U) * kPitch + 128U * slice + 16U * (this->lane() & 3U);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_shared_16(b, row + 64U * static_cast<std::uint32_t>(i));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply_add(Math{}, s[(4 * i + j) % 3], query_[9 * h + 4 * i + j],
                       widen_e4m3(b[j] & 0xFFFFU), widen_e4m3(b[j] >> 16U));
        }
      }
    } else {
      const std::uint32_t row =
          tokens + (this->lane() & 7U) * kPitch + 256U * slice + 16U * (this->lane() >> 3U);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_matrices(b, row + 64U * static_cast<std::uint32_t>(i));
        multiply_add(Math{}, s[(2 * i) % 3], query_[9 * h + 2 * i], b[0], b[1]);
        multiply_add(Math{}, s[(2 * i + 1) % 3], query_[9 * h + 2 * i + 1], b[2], b[3]);
      }
    }
  }

  /// The 32 rope values of the half: two steps.
  __device__ void score_rope(std::uint32_t tokens, float (&sum)[4]) {
    std::uint32_t b[4];
    if constexpr (type == KvType::e4m3) {
#pragma unroll
      for (std::uint32_t h = 0; h < 2; ++h) {
        std::uint32_t bytes;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(bytes)
                     : "r"(tokens + (this->lane() >> 2U) * kPitch + kRopeAt +
                           16U * (2U * part() + h) + 4U * (this->lane() & 3U))
                     : "memory");
        b[2 * h] = widen_e4m3(bytes & 0xFFFFU);
        b[2 * h + 1] = widen_e4m3(bytes >> 16U);
      }
    } else {
      load_matrices(b, tokens + (this->lane() & 7U) * kPitch + kRopeAt + 64U * part() +
                           16U * (this->lane() >> 3U));
      if constexpr (kTileScales) {
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = bf16_to_fp16(b[j]);
      }
    }
    multiply_add(Math{}, sum, query_[8], b[0], b[1]);
    multiply_add(Math{}, sum, query_[17], b[2], b[3]);
  }

  __device__ std::uint32_t exchange_at() const {
    return this->exchange_buffer() + 16U * this->lane();
  }

  /// The softmax step and the product with V for the current step.
  __device__ void attend(std::uint32_t bad, bool two) {
    float s[4][4];
#pragma unroll
    for (std::uint32_t n = 0; n < 4; ++n) {
      float x[4];
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(s[n][0]), "=f"(s[n][1]), "=f"(s[n][2]), "=f"(s[n][3])
                   : "r"(exchange_at() + 512U * n)
                   : "memory");
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(exchange_at() + 512U * (n + 4U))
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] += x[j];
    }
    this->finish_scores(s);
    if (this->masked(tile_ + 1) || !two) {
      const uint2 seen = this->seen_tokens();
      this->mask_row(s, 0, seen.x, bad);
      this->mask_row(s, 1, seen.y, bad);
    }
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) soften(s, half, &factor[half]);
    std::uint32_t weights[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights[i][0] = pack(Math{}, s[2 * i][0], s[2 * i][1]);
      weights[i][1] = pack(Math{}, s[2 * i][2], s[2 * i][3]);
      weights[i][2] = pack(Math{}, s[2 * i + 1][0], s[2 * i + 1][1]);
      weights[i][3] = pack(Math{}, s[2 * i + 1][2], s[2 * i + 1][3]);
    }
    accumulate(this->stage(at_), weights[0], factor[0], factor[1]);
    if (two) accumulate(this->stage(at_ + 1), weights[1], 1.0F, 1.0F);
  }

  __device__ void soften(float (&s)[4][4], int half, float* factor) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = row_max(top);
    *factor = 1.0F;
    if (top > peak_[half] + kSlack) {
      *factor = peak_[half] == -INFINITY ? 1.0F : exp2_fast(peak_[half] - top);
      peak_[half] = top;
      total_[half] *= *factor;
    }
    const float base = peak_[half] == -INFINITY ? 0.0F : peak_[half] - kShift;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      s[n][2 * half] = exp2_fast(s[n][2 * half] - base);
      s[n][2 * half + 1] = exp2_fast(s[n][2 * half + 1] - base);
      total_[half] += s[n][2 * half] + s[n][2 * half + 1];
    }
  }

  /// Adds weights * V of 16 tokens, after rescaling what is there.
  __device__ void accumulate(std::uint32_t stage, std::uint32_t (&weights)[4], float factor0,
                             float factor1) {
    if constexpr (kTileScales) {
      const float unit = this->scale_weights(weights, stage, this->warp() >> 1U, exponent_);
      factor0 *= unit;
      factor1 *= unit;
    }
    if (__any_sync(kAll, factor0 != 1.0F || factor1 != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][j] *= j < 2 ? factor0 : factor1;
      }
    }
    const std::uint32_t row = stage + (this->lane() & 15U) * kPitch + (this->lane() >> 4U) * 16U;
    if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        std::uint32_t b[4];
        load_matrices_transposed(b, row + 64U * this->warp() + 32U * i);
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
      std::uint32_t b[4][4];
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i)
        load_matrices_transposed(b[i], row + 128U * this->warp() + 32U * i);
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        multiply_add(Math{}, out_[2 * i], weights, b[i][0], b[i][1]);
        multiply_add(Math{}, out_[2 * i + 1], weights, b[i][2], b[i][3]);
      }
    }
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_sum(total_[half]);
      const float scale = total == 0.0F ? 0.0F : this->value_scale(exponent_) / total;
      const auto row = static_cast<std::int32_t>(8 * half + (this->lane() >> 2U));
      if (this->warp() == 0 && (this->lane() & 3U) == 0) {
        const float lse = total == 0.0F ? -INFINITY : peak_[half] - kShift + log2f(total);
        this->store_lse(row, whole, lse);
      }
      const auto to = this->target(row, whole);
      if (to.out == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        this->store_columns(to, 64U * this->warp(), i, half, out_[2 * i], out_[2 * i + 1], scale);
    }
  }

  std::uint32_t at_{0};  ///< tile of the share
  std::uint32_t query_[18][4];
  float out_[8][4];
  std::int32_t exponent_;
  float peak_[2];
  float total_[2];
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy{type, MlaShape::few_rows}.threads(), 1)
    few_rows_kernel(const __grid_constant__ MlaArgs args) {
  FewRows<type> worker(args);
  worker.run();
}

}  // namespace packstone::kernels::mla
