// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The arithmetic of both MLA kernels: a pair of warps for 16 rows, each with half of the head
/// dimension (256 latent and 32 rope values), whose part of Q and of the output it keeps in
/// registers. The two add up their partial scores through shared memory and take the same softmax
/// step, the online one in base 2; what a row's exponents are counted from follows the
/// scores only when they pass it by 2^8 (as in FlashAttention-4), so that outputs are seldom
/// rescaled. Eight warps are four pairs: of 64 rows over the same tile, or of the same rows over
/// tiles in turn.

#include "kernels/mla_results.cuh"

#include <cfloat>
#include <cstdint>

namespace packstone::kernels::mla {

template <KvType type, MlaShape shape>
class Pairs : public Results<type, shape> {
 protected:
  using Base = Walk<type, shape>;
  using Base::args_;
  using Base::kAll;
  using Base::kEightBit;
  using Base::kPitch;
  using Base::kRoom;
  using Base::kRopeAt;
  using Base::kShift;
  using Base::kStages;
  using Base::kTile;
  using Base::kTileScales;
  using typename Base::Math;

  static constexpr std::uint32_t kHalfBytes = kEightBit ? 256 : 512;
  static constexpr int kOctets = kTile / 8;  ///< of tokens: columns of score products
  /// Sums of score products, so that a product need not wait for the one before: four in all.
  static constexpr int kSums = 4 / kOctets;
  /// Scores of 16 rows and a tile, as the products give them.
  using Scores = float[kOctets][4];
  using Weights = std::uint32_t[kOctets / 2][4];

  __device__ explicit Pairs(const MlaArgs& args) : Results<type, shape>(args) {}

  using Base::half;
  using Base::pair;
  /// Finds the lane's addresses; before anything else here.
  __device__ void find_addresses() {
    const std::uint32_t lane = this->lane();
    key_at_ = find_key(lane);
    value_at_ = find_value(lane);
  }
  /// First of the pair's rows in the segment.
  __device__ std::uint32_t rows_from() const {
    return shape == MlaShape::few_rows ? 0U : 16U * pair();
  }
  __device__ std::int32_t first_row() const {
    return static_cast<std::int32_t>(rows_from() + (this->lane_anew() >> 2U));
  }

  /// Where the query of the pair's row `lane` % 16 is.
  __device__ const char* own_query() const {
    return this->query_of(static_cast<std::int32_t>(rows_from() + (this->lane_anew() & 15U)));
  }
  __device__ void start_rows(const char* own) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const char* row = this->of_row(own, h);
#pragma unroll
      for (int k = 0; k < 16; ++k)
        this->load_query(query_[k], row, h, k % 8, 2U * half() + (k >= 8 ? 1U : 0U));
      this->load_query(query_[16], row, h, 8, 2U * half());
      this->load_query(query_[17], row, h, 8, 2U * half() + 1U);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) out_[i][0] = out_[i][1] = out_[i][2] = out_[i][3] = 0.0F;
    exponent_[0] = exponent_[1] = Base::kNoExponent;
    base_[0] = base_[1] = -INFINITY;
    total_[0] = total_[1] = 0.0F;
  }

  /// Partial scores of the pair's rows over the half. `midway` is called in the middle.
  template <typename Midway>
  __device__ void score_tile(Scores& s, Midway&& midway) {
#pragma unroll
    for (int n = 0; n < kOctets; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0F;
    const std::uint32_t offset = at_ % kStages * Base::kStageBytes;
    if constexpr (kTileScales) {
      score_scaled(s, offset);
      midway();
      if (args_.params.rope_dim != 0) score_rope(s, offset);
      return;
    }
    Scores more[kSums - 1 > 0 ? kSums - 1 : 1] = {};
    const auto sums = [&](std::uint32_t k) -> Scores& {
      return kSums == 1 || k % kSums == 0 ? s : more[0];
    };
    if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (i == 2) midway();
#pragma unroll
        for (std::uint32_t n = 0; n < kOctets; n += 2)
          score_packed<2>(s + n, sums(1) + n, offset, i, n);
      }
    } else {
      const std::uint32_t from = (kKeyAnew ? find_key(this->lane_anew()) : key_at_) + offset;
#pragma unroll
      for (std::uint32_t k = 0; k < 16; ++k) {
        if (k == 8) midway();
        std::uint32_t b[kOctets / 2][4];
#pragma unroll
        for (std::uint32_t n = 0; n < kOctets / 2; ++n)
          load_matrices(b[n], from + 32U * k + 16U * n * kPitch);
#pragma unroll
        for (int n = 0; n < kOctets / 2; ++n) {
          multiply_add(Math{}, sums(k)[2 * n], query_[k], b[n][0], b[n][1]);
          multiply_add(Math{}, sums(k)[2 * n + 1], query_[k], b[n][2], b[n][3]);
        }
      }
    }
    if (args_.params.rope_dim != 0) score_rope(s, offset);
    if constexpr (kSums > 1) {
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s[n][j] += more[0][n][j];
      }
    }
  }

  /// 64 values of 8 tokens from 8 n on, or of 16, 16 adjacent bytes a lane; `s` and `t` take
  /// products in turn.
  template <int octets>
  __device__ void score_packed(float (*s)[4], float (*t)[4], std::uint32_t offset, std::uint32_t i,
                               std::uint32_t n) {
    const std::uint32_t lane = this->lane();
    const std::uint32_t from = this->shared() + offset + (8U * n + (lane >> 2U)) * kPitch +
                               256U * half() + 64U * i + 16U * (lane & 3U);
    std::uint32_t b[octets][4];
#pragma unroll
    for (std::uint32_t m = 0; m < octets; ++m) load_shared_16(b[m], from + 8U * m * kPitch);
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
#pragma unroll
      for (int m = 0; m < octets; ++m)
        multiply_add(Math{}, (j & 1) != 0 ? t[m] : s[m], query_[4 * i + j], widen_low(b[m][j]),
                     widen_high(b[m][j]));
    }
  }
  /// The two slices have scales of their own, which differ by token.
  __device__ void score_scaled(Scores& s, std::uint32_t offset) {
#pragma unroll
    for (std::uint32_t slice = 0; slice < 2; ++slice) {
#pragma unroll
      for (std::uint32_t n = 0; n < kOctets; n += 2) {
        float part[2][4] = {};
#pragma unroll
        for (std::uint32_t i = 0; i < 2; ++i) {
          if constexpr (shape == MlaShape::few_rows) {
            score_packed<2>(part, part, offset, 2 * slice + i, n);
          } else {  // registers reach for one at a time
            score_packed<1>(part, part, offset, 2 * slice + i, n);
            score_packed<1>(part + 1, part + 1, offset, 2 * slice + i, n + 1);
          }
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

  __device__ void score_rope(Scores& s, std::uint32_t offset) {
    const std::uint32_t lane = this->lane();
#pragma unroll
    for (std::uint32_t h = 0; h < 2; ++h) {
#pragma unroll
      for (std::uint32_t n = 0; n < kOctets / 2; ++n) {
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
            b[2 * m] = widen_low(bytes);
            b[2 * m + 1] = widen_high(bytes);
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

  /// Rows of 16 bits have their own place for scores in exchange where tiles take all memory: the
  /// rope part of the half, which only the writing warp reads.
  static constexpr bool kInRope = Base::policy.exchange_bytes() == 0;
  static_assert(!kInRope || (!kEightBit && kTile == 16));
  __device__ std::uint32_t exchange_place(std::uint32_t of_half) const {
    const std::uint32_t lane = this->lane();
    if constexpr (kInRope) {
      return this->stage(at_) + (lane & 7U) * kPitch + kRopeAt + 64U * of_half + 16U * (lane >> 3U);
    } else {
      return this->exchange_buffer() + 64U * kTile * (2U * pair() + of_half) + 16U * lane;
    }
  }

  /// Adds the other half's scores, 16 bytes a lane. The other warp has long read what was there.
  __device__ void exchange(Scores& s) {
    constexpr std::uint32_t kStep = kInRope ? 8U * kPitch : 512U;
    const std::uint32_t own = exchange_place(half());
    const std::uint32_t other = exchange_place(half() ^ 1U);
    if constexpr (kInRope) __syncwarp();  // all lanes have read the rope part
#pragma unroll
    for (std::uint32_t n = 0; n < kOctets; ++n) {
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(own + kStep * n), "f"(s[n][0]),
                   "f"(s[n][1]), "f"(s[n][2]), "f"(s[n][3])
                   : "memory");
    }
    this->sync_pair();
#pragma unroll
    for (std::uint32_t n = 0; n < kOctets; ++n) {
      float x[4];
      asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(other + kStep * n)
                   : "memory");
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] += x[j];
    }
  }

  __device__ void soften(Scores& s, Weights& weights) {
    this->forget();  // e4m3 with four scales would else be short of registers
    this->finish_scores(s);
    if (this->masked(at_)) {
      const uint2 seen = this->seen_tokens();
      const std::uint32_t bad = this->bad_tokens();
      this->mask_row(s, 0, seen.x, bad);
      this->mask_row(s, 1, seen.y, bad);
    }
    const float scale = args_.exponent_scale;
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < kOctets; ++n) top[h] = fmaxf(top[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    }
    if (__any_sync(kAll, top[0] * scale > base_[0] + kRoom || top[1] * scale > base_[1] + kRoom)) {
      follow(top);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = base_[h] == -INFINITY ? 0.0F : base_[h];
#pragma unroll
      for (int n = 0; n < kOctets; ++n) {
        const float x = exp2_fast(fmaf(s[n][2 * h], scale, -base));
        const float y = exp2_fast(fmaf(s[n][2 * h + 1], scale, -base));
        total_[h] += x + y;
        weights[n / 2][2 * (n % 2) + h] = pack(Math{}, x, y);
      }
    }
  }

  /// Lets the bases follow where scores leave the room above them.
  __device__ void follow(const float (&top)[2]) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // An infinite base would give every score the weight 0 instead of NaN.
      const float all = fminf(row_max(top[h] * args_.exponent_scale), FLT_MAX);
      factor[h] = 1.0F;
      if (all > base_[h] + kRoom) {
        const float next = all - kShift;
        factor[h] = exp2_fast(base_[h] - next);
        base_[h] = next;
        total_[h] *= factor[h];
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out_[i][j] *= factor[j / 2];
    }
  }

  /// Adds weights * V for the half's columns.
  __device__ void accumulate(const Weights& weights) {
    const std::uint32_t offset = at_ % kStages * Base::kStageBytes;
    const std::uint32_t from = (kValueAnew ? find_value(this->lane_anew()) : value_at_) + offset;
    if constexpr (kTileScales) {
#pragma unroll
      for (std::uint32_t i = 0; i < kOctets / 2; ++i) {
        accumulate_scaled<0>(weights[i], from + 16U * i * kPitch, offset + 16U * i * kPitch);
        accumulate_scaled<1>(weights[i], from + 16U * i * kPitch, offset + 16U * i * kPitch);
      }
    } else if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t i = 0; i < kOctets / 2; ++i)
        accumulate_packed<0, 8>(weights[i], from + 16U * i * kPitch);
    } else {
      // Four loads, then their eight products: the assembler moves products ahead of loads that
      // they do not need, and so would undo a finer pipeline, at the price of a wait for each load.
#pragma unroll
      for (std::uint32_t step = 0; step < 4 * (kOctets / 2); ++step) {
        const std::uint32_t at = from + step / 4 * 16U * kPitch + 128U * (step % 4);
        std::uint32_t b[4][4];
#pragma unroll
        for (std::uint32_t n = 0; n < 4; ++n) load_matrices_transposed(b[n], at + 32U * n);
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
        // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
        const std::uint32_t low = __byte_perm(b[2 * j], 0, 0x3120U);
        const std::uint32_t high = __byte_perm(b[2 * j + 1], 0, 0x3120U);
        multiply_add(Math{}, out_[4 * c + 2 * j], weights, widen_low(low), widen_low(high));
        multiply_add(Math{}, out_[4 * c + 2 * j + 1], weights, widen_high(low), widen_high(high));
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

  std::uint32_t key_at_;    ///< of the lane's row of 8 x 8 matrices of K in stage 0, ...
  std::uint32_t value_at_;  ///< ... and of V
  std::uint32_t at_{0};     ///< tile of the share
  std::uint32_t query_[18][4];
  float out_[32][4];
  std::int32_t exponent_[2];  ///< of the two slices, for rows with scales
  float base_[2];             ///< what exponents of a row's weights are counted from
  float total_[2];            ///< sums of the lane's weights

 private:
  /// Where registers do not reach for both addresses, one or both are found anew in each tile.
  static constexpr bool kAnew = shape == MlaShape::many_rows && type != KvType::bf16;
  static constexpr bool kKeyAnew = kAnew;
  static constexpr bool kValueAnew = shape == MlaShape::many_rows || kTileScales;
  __device__ std::uint32_t find_key(std::uint32_t lane) const {
    return this->shared() + ((lane & 7U) + ((lane >> 4U) << 3U)) * kPitch +
           ((lane >> 3U) & 1U) * 16U + kHalfBytes * half();
  }
  __device__ std::uint32_t find_value(std::uint32_t lane) const {
    return this->shared() + (lane & 15U) * kPitch + (lane >> 4U) * 16U + kHalfBytes * half();
  }
};

}  // namespace packstone::kernels::mla
