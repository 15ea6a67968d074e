// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for many rows: 64 a block, 8 warps as four groups of 16 rows by two halves of the
/// head dimension (256 latent and 32 rope values each). A warp keeps its part of Q and of the
/// output in registers. The two warps of a group add up their partial scores through shared memory
/// and take the same softmax step, the online one in base 2; a row's peak follows the scores only
/// when they pass it by 2^8 (as in FlashAttention-4), so that outputs are seldom rescaled. All
/// warps copy rows; they look up rows in turn.

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
  __device__ explicit ManyRows(const MlaArgs& args) : Base(args) {}

  __device__ void run() {
    if (!this->begin_share()) return;
    fill_ring();
    const std::uint32_t lane = this->lane();
    key_at_ = find_key(lane);
    value_at_ = find_value(lane);
    do {
      run_piece();
    } while (this->next_piece());
  }

 private:
  static constexpr std::uint32_t kHalfBytes = kEightBit ? 256 : 512;
  static constexpr std::uint32_t kCopyRows = kTile / 8;

  __device__ std::uint32_t group() const { return this->warp() & 3U; }
  __device__ std::uint32_t half() const { return this->warp() >> 2U; }
  /// Where registers do not reach for both addresses, one is found anew in each tile.
  static constexpr bool kKeyAnew = type == KvType::fp16;
  static constexpr bool kValueAnew = type == KvType::e4m3_tile;
  __device__ std::uint32_t find_key(std::uint32_t lane) const {
    return this->shared() + ((lane & 7U) + ((lane >> 4U) << 3U)) * kPitch +
           ((lane >> 3U) & 1U) * 16U + kHalfBytes * half();
  }
  __device__ std::uint32_t find_value(std::uint32_t lane) const {
    return this->shared() + (lane & 15U) * kPitch + (lane >> 4U) * 16U + kHalfBytes * half();
  }

  /// Copies all tiles but one of the ring, and looks up the rows of that one. One tile a warp, each
  /// with its own cursor for once.
  __device__ void fill_ring() {
    if (this->warp() < kStages && this->warp() < this->tiles_of_share()) {
      if (this->lane() == 0) this->step_ahead(this->now(), this->warp());
      __syncwarp();
      store_places(this->warp(), this->find_rows(this->now(), 0));
    }
    __syncthreads();
    if (this->lane() == 0) this->now() = this->ahead();
    __syncthreads();
    if (threadIdx.x == 0) this->step_ahead(this->ahead(), kStages);
    for (std::uint32_t tile = 0; tile + 1 < kStages && tile < this->tiles_of_share(); ++tile)
      copy_own_rows(tile);
  }

  __device__ void run_piece() {
    this->start_piece();
    start_rows();
    for (; tile_ < tile_end_; ++tile_) {
      this->forget();
      barrier_wait(this->full(at_), Base::parity(at_));
      if (this->masked(tile_)) {
        this->clean_stage(at_);
        this->note_seen(tile_, first_row(), 0);
      }
      float s[4][4];
      score_tile(s);
      PendingRow row{PendingRow::none, 0};
      if (finds()) row = this->find_rows(this->ahead(), 1);
      this->forget();
      exchange(s);
      std::uint32_t weights[2][4];
      soften(s, weights);
      this->forget();
      accumulate(weights);
      if (finds()) store_places(at_ + kStages, row);
      __syncwarp();
      if (this->lane() == 0) barrier_arrive(this->empty(at_));
      ++at_;
    }
    finish_piece();
  }

  /// Whether it is the warp's turn to look up rows, and there are any to come.
  __device__ bool finds() const {
    return this->warp() == (at_ & 7U) && at_ + kStages < this->tiles_of_share();
  }
  __device__ std::int32_t first_row() const {
    return static_cast<std::int32_t>(16U * group() + (this->lane_anew() >> 2U));
  }

  __device__ void start_rows() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const char* row = this->query_of(first_row() + 8 * h);
#pragma unroll
      for (int k = 0; k < 16; ++k)
        this->load_query(query_[k], row, h, k % 8, 2U * half() + (k >= 8 ? 1U : 0U));
      this->load_query(query_[16], row, h, 8, 2U * half());
      this->load_query(query_[17], row, h, 8, 2U * half() + 1U);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) out_[i][0] = out_[i][1] = out_[i][2] = out_[i][3] = 0.0F;
    exponent_[0] = exponent_[1] = Base::kNoExponent;
    peak_[0] = peak_[1] = -INFINITY;
    total_[0] = total_[1] = 0.0F;
  }

  /// Refills the stage that the tile before the current one has left. Waiting for all warps to
  /// leave it also orders lookups and places: who stores them arrives there afterwards.
  __device__ void copy_ahead() {
    const std::uint32_t next = at_ + kStages - 1;
    if (next >= this->tiles_of_share()) return;
    if (at_ > 0) barrier_wait(this->empty(at_ - 1), Base::parity(at_ - 1));
    copy_own_rows(next);
  }
  /// All warps copy: a bulk copy takes a warp tens of cycles to issue, one lane after the other.
  __device__ void copy_own_rows(std::uint32_t tile) {
    RowPlace place{nullptr, nullptr};
    const std::uint32_t lane = this->lane();
    if (lane < kCopyRows) place = places(tile)[kCopyRows * this->warp() + lane];
    copy_rows<type, kCopyRows>(args_, place, kCopyRows * this->warp(), this->stage(tile),
                               this->full(tile));
  }
  __device__ static RowPlace* places(std::uint32_t tile) {
    return reinterpret_cast<RowPlace*>(Base::small_memory() + SmallMap::kPlaces) +
           kTile * (tile & 7U);
  }
  __device__ void store_places(std::uint32_t tile, const PendingRow& row) {
    places(tile)[this->lane()] = place_of<type>(args_, row);
    __syncwarp();
  }

  /// Partial scores of the group's rows over the half. In the middle, when the others have surely
  /// left the tile before, the warp copies its rows of a tile to come.
  __device__ void score_tile(float (&s)[4][4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0F;
    const std::uint32_t offset = at_ % kStages * Base::kStageBytes;
    if constexpr (kTileScales) {
      score_scaled(s, offset);
      copy_ahead();
    } else if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (i == 2) copy_ahead();
#pragma unroll
        for (std::uint32_t n = 0; n < 4; ++n) score_packed(s[n], offset, i, n);
      }
    } else {
      const std::uint32_t from = (kKeyAnew ? find_key(this->lane_anew()) : key_at_) + offset;
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k) {
        if (k == 8) copy_ahead();
        std::uint32_t b[2][4];
        load_matrices(b[0], from + 32U * k);
        load_matrices(b[1], from + 32U * k + 16U * kPitch);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          multiply_add(Math{}, s[2 * n], query_[k], b[n][0], b[n][1]);
          multiply_add(Math{}, s[2 * n + 1], query_[k], b[n][2], b[n][3]);
        }
      }
    }
    if (args_.params.rope_dim != 0) score_rope(s, offset);
  }

  /// 64 values of 8 tokens, 16 adjacent bytes a lane.
  __device__ void score_packed(float (&s)[4], std::uint32_t offset, std::uint32_t i,
                               std::uint32_t n) {
    const std::uint32_t lane = this->lane();
    std::uint32_t b[4];
    load_shared_16(b, this->shared() + offset + (8U * n + (lane >> 2U)) * kPitch + 256U * half() +
                          64U * i + 16U * (lane & 3U));
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      multiply_add(Math{}, s, query_[4 * i + j], widen_e4m3(b[j] & 0xFFFFU),
                   widen_e4m3(b[j] >> 16U));
    }
  }
  /// The two slices have scales of their own, which differ by token.
  __device__ void score_scaled(float (&s)[4][4], std::uint32_t offset) {
#pragma unroll
    for (std::uint32_t slice = 0; slice < 2; ++slice) {
#pragma unroll
      for (std::uint32_t n = 0; n < 4; n += 2) {
        float part[2][4] = {};
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i) {
          score_packed(part[0], offset, 2 * slice + i, n);
          score_packed(part[1], offset, 2 * slice + i, n + 1);
        }
#pragma unroll
        for (std::uint32_t m = 0; m < 2; ++m) {
          const std::uint32_t token = 8U * (n + m) + 2U * (this->lane() & 3U);
          const std::uint32_t stage = this->shared() + offset;
          const float scale0 = this->tile_scale(stage, token, 2U * half() + slice);
          const float scale1 = this->tile_scale(stage, token + 1U, 2U * half() + slice);
#pragma unroll
          for (int j = 0; j < 4; ++j)
            s[n + m][j] = fmaf(part[m][j], (j & 1) != 0 ? scale1 : scale0, s[n + m][j]);
        }
      }
    }
  }

  __device__ void score_rope(float (&s)[4][4], std::uint32_t offset) {
    const std::uint32_t lane = this->lane();
#pragma unroll
    for (std::uint32_t h = 0; h < 2; ++h) {
#pragma unroll
      for (std::uint32_t n = 0; n < 2; ++n) {
        std::uint32_t b[4];
        if constexpr (type == KvType::e4m3) {
#pragma unroll
          for (std::uint32_t m = 0; m < 2; ++m) {
            std::uint32_t bytes;
            asm volatile("ld.shared.u32 %0, [%1];"
                         : "=r"(bytes)
                         : "r"(this->shared() + offset +
                               (16U * n + 8U * m + (lane >> 2U)) * kPitch + kRopeAt +
                               16U * (2U * half() + h) + 4U * (lane & 3U))
                         : "memory");
            b[2 * m] = widen_e4m3(bytes & 0xFFFFU);
            b[2 * m + 1] = widen_e4m3(bytes >> 16U);
          }
        } else {
          load_matrices(b, (kKeyAnew ? find_key(this->lane_anew()) : key_at_) + offset +
                               16U * n * kPitch + kRopeAt + (64U - kHalfBytes) * half() + 32U * h);
          if constexpr (kTileScales) {
#pragma unroll
            for (int j = 0; j < 4; ++j) b[j] = bf16_to_fp16(b[j]);
          }
        }
        multiply_add(Math{}, s[2 * n], query_[16 + h], b[0], b[1]);
        multiply_add(Math{}, s[2 * n + 1], query_[16 + h], b[2], b[3]);
      }
    }
  }

  /// Adds the other half's scores: 16 bytes a lane, lane by lane. Two barriers of the pair: the
  /// first lets the buffer be written again, the second tells that it is.
  __device__ void exchange(float (&s)[4][4]) {
    const std::uint32_t own = this->exchange_buffer() + 2048U * this->warp() + 16U * this->lane();
    const std::uint32_t other = half() == 0 ? own + 8192U : own - 8192U;
    pair_sync(5U + 2U * group());
#pragma unroll
    for (std::uint32_t n = 0; n < 4; ++n) {
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(own + 512U * n), "f"(s[n][0]),
                   "f"(s[n][1]), "f"(s[n][2]), "f"(s[n][3])
                   : "memory");
    }
    pair_sync(6U + 2U * group());
#pragma unroll
    for (std::uint32_t n = 0; n < 4; ++n) {
      float x[4];
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(other + 512U * n)
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] += x[j];
    }
  }
  __device__ static void pair_sync(std::uint32_t barrier) {
    asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
  }

  __device__ void soften(float (&s)[4][4], std::uint32_t (&weights)[2][4]) {
    this->finish_scores(s);
    if (this->masked(tile_)) {
      const uint2 seen = this->seen_tokens();
      const std::uint32_t bad = this->bad_tokens();
      this->mask_row(s, 0, seen.x, bad);
      this->mask_row(s, 1, seen.y, bad);
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      top = row_max(top);
      factor[h] = 1.0F;
      if (top > peak_[h] + kSlack) {
        factor[h] = peak_[h] == -INFINITY ? 1.0F : exp2_fast(peak_[h] - top);
        peak_[h] = top;
        total_[h] *= factor[h];
      }
    }
    if (__any_sync(kAll, factor[0] != 1.0F || factor[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][j] *= factor[j / 2];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = peak_[h] == -INFINITY ? 0.0F : peak_[h] - kShift;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float x = exp2_fast(s[n][2 * h] - base);
        const float y = exp2_fast(s[n][2 * h + 1] - base);
        total_[h] += x + y;
        weights[n / 2][2 * (n % 2) + h] = pack(Math{}, x, y);
      }
    }
  }

  /// Adds weights * V for the half's columns.
  __device__ void accumulate(const std::uint32_t (&weights)[2][4]) {
    const std::uint32_t offset = at_ % kStages * Base::kStageBytes;
    const std::uint32_t from = (kValueAnew ? find_value(this->lane_anew()) : value_at_) + offset;
    if constexpr (kTileScales) {
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        accumulate_scaled<0>(weights[i], from + 16U * i * kPitch, offset + 16U * i * kPitch);
        accumulate_scaled<1>(weights[i], from + 16U * i * kPitch, offset + 16U * i * kPitch);
      }
    } else if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i)
        accumulate_packed<0, 8>(weights[i], from + 16U * i * kPitch);
    } else {
      // Four loads, then their eight products: the assembler moves products ahead of loads that
      // they do not need, and so would undo a finer pipeline, at the price of a wait for each load.
#pragma unroll
      for (std::uint32_t step = 0; step < 8; ++step) {
        const std::uint32_t at = from + step / 4 * 16U * kPitch + 128U * (step % 4);
        std::uint32_t b[4][4];
#pragma unroll
        for (std::uint32_t n = 0; n < 4; ++n) load_matrices_transposed(b[n], at + 32U * n);
        __syncwarp();
#pragma unroll
        for (std::uint32_t n = 0; n < 4; ++n) {
          const std::uint32_t column = 8 * (step % 4) + 2 * n;
          multiply_add(Math{}, out_[column], weights[step / 4], b[n][0], b[n][1]);
          multiply_add(Math{}, out_[column + 1], weights[step / 4], b[n][2], b[n][3]);
        }
      }
    }
  }
  /// Blocks of 32 columns.
  template <int first, int last>
  __device__ void accumulate_packed(const std::uint32_t (&weights)[4], std::uint32_t from) {
#pragma unroll
    for (int c = first; c < last; ++c) {
      std::uint32_t b[4];
      load_matrices_transposed(b, from + 32U * static_cast<std::uint32_t>(c));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
          const std::uint32_t pick = odd == 0 ? 0x4420U : 0x4431U;
          multiply_add(Math{}, out_[4 * c + 2 * j + odd], weights,
                       widen_e4m3(__byte_perm(b[2 * j], 0, pick)),
                       widen_e4m3(__byte_perm(b[2 * j + 1], 0, pick)));
        }
      }
    }
  }
  template <int slice>
  __device__ void accumulate_scaled(const std::uint32_t (&weights)[4], std::uint32_t from,
                                    std::uint32_t offset) {
    std::uint32_t scaled[4] = {weights[0], weights[1], weights[2], weights[3]};
    const float factor =
        this->scale_weights(scaled, this->shared() + offset, 2U * half() + slice, exponent_[slice]);
    if (factor != 1.0F) {
#pragma unroll
      for (int i = 16 * slice; i < 16 * slice + 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out_[i][j] *= factor;
      }
    }
    accumulate_packed<4 * slice, 4 * slice + 4>(scaled, from);
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = row_sum(total_[h]);
      const float scale = total == 0.0F ? 0.0F : 1.0F / total;
      const std::uint32_t lane = this->lane_anew();
      const auto row = static_cast<std::int32_t>(16U * group() +
                                                 8U * static_cast<std::uint32_t>(h) + (lane >> 2U));
      if (half() == 0 && (lane & 3U) == 0) {
        const float lse = total == 0.0F ? -INFINITY : peak_[h] - kShift + log2f(total);
        this->store_lse(row, whole, lse);
      }
      const auto to = this->target(row, whole);
      if (to.out == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        this->store_columns(to, 256U * half(), i, h, out_[2 * i], out_[2 * i + 1],
                            scale * this->value_scale(exponent_[i / 8]));
      }
    }
  }

  std::uint32_t key_at_;    ///< of the lane's row of 8 x 8 matrices of K in stage 0, ...
  std::uint32_t value_at_;  ///< ... and of V
  std::uint32_t at_{0};     ///< tile of the share
  std::uint32_t query_[18][4];
  float out_[32][4];
  std::int32_t exponent_[2];  ///< of the two slices, for rows with scales
  float peak_[2];
  float total_[2];
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kMathThreads, 1)
    many_rows_kernel(const __grid_constant__ MlaArgs args) {
  ManyRows<type> worker(args);
  worker.run();
}

}  // namespace packstone::kernels::mla
