// SPDX-License-Identifier: Apache-2.0
// Token rows by slot: what a step writes into the pool, and what a checker reads back. Whole pages
// go through move_pages.cu.
#include "kernels/pool_launch.hpp"

#include <cuda_runtime.h>

#include <algorithm>

namespace packstone::kernels {

namespace {

constexpr int kThreads = 256;

template <typename Vector, bool to_pool>
__global__ void copy_rows(const __grid_constant__ RowsArguments arguments) {
  const RowPlane& plane = arguments.plane;
  const std::int64_t per_row = plane.row_bytes / static_cast<std::int64_t>(sizeof(Vector));
  const std::int64_t total = arguments.rows * per_row;
  for (std::int64_t t = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; t < total;
       t += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t row = t / per_row;
    const std::int64_t element = t - row * per_row;
    const std::int64_t slot = arguments.slot[row];
    auto* data = reinterpret_cast<Vector*>(arguments.data + row * plane.row_bytes) + element;
    // Padded rows name page 0 or nothing at all; neither page 0 nor the end of the pool may change.
    if (slot < arguments.page_size || slot >= arguments.slots) {
      if constexpr (!to_pool) *data = Vector{};
      continue;
    }
    const std::int64_t page = slot / arguments.page_size;
    auto* place = reinterpret_cast<Vector*>(
                      plane.base + static_cast<std::uint64_t>(page * plane.page_stride +
                                                              (slot - page * arguments.page_size) *
                                                                  plane.row_bytes)) +
                  element;
    if constexpr (to_pool) {
      *place = *data;
    } else {
      *data = *place;
    }
  }
}

template <bool to_pool>
cudaError_t launch_copy_rows(const RowsArguments& arguments, cudaStream_t stream) {
  const std::uint64_t bits = arguments.plane.base |
                             static_cast<std::uint64_t>(arguments.plane.page_stride) |
                             static_cast<std::uint64_t>(arguments.plane.row_bytes) |
                             reinterpret_cast<std::uintptr_t>(arguments.data);
  const std::int64_t elements =
      arguments.rows * (arguments.plane.row_bytes / (bits % 16 == 0  ? 16
                                                     : bits % 4 == 0 ? 4
                                                                     : 1));
  // Strided loops: the cap is enough to fill any device and far below the grid limit.
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, 4096));
  if (bits % 16 == 0) {
    copy_rows<uint4, to_pool><<<blocks, kThreads, 0, stream>>>(arguments);
  } else if (bits % 4 == 0) {
    copy_rows<std::uint32_t, to_pool><<<blocks, kThreads, 0, stream>>>(arguments);
  } else {
    copy_rows<std::uint8_t, to_pool><<<blocks, kThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_write_rows(const RowsArguments& arguments, cudaStream_t stream) {
  return launch_copy_rows<true>(arguments, stream);
}

cudaError_t launch_read_rows(const RowsArguments& arguments, cudaStream_t stream) {
  return launch_copy_rows<false>(arguments, stream);
}

}  // namespace packstone::kernels
