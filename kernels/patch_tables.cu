// SPDX-License-Identifier: Apache-2.0
// Tables in place: the remap after a move, and batched updates from staged values.
#include "kernels/pool_launch.hpp"

#include <cuda_runtime.h>

namespace packstone::kernels {

namespace {

constexpr int kThreads = 256;

/// Division by a number that is the same for all threads; 32 bits where both fit, which is nearly
/// always and several times cheaper.
__device__ std::int64_t divide(std::int64_t value, std::int64_t by) {
  constexpr std::int64_t k32 = std::int64_t{1} << 32;
  if (value < k32 && by < k32) {
    return static_cast<std::uint32_t>(value) / static_cast<std::uint32_t>(by);
  }
  return value / by;
}

/// The entry after the step's moves: negative and foreign entries (tombstones) stay.
template <typename Entry>
__device__ Entry remapped(Entry entry, const PatchTarget& target, const PatchArguments& arguments,
                          std::uint32_t generation) {
  if (entry <= 0) return entry;
  const std::int64_t value = entry;
  const std::int64_t page =
      target.slots_per_entry == 1 ? value : divide(value, target.slots_per_entry);
  if (page >= arguments.pages) return entry;
  const Stamp stamp = arguments.stamps[page];
  if (stamp.generation != generation) return entry;
  return static_cast<Entry>(stamp.to * target.slots_per_entry +
                            (value - page * target.slots_per_entry));
}

template <typename Entry>
__device__ void patch_values(const PatchTarget& target, const PatchArguments& arguments,
                             std::uint32_t generation) {
  constexpr int kPerVector = 16 / static_cast<int>(sizeof(Entry));
  auto* entries = static_cast<Entry*>(target.entries);
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const bool aligned = reinterpret_cast<std::uintptr_t>(entries) % 16 == 0;
  const std::int64_t vectors = aligned ? target.count / kPerVector : 0;
  union Vector {
    uint4 bits;
    Entry entry[kPerVector];
  };
  for (std::int64_t v = thread; v < vectors; v += threads) {
    Vector vector;
    vector.bits = reinterpret_cast<const uint4*>(entries)[v];
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      const Entry to = remapped(vector.entry[i], target, arguments, generation);
      // One entry at a time: a reader in flight must see the old entry or the new one.
      if (to != vector.entry[i]) entries[v * kPerVector + i] = to;
    }
  }
  for (std::int64_t i = vectors * kPerVector + thread; i < target.count; i += threads) {
    const Entry to = remapped(entries[i], target, arguments, generation);
    if (to != entries[i]) entries[i] = to;
  }
}

/// Entries found by page (a full-to-window map) go where their page went, and leave 0 behind.
template <typename Entry>
__device__ void patch_keys(const PatchTarget& target, const PatchArguments& arguments,
                           std::int64_t n) {
  auto* entries = static_cast<Entry*>(target.entries);
  const std::int64_t each = target.slots_per_entry;
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  for (std::int64_t t = thread; t < n * each; t += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t i = divide(t, each);
    const std::int64_t offset = t - i * each;
    const PageMove move = arguments.moves[i];
    const std::int64_t from = static_cast<std::int64_t>(move.from) * each + offset;
    const std::int64_t to = static_cast<std::int64_t>(move.to) * each + offset;
    if (from >= target.count || to >= target.count) continue;
    entries[to] = entries[from];
    entries[from] = 0;
  }
}

__global__ void patch_tables(const __grid_constant__ PatchArguments arguments) {
  const std::int64_t n = min(max(*arguments.count, 0), arguments.count_max);
  if (n > 0) {
    const std::uint32_t generation = *arguments.generation;
    for (int t = 0; t < arguments.target_count; ++t) {
      const PatchTarget target = arguments.targets[t];
      if (target.keys != 0) {
        target.bytes == 8 ? patch_keys<std::int64_t>(target, arguments, n)
                          : patch_keys<std::int32_t>(target, arguments, n);
      } else {
        target.bytes == 8 ? patch_values<std::int64_t>(target, arguments, generation)
                          : patch_values<std::int32_t>(target, arguments, generation);
      }
    }
  }
  // The list is used up when the last block has read its count: a graph replayed without a new list
  // moves nothing.
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(arguments.ticket, 1U) == gridDim.x - 1) {
      *arguments.ticket = 0;
      *arguments.count = 0;
    }
  }
}

template <typename Entry>
__device__ void update_ranges(const TableUpdateArguments& arguments) {
  auto* entries = static_cast<Entry*>(arguments.entries);
  const std::int64_t each = arguments.slots_per_page;
  for (std::int32_t r = static_cast<std::int32_t>(blockIdx.x); r < arguments.range_count;
       r += static_cast<std::int32_t>(gridDim.x)) {
    const TableRange range = arguments.ranges[r];
    for (std::int64_t t = threadIdx.x; t < range.count * each; t += blockDim.x) {
      std::int64_t value = 0;
      if (range.source >= 0) {
        const std::int64_t i = divide(t, each);
        value = std::int64_t{arguments.values[range.source + i]} * each + (t - i * each);
      }
      entries[range.first * each + t] = static_cast<Entry>(value);
    }
  }
}

__global__ void update_table(const __grid_constant__ TableUpdateArguments arguments) {
  if (arguments.entry_bytes == 8) {
    update_ranges<std::int64_t>(arguments);
  } else {
    update_ranges<std::int32_t>(arguments);
  }
}

}  // namespace

cudaError_t launch_patch_tables(const PatchArguments& arguments, std::int32_t blocks,
                                cudaStream_t stream) {
  patch_tables<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_update_table(const TableUpdateArguments& arguments, std::int32_t blocks,
                                cudaStream_t stream) {
  update_table<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace packstone::kernels
