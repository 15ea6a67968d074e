// SPDX-License-Identifier: Apache-2.0
// Draft commit: the rows of the accepted path move to the front of the tree's slots, in every
// plane.
//
// A row may be the source of one move and the target of another (path 0, 2, 3: row 2 goes to 1, row
// 3 to 2). So one block owns a slice of a plane for a whole sequence: it loads the slice of every
// accepted row into shared memory, waits for all its threads, and only then stores.
#include "kernels/pool_launch.hpp"
#include "kernels/shared_limit.cuh"

#include <packstone/cuda/draft_commit.hpp>

#include <cuda_runtime.h>

namespace packstone::kernels {

namespace {

constexpr int kThreads = 256;

__device__ std::int64_t entry_at(const TokenTable& table, std::int64_t index) {
  return table.type == IndexType::int64 ? static_cast<const std::int64_t*>(table.entries)[index]
                                        : static_cast<const std::int32_t*>(table.entries)[index];
}

/// Slot of token `token` of sequence b; -1 past the row or for an entry outside the pool.
__device__ std::int64_t slot_of_token(const CommitArguments& arguments, std::int32_t b,
                                      std::int64_t token) {
  const TokenTable& table = arguments.table;
  std::int64_t first = b * table.row_stride;
  std::int64_t entries = table.row_stride;
  if (table.indptr != nullptr) {
    first = table.indptr[b];
    entries = table.indptr[b + 1] - first;
  }
  const std::int64_t e = token / table.page_size;
  if (token < 0 || e >= entries) return -1;
  const std::int64_t slot =
      entry_at(table, first + e) * table.page_size + (token - e * table.page_size);
  // Page 0 is nobody's: a commit that reaches it has a table that is too short.
  if (slot < arguments.page_size || slot >= arguments.pages * arguments.page_size) return -1;
  return slot;
}

__device__ std::uint64_t row_address(const RowPlane& plane, std::int64_t page_size,
                                     std::int64_t slot) {
  const std::int64_t page = slot / page_size;
  return plane.base + static_cast<std::uint64_t>(page * plane.page_stride +
                                                 (slot - page * page_size) * plane.row_bytes);
}

template <typename Vector>
__device__ void move_slice(std::byte* stage, const std::uint64_t* from, const std::uint64_t* to,
                           std::int32_t rows, std::int32_t bytes) {
  const std::int32_t per_row = bytes / static_cast<std::int32_t>(sizeof(Vector));
  auto* staged = reinterpret_cast<Vector*>(stage);
  for (std::int32_t t = static_cast<std::int32_t>(threadIdx.x); t < rows * per_row;
       t += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t row = t / per_row;
    staged[t] = reinterpret_cast<const Vector*>(from[row])[t - row * per_row];
  }
  __syncthreads();
  for (std::int32_t t = static_cast<std::int32_t>(threadIdx.x); t < rows * per_row;
       t += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t row = t / per_row;
    reinterpret_cast<Vector*>(to[row])[t - row * per_row] = staged[t];
  }
  __syncthreads();
}

/// The path of sequence b, checked: every block that works on b comes to the same verdict, so a bad
/// path moves nothing in any plane. Result: 0 or the fault; `skip` is the number of leading nodes
/// that are in place already.
__device__ std::int32_t check_path(const CommitArguments& arguments, std::int32_t b,
                                   std::int64_t* from, std::int64_t* to, std::int32_t count,
                                   std::int32_t* fault) {
  const std::int64_t length = arguments.lengths[b];
  const std::int32_t* path = arguments.path + b * arguments.path_stride;
  for (std::int32_t k = static_cast<std::int32_t>(threadIdx.x); k < count;
       k += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t node = path[k];
    const std::int32_t before = k == 0 ? -1 : path[k - 1];
    if (node <= before || node >= arguments.nodes_max) {
      atomicMax(fault, static_cast<std::int32_t>(cuda::CommitFault::bad_path));
      continue;
    }
    from[k] = slot_of_token(arguments, b, length + node);
    to[k] = slot_of_token(arguments, b, length + k);
    if (from[k] < 0 || to[k] < 0) {
      atomicMax(fault, static_cast<std::int32_t>(cuda::CommitFault::outside_table));
    }
  }
  __syncthreads();
  return *fault;
}

__global__ void commit_path(const __grid_constant__ CommitArguments arguments) {
  extern __shared__ __align__(16) std::byte shared[];
  auto* from = reinterpret_cast<std::int64_t*>(shared);
  auto* to = from + arguments.nodes_max;
  std::byte* stage = reinterpret_cast<std::byte*>(to + arguments.nodes_max);
  __shared__ std::int32_t fault;

  // A block takes a sequence and every gridDim.y-th plane of it, so that the path is read once.
  for (std::int32_t b = static_cast<std::int32_t>(blockIdx.x); b < arguments.batch;
       b += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t count = arguments.counts[b];
    __syncthreads();
    if (threadIdx.x == 0) {
      fault = count < 0 || count > arguments.nodes_max || arguments.lengths[b] < 0
                  ? static_cast<std::int32_t>(cuda::CommitFault::bad_count)
                  : 0;
    }
    __syncthreads();
    const std::int32_t verdict =
        fault != 0 ? fault : check_path(arguments, b, from, to, count, &fault);
    if (threadIdx.x == 0 && blockIdx.y == 0) arguments.errors[b] = verdict;
    if (verdict != 0) continue;

    std::int32_t skip = 0;  // leading nodes in place already: chains move nothing
    while (skip < count && from[skip] == to[skip]) ++skip;
    const std::int32_t rows = count - skip;
    if (rows == 0) continue;
    for (std::int32_t p = static_cast<std::int32_t>(blockIdx.y); p < arguments.plane_count;
         p += static_cast<std::int32_t>(gridDim.y)) {
      const RowPlane plane = arguments.planes[p];
      for (std::int64_t at = 0; at < plane.row_bytes; at += arguments.slice_bytes) {
        auto* source = reinterpret_cast<std::uint64_t*>(stage);
        std::uint64_t* target = source + arguments.nodes_max;
        std::byte* data = reinterpret_cast<std::byte*>(target + arguments.nodes_max);
        for (std::int32_t k = static_cast<std::int32_t>(threadIdx.x); k < rows;
             k += static_cast<std::int32_t>(blockDim.x)) {
          source[k] = row_address(plane, arguments.page_size, from[skip + k]) +
                      static_cast<std::uint64_t>(at);
          target[k] = row_address(plane, arguments.page_size, to[skip + k]) +
                      static_cast<std::uint64_t>(at);
        }
        __syncthreads();
        const auto bytes = static_cast<std::int32_t>(
            min(std::int64_t{arguments.slice_bytes}, plane.row_bytes - at));
        const std::uint64_t bits = plane.base | static_cast<std::uint64_t>(plane.page_stride) |
                                   static_cast<std::uint64_t>(plane.row_bytes);
        if (bits % 16 == 0) {
          move_slice<uint4>(data, source, target, rows, bytes);
        } else if (bits % 4 == 0) {
          move_slice<std::uint32_t>(data, source, target, rows, bytes);
        } else {
          move_slice<std::uint8_t>(data, source, target, rows, bytes);
        }
      }
    }
  }
}

}  // namespace

std::int64_t commit_shared_bytes(std::int32_t nodes_max, std::int32_t slice_bytes) {
  // Two words a node for the slots, two for the addresses, and the slices.
  return std::int64_t{nodes_max} * (4 * 8 + slice_bytes);
}

cudaError_t prepare_commit_path(std::int32_t shared_bytes_max) {
  return raise_shared_limit(reinterpret_cast<const void*>(commit_path), shared_bytes_max);
}

cudaError_t launch_commit_path(const CommitArguments& arguments, std::int32_t blocks,
                               cudaStream_t stream) {
  // Both dimensions are strides of loops, so no batch or plane count meets a grid limit.
  const std::int32_t x = min(arguments.batch, blocks);
  const std::int32_t y = min(arguments.plane_count, max(1, blocks / x));
  const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y));
  const std::int64_t shared = commit_shared_bytes(arguments.nodes_max, arguments.slice_bytes);
  commit_path<<<grid, kThreads, static_cast<std::size_t>(shared), stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace packstone::kernels
