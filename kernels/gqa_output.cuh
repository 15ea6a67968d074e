// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the GQA kernels write results: pairs of adjacent values in the caller's type, and lse in its
/// base.

#include "kernels/gqa_primitives.cuh"

#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone::kernels::gqa {

/// Two adjacent values of an output row.
struct Pair {
  std::int32_t column;
  float x;
  float y;
};

/// Pair `pair` (0 or 1) that a lane holds of columns 16 i to 16 i + 15, for row half `half`.
/// Accumulators 2 i and 2 i + 1 are columns 0 to 7 and 8 to 15, or with e4m3 rows the even and the
/// odd columns.
template <bool interleaved, int count>
__device__ Pair pair_of(const float (&out)[count][4], int i, int pair, int half, std::int32_t quad,
                        float scale) {
  if constexpr (interleaved) {
    return {16 * i + 4 * quad + 2 * pair, out[2 * i][2 * half + pair] * scale,
            out[2 * i + 1][2 * half + pair] * scale};
  } else {
    return {16 * i + 8 * pair + 2 * quad, out[2 * i + pair][2 * half] * scale,
            out[2 * i + pair][2 * half + 1] * scale};
  }
}

__device__ inline void store_pair(FloatType type, char* row, const Pair& pair) {
  if (type == FloatType::fp32) {
    *reinterpret_cast<float2*>(row + 4 * pair.column) = make_float2(pair.x, pair.y);
  } else {
    *reinterpret_cast<std::uint32_t*>(row + 2 * pair.column) =
        type == FloatType::bf16 ? pack(Bf16{}, pair.x, pair.y) : pack(Fp16{}, pair.x, pair.y);
  }
}

__device__ inline char* output_row(const OutputView& output, std::int64_t token,
                                   std::int64_t head) {
  return static_cast<char*>(output.out) + token * output.stride_token + head * output.stride_head;
}

/// Stores an lse that is in base 2 in the caller's base; nothing where it is not wanted.
__device__ inline void store_lse(const OutputView& output, std::int64_t token, std::int64_t head,
                                 float lse) {
  if (output.lse == nullptr) return;
  char* row = reinterpret_cast<char*>(output.lse) + token * output.lse_stride_token;
  reinterpret_cast<float*>(row)[head] =
      output.lse_base == LseBase::two ? lse : lse * 0.6931471805599453F;
}

}  // namespace packstone::kernels::gqa
