// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the GQA kernels need besides kernels/primitives.cuh: asynchronous 16-byte copies and the
/// places of pieces in a tile.

#include "kernels/primitives.cuh"

#include <cuda_fp8.h>

#include <cstdint>

namespace packstone::kernels::gqa {

/// Copies 16 bytes, or writes 16 zero bytes when `bytes` is 0 (the source is then not read).
__device__ inline void copy_async_16(std::uint32_t shared, std::uint64_t global,
                                     std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

__device__ inline void copy_async_16(std::uint32_t shared, std::uint64_t global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

__device__ inline void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `pending` of the calling thread's newest groups are not complete.
template <int pending>
__device__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Two e4m3 values (the low 16 bits) as two fp16 values.
__device__ inline std::uint32_t widen_e4m3(std::uint32_t pair) {
  const __half2_raw wide =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return *reinterpret_cast<const std::uint32_t*>(&wide);
}

/// What the number of a 16-byte piece is exchanged with in row `row` of a tile. Pieces change
/// places within 128 bytes so that eight rows of one piece (ldmatrix), and four pieces of two
/// neighbouring rows (16-byte loads), fall into different banks. Linear in the bits of `row`:
/// turn(a | b) = turn(a) ^ turn(b) where a and b share no bit.
template <int row_bytes>
__host__ __device__ constexpr std::uint32_t tile_turn(std::uint32_t row) {
  return row_bytes >= 128 ? (((row & 1U) << 2U) | ((row >> 1U) & 3U)) : ((row >> 1U) & 3U);
}

/// Where piece `piece` of row `row` lies in a tile.
template <int row_bytes>
__device__ std::uint32_t tile_offset(std::uint32_t row, std::uint32_t piece) {
  return row * row_bytes + ((piece ^ tile_turn<row_bytes>(row)) << 4U);
}

}  // namespace packstone::kernels::gqa
