// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the results of a piece go, and how: to the output, or to a partial to be merged. Its code
/// runs once a piece and mostly comes from memory, slowly when that is busy, so it is kept short:
/// an address or two a lane, one straight line of stores for each format.

#include "kernels/mla_walk.cuh"

#include <cstdint>
#include <type_traits>

namespace packstone::kernels::mla {

template <KvType type, MlaShape shape>
class Results : public Walk<type, shape> {
 protected:
  using Base = Walk<type, shape>;
  using Base::args_;
  using Base::kEightBit;
  using Base::kTileScales;

  __device__ explicit Results(const MlaArgs& args) : Base(args) {}

  __device__ bool whole() const {
    return this->now().tile == 0 &&
           static_cast<std::int32_t>(this->piece_tiles()) == this->now().line.tiles;
  }
  __device__ std::int64_t partial_row(std::int32_t row) const {
    const MlaSchedule& schedule = args_.schedule;
    const Cursor& at = this->now();
    std::int64_t part = 2 * static_cast<std::int64_t>(blockIdx.x) + (at.tile == 0 ? 1 : 0);
    if (mla_has_fixed_pieces(schedule)) {
      const std::int32_t piece = piece_tiles_of(schedule, at.line.tiles);
      const std::int32_t pieces = (at.line.tiles + piece - 1) / piece;
      part = schedule.parts_before[at.index] + static_cast<std::int64_t>(at.segment) * pieces +
             at.tile / piece;
    }
    return part * args_.rows + row;
  }
  /// Where the results of a row go, the output when the piece covers the segment, else a partial:
  /// null where there is no row.
  __device__ char* target(std::int32_t row, bool is_whole) const {
    const std::int32_t in_line = this->line_row(row);
    if (in_line < 0) return nullptr;
    if (!is_whole)
      return reinterpret_cast<char*>(args_.partial_out + partial_row(row) * kMlaLatentDim);
    const OutputView& output = args_.params.output;
    const std::int64_t token = this->token_of(in_line);
    return static_cast<char*>(output.out) + token * output.stride_token +
           in_line % args_.params.heads * output.stride_head;
  }
  __device__ FloatType format(bool is_whole) const {
    return is_whole ? args_.params.output.type : FloatType::fp32;
  }
  __device__ void store_lse(std::int32_t row, bool is_whole, float lse) const {
    const std::int32_t in_line = this->line_row(row);
    if (in_line < 0) return;
    if (!is_whole) {
      args_.partial_lse[partial_row(row)] = lse;
      return;
    }
    const OutputView& output = args_.params.output;
    if (output.lse == nullptr) return;
    const std::int64_t token = this->token_of(in_line);
    char* to = reinterpret_cast<char*>(output.lse) + token * output.lse_stride_token;
    reinterpret_cast<float*>(to)[in_line % args_.params.heads] =
        output.lse_base == LseBase::two ? lse : lse * 0.6931471805599453F;
  }
  /// Column of the lane's first values in accumulators 0 and 1 of the half.
  __device__ std::uint32_t first_column() const {
    return 256U * this->half() + (kEightBit ? 4U : 2U) * (this->lane_anew() & 3U);
  }
  /// Stores what a lane has of a row in accumulators 2 i (`even`) and 2 i + 1, two neighbouring
  /// values each, or four where rows are read 16 bytes a lane. `to` is at first_column().
  template <FloatType format>
  __device__ static void store_values(char* to, int i, int h, const float (&even)[4],
                                      const float (&odd)[4], float scale) {
    const float low0 = even[2 * h] * scale;
    const float low1 = (kEightBit ? odd[2 * h] : even[2 * h + 1]) * scale;
    const float high0 = (kEightBit ? even[2 * h + 1] : odd[2 * h]) * scale;
    const float high1 = odd[2 * h + 1] * scale;
    constexpr std::uint32_t kHigh = kEightBit ? 2 : 8;
    if constexpr (format == FloatType::fp32) {
      auto* at = reinterpret_cast<float*>(to) + 16 * i;
      *reinterpret_cast<float2*>(at) = make_float2(low0, low1);
      *reinterpret_cast<float2*>(at + kHigh) = make_float2(high0, high1);
    } else {
      using Out = std::conditional_t<format == FloatType::bf16, Bf16, Fp16>;
      auto* at = reinterpret_cast<std::uint16_t*>(to) + 16 * i;
      *reinterpret_cast<std::uint32_t*>(at) = pack(Out{}, low0, low1);
      *reinterpret_cast<std::uint32_t*>(at + kHigh) = pack(Out{}, high0, high1);
    }
  }
  /// Calls `store` with the format as a constant, so that each is one straight line.
  template <typename Store>
  __device__ static void with_format(FloatType format, Store&& store) {
    if (format == FloatType::fp32) {
      store(std::integral_constant<FloatType, FloatType::fp32>{});
    } else if (format == FloatType::bf16) {
      store(std::integral_constant<FloatType, FloatType::bf16>{});
    } else {
      store(std::integral_constant<FloatType, FloatType::fp16>{});
    }
  }
  __device__ static constexpr std::uint32_t bytes_of(FloatType format) {
    return format == FloatType::fp32 ? 4 : 2;
  }

  /// What accumulated outputs are still to be multiplied with, besides the sum of weights.
  __device__ float value_scale(std::int32_t exponent) const {
    if constexpr (kTileScales) {
      return exponent == Base::kNoExponent ? 1.0F : exp2f(static_cast<float>(exponent));
    } else {
      return type == KvType::e4m3 ? args_.params.k_scale : 1.0F;
    }
  }
};

}  // namespace packstone::kernels::mla
