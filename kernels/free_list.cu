// SPDX-License-Identifier: Apache-2.0
// The resident free list: a bitmap whose lowest set bits are handed out first. CUB does the scans.
// Every launch has a fixed size, so the sequence sits in a captured graph; sizes are read on the
// device.
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/device_free_list.hpp>

#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <cuda_runtime.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>

namespace packstone::kernels {

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + kThreads - 1) / kThreads, 1, 2048));
}

__device__ std::int64_t thread_index() {
  return blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
}
__device__ std::int64_t thread_count() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

/// Free pages of a word; one past the last word reads as 0, so that the exclusive scan ends with
/// the total.
struct WordCount {
  const std::uint64_t* bits;
  std::int64_t words;
  __device__ std::int32_t operator()(std::int64_t word) const {
    return word < words ? __popcll(bits[word]) : 0;
  }
};

/// Pages of a request; requests past the live ones, and negative counts, ask for nothing.
struct RequestCount {
  const std::int32_t* counts;
  const std::int32_t* requests;
  std::int32_t requests_max;
  __device__ std::int64_t operator()(std::int64_t request) const {
    const bool live = request < requests_max && request < *requests;
    return live ? max(counts[request], 0) : 0;
  }
};

/// Whether page number `page` is free.
struct IsFree {
  const std::uint64_t* bits;
  __device__ bool operator()(std::int32_t page) const {
    return ((bits[page / 64] >> (page % 64)) & 1U) != 0;
  }
};

/// Saturates instead of wrapping: 2^31 pages asked for must read as too many, not as few.
struct SaturatingSum {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return min(a + b, std::int64_t{INT32_MAX});
  }
};

auto word_counts(const FreeListState& state) {
  return thrust::make_transform_iterator(thrust::make_counting_iterator<std::int64_t>(0),
                                         WordCount{state.bits, state.words});
}

auto request_counts(const FreeListState& state, const std::int32_t* counts,
                    const std::int32_t* requests) {
  return thrust::make_transform_iterator(thrust::make_counting_iterator<std::int64_t>(0),
                                         RequestCount{counts, requests, state.requests_max});
}

__global__ void reset(const __grid_constant__ FreeListState state) {
  for (std::int64_t word = thread_index(); word < state.words; word += thread_count()) {
    const std::int64_t pages = min(std::int64_t{64}, state.pages - word * 64);
    std::uint64_t bits = pages == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << pages) - 1;
    if (word == 0) bits &= ~std::uint64_t{1};
    state.bits[word] = bits;
    state.claims[word] = 0;
  }
  if (thread_index() == 0) {
    *state.status = FreeListStatus{};
    state.status->free = state.pages - 1;
  }
}

__global__ void take(const __grid_constant__ FreeListState state, std::int32_t* ids,
                     std::int32_t ids_max) {
  // Both totals were scanned by the launches before, so every block comes to the same verdict.
  const std::int32_t free = state.prefix[state.words];
  const std::int32_t wanted = state.offsets[state.requests_max];
  const bool shortage = wanted > free || wanted > ids_max;
  if (thread_index() == 0) {
    FreeListStatus& status = *state.status;
    status.shortage = shortage ? 1 : 0;
    status.taken = shortage ? 0 : wanted;
    status.free = free - status.taken;
    status.commands += 1;
    status.shortages += shortage ? 1 : 0;
  }
  if (shortage) return;
  for (std::int64_t word = thread_index(); word < state.words; word += thread_count()) {
    std::int32_t at = state.prefix[word];
    if (at >= wanted) continue;
    std::uint64_t bits = state.bits[word];
    while (bits != 0 && at < wanted) {
      ids[at++] = static_cast<std::int32_t>(word * 64 + __ffsll(static_cast<long long>(bits)) - 1);
      bits &= bits - 1;
    }
    state.bits[word] = bits;
  }
}

__device__ std::int64_t release_count(const std::int32_t* count, std::int32_t ids_max) {
  // A count out of bounds is a fault of its own: then no id is looked at.
  return *count < 0 || *count > ids_max ? 0 : *count;
}

__global__ void begin_release(const __grid_constant__ FreeListState state,
                              const std::int32_t* count, std::int32_t ids_max) {
  const bool bad = *count < 0 || *count > ids_max;
  state.status->fault =
      static_cast<std::int32_t>(bad ? cuda::FreeFault::bad_count : cuda::FreeFault::none);
  state.status->fault_entry = INT32_MAX;
}

/// Claims each id in a bitmap of its own: the second claim of a page is a duplicate.
__global__ void claim(const __grid_constant__ FreeListState state, const std::int32_t* ids,
                      const std::int32_t* count, std::int32_t ids_max) {
  const std::int64_t n = release_count(count, ids_max);
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) {
    const std::int32_t id = ids[i];
    cuda::FreeFault fault = cuda::FreeFault::none;
    if (id <= 0 || id >= state.pages) {
      fault = cuda::FreeFault::no_such_page;
    } else {
      const std::uint64_t bit = std::uint64_t{1} << (id % 64);
      auto* word = reinterpret_cast<unsigned long long*>(state.claims + id / 64);
      if ((atomicOr(word, static_cast<unsigned long long>(bit)) & bit) != 0) {
        fault = cuda::FreeFault::duplicate;
      } else if ((state.bits[id / 64] & bit) != 0) {
        fault = cuda::FreeFault::not_live;
      }
    }
    if (fault != cuda::FreeFault::none) {
      atomicMax(&state.status->fault, static_cast<std::int32_t>(fault));
      atomicMin(&state.status->fault_entry, static_cast<std::int32_t>(i));
    }
  }
}

__global__ void settle(const __grid_constant__ FreeListState state, const std::int32_t* ids,
                       const std::int32_t* count, std::int32_t ids_max) {
  const std::int64_t n = release_count(count, ids_max);
  const bool fault = state.status->fault != 0;
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) {
    const std::int32_t id = ids[i];
    if (id <= 0 || id >= state.pages) continue;
    const auto bit = static_cast<unsigned long long>(std::uint64_t{1} << (id % 64));
    if (!fault) atomicOr(reinterpret_cast<unsigned long long*>(state.bits + id / 64), bit);
    atomicAnd(reinterpret_cast<unsigned long long*>(state.claims + id / 64), ~bit);
  }
  if (thread_index() == 0) {
    FreeListStatus& status = *state.status;
    status.free += fault ? 0 : n;
    status.commands += 1;
    status.faults += fault ? 1 : 0;
  }
}

}  // namespace

std::int64_t free_list_scratch_bytes(std::int64_t words, std::int32_t requests_max) {
  FreeListState state{.words = words, .requests_max = requests_max};
  std::size_t for_words = 0;
  std::size_t for_requests = 0;
  std::size_t for_list = 0;
  std::int32_t* none = nullptr;
  (void)cub::DeviceScan::ExclusiveSum(nullptr, for_words, word_counts(state), none, words + 1);
  (void)cub::DeviceScan::ExclusiveScan(nullptr, for_requests, request_counts(state, none, none),
                                       none, SaturatingSum{}, std::int64_t{0},
                                       std::int64_t{requests_max} + 1);
  (void)cub::DeviceSelect::If(nullptr, for_list, thrust::make_counting_iterator<std::int32_t>(0),
                              none, none, words * 64, IsFree{nullptr});
  return static_cast<std::int64_t>(std::max({for_words, for_requests, for_list}));
}

cudaError_t launch_free_list_reset(const FreeListState& state, cudaStream_t stream) {
  reset<<<blocks_for(state.words), kThreads, 0, stream>>>(state);
  return cudaGetLastError();
}

cudaError_t launch_free_list_allocate(const FreeListState& state, const std::int32_t* counts,
                                      const std::int32_t* requests, std::int32_t* ids,
                                      std::int32_t ids_max, cudaStream_t stream) {
  auto bytes = static_cast<std::size_t>(state.scratch_bytes);
  cudaError_t error = cub::DeviceScan::ExclusiveScan(
      state.scratch, bytes, request_counts(state, counts, requests), state.offsets, SaturatingSum{},
      std::int64_t{0}, std::int64_t{state.requests_max} + 1, stream);
  if (error != cudaSuccess) return error;
  error = cub::DeviceScan::ExclusiveSum(state.scratch, bytes, word_counts(state), state.prefix,
                                        state.words + 1, stream);
  if (error != cudaSuccess) return error;
  take<<<blocks_for(state.words), kThreads, 0, stream>>>(state, ids, ids_max);
  return cudaGetLastError();
}

cudaError_t launch_free_list_release(const FreeListState& state, const std::int32_t* ids,
                                     const std::int32_t* count, std::int32_t ids_max,
                                     cudaStream_t stream) {
  begin_release<<<1, 1, 0, stream>>>(state, count, ids_max);
  claim<<<blocks_for(ids_max), kThreads, 0, stream>>>(state, ids, count, ids_max);
  settle<<<blocks_for(ids_max), kThreads, 0, stream>>>(state, ids, count, ids_max);
  return cudaGetLastError();
}

cudaError_t launch_free_list_list(const FreeListState& state, std::int32_t* ids,
                                  std::int32_t* found, cudaStream_t stream) {
  auto bytes = static_cast<std::size_t>(state.scratch_bytes);
  return cub::DeviceSelect::If(state.scratch, bytes,
                               thrust::make_counting_iterator<std::int32_t>(0), ids, found,
                               state.pages, IsFree{state.bits}, stream);
}

}  // namespace packstone::kernels
