// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the tests of the device half share: a fixture that skips without a device, rows whose bytes
/// follow from a token's id, a reader that finds them through a table, and a stalled stream.

#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/memory.hpp>
#include <packstone/cuda/stream.hpp>
#include <packstone/pool_layout.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace packstone::testing {

using namespace packstone::cuda;

inline bool device_present() {
  // A kernel loaded on first use waits for the device, and would never come while one is stalled.
  static const bool found = [] {
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    (void)cudaGetLastError();
    return error == cudaSuccess && devices > 0;
  }();
  return found;
}

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no CUDA device";
  }
  void TearDown() override {
    if (!device_present()) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
};

template <typename Parameter>
class DeviceTestWithParam : public DeviceTest, public ::testing::WithParamInterface<Parameter> {};

inline void sync(cudaStream_t stream = nullptr) {
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream));
}

/// A vector on the device.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t count)
      : memory_(static_cast<Bytes>(count * sizeof(T))), count_(count) {
    if (count > 0) {
      PACKSTONE_CUDA_CHECK(cudaMemset(memory_.data(), 0, count * sizeof(T)));
      sync();
    }
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { set(values); }
  void set(const std::vector<T>& values) {
    PACKSTONE_CUDA_CHECK(cudaMemcpy(memory_.data(), values.data(), values.size() * sizeof(T),
                                    cudaMemcpyHostToDevice));
    sync();
  }
  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> values(count_);
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(values.data(), memory_.data(), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  [[nodiscard]] T* data() const { return memory_.as<T>(); }
  [[nodiscard]] std::size_t size() const { return count_; }

 private:
  DeviceMemory memory_;
  std::size_t count_;
};

// ---- tokens whose bytes are known ----

__host__ __device__ inline std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30;  // the finaliser of splitmix64
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Byte `i` of the row of token `id` in row plane `plane`.
__host__ __device__ inline std::uint8_t pattern(std::uint64_t id, int plane, std::int64_t i) {
  return static_cast<std::uint8_t>(mixed(id * 0x9e3779b97f4a7c15ULL +
                                         static_cast<std::uint64_t>(plane) * 1000003U +
                                         static_cast<std::uint64_t>(i)));
}

struct TokenAt {
  std::int64_t slot;
  std::uint64_t id;
};

struct Expected {
  std::int64_t row;       // of the table
  std::int64_t position;  // token of the sequence
  std::uint64_t id;
};

namespace detail {

__device__ inline std::uint8_t* row_byte(const RowPlane& plane, std::int64_t page_size,
                                         std::int64_t slot, std::int64_t i) {
  return reinterpret_cast<std::uint8_t*>(plane.base) + slot / page_size * plane.page_stride +
         slot % page_size * plane.row_bytes + i;
}

[[maybe_unused]] static __global__ void fill(const RowPlane* planes, int plane_count,
                                             std::int64_t page_size, const TokenAt* tokens) {
  const TokenAt token = tokens[blockIdx.x];
  for (int p = 0; p < plane_count; ++p) {
    for (std::int64_t i = threadIdx.x; i < planes[p].row_bytes; i += blockDim.x) {
      *row_byte(planes[p], page_size, token.slot, i) = pattern(token.id, p, i);
    }
  }
}

[[maybe_unused]] static __global__ void compare(const RowPlane* planes, int plane_count,
                                                std::int64_t page_size, TokenTable table,
                                                const Expected* expected, unsigned long long* wrong,
                                                long long* first) {
  const Expected e = expected[blockIdx.x];
  const std::int64_t index = e.row * table.row_stride + e.position / table.page_size;
  const std::int64_t entry = table.type == IndexType::int64
                                 ? static_cast<const std::int64_t*>(table.entries)[index]
                                 : static_cast<const std::int32_t*>(table.entries)[index];
  const std::int64_t slot = entry * table.page_size + e.position % table.page_size;
  for (int p = 0; p < plane_count; ++p) {
    for (std::int64_t i = threadIdx.x; i < planes[p].row_bytes; i += blockDim.x) {
      if (*row_byte(planes[p], page_size, slot, i) != pattern(e.id, p, i)) {
        atomicAdd(wrong, 1ULL);
        atomicMin(first, static_cast<long long>(blockIdx.x));
      }
    }
  }
}

[[maybe_unused]] static __global__ void stall(const volatile int* open) {
  std::uint64_t start = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  std::uint64_t now = start;
  // Ends by itself after five seconds, so that a failing test does not hang.
  while (*open == 0 && now - start < 5'000'000'000ULL) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  }
}

}  // namespace detail

/// Writes and checks tokens of one pool, in order of a stream.
class Tokens {
 public:
  explicit Tokens(const DevicePool& pool)
      : page_size_(pool.page_size()),
        planes_(std::vector<RowPlane>(pool.row_planes().begin(), pool.row_planes().end())) {}

  void fill(const std::vector<TokenAt>& tokens, cudaStream_t stream) const {
    if (tokens.empty()) return;
    const OnDevice<TokenAt> list(tokens);
    detail::fill<<<static_cast<unsigned>(tokens.size()), 128, 0, stream>>>(
        planes_.data(), static_cast<int>(planes_.size()), page_size_, list.data());
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
    sync(stream);
  }

  /// Number of wrong bytes; waits for `stream`.
  [[nodiscard]] std::uint64_t wrong(const TokenTable& table, const std::vector<Expected>& expected,
                                    cudaStream_t stream) const {
    if (expected.empty()) return 0;
    const OnDevice<Expected> list(expected);
    const OnDevice<unsigned long long> wrong(1);
    const OnDevice<long long> first(std::vector<long long>{INT64_MAX});
    detail::compare<<<static_cast<unsigned>(expected.size()), 128, 0, stream>>>(
        planes_.data(), static_cast<int>(planes_.size()), page_size_, table, list.data(),
        wrong.data(), first.data());
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
    sync(stream);
    const std::uint64_t result = wrong.get()[0];
    if (result != 0) {
      const Expected& e = expected[static_cast<std::size_t>(first.get()[0])];
      ADD_FAILURE() << "first wrong: row " << e.row << ", position " << e.position << ", id "
                    << e.id;
    }
    return result;
  }

 private:
  std::int64_t page_size_;
  OnDevice<RowPlane> planes_;
};

/// Holds a stream up until `open`.
class Gate {
 public:
  Gate() : flag_(sizeof(int)) { *flag_.as<volatile int>() = 0; }
  ~Gate() { open(); }
  void close(cudaStream_t stream) {
    detail::stall<<<1, 1, 0, stream>>>(flag_.as<int>());
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
  }
  void open() { *flag_.as<volatile int>() = 1; }

 private:
  PinnedMemory flag_;
};

// ---- layouts ----

struct NamedLayout {
  std::string name;
  PoolLayout layout;
};

/// Each kind of buffer in both orders, for one page size.
inline std::vector<NamedLayout> layouts(std::int64_t page_size) {
  std::vector<NamedLayout> result;
  for (const PoolOrder order : {PoolOrder::layer_major, PoolOrder::page_major}) {
    const std::string suffix =
        "_p" + std::to_string(page_size) + (order == PoolOrder::layer_major ? "_layers" : "_pages");
    result.push_back(
        {"mla_bf16" + suffix, mla_layout({.layers = 3, .page_size = page_size, .order = order})});
    result.push_back({"mla_fp8_indexer" + suffix, mla_layout({.layers = 2,
                                                              .page_size = page_size,
                                                              .order = order,
                                                              .type = KvType::e4m3_tile,
                                                              .indexer_key_bytes = 128,
                                                              .indexer_scale_bytes = 4})});
    result.push_back({"gqa_fp8_scales" + suffix, gqa_layout({.layers = 2,
                                                             .page_size = page_size,
                                                             .order = order,
                                                             .type = KvType::e4m3,
                                                             .kv_heads = 2,
                                                             .head_dim = 64,
                                                             .scale_bytes = 4})});
    // Nothing in the library may lean on even sizes.
    result.push_back(
        {"odd_bytes" + suffix,
         {.page_size = page_size, .order = order, .buffers = {{"k", {30}, 2}, {"flags", {1}, 1}}}});
  }
  return result;
}

inline std::vector<NamedLayout> all_layouts() {
  std::vector<NamedLayout> result;
  for (const std::int64_t page_size : {1, 7, 16, 64}) {
    for (NamedLayout& layout : layouts(page_size)) result.push_back(std::move(layout));
  }
  return result;
}

inline std::string layout_name(const ::testing::TestParamInfo<NamedLayout>& info) {
  return info.param.name;
}

/// gtest prints parameters; a layout's name says enough.
inline void PrintTo(const NamedLayout& layout, std::ostream* out) {
  *out << layout.name;
}

inline std::int32_t below(std::mt19937_64& random, std::int64_t bound) {
  return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(bound));
}

/// Steps of a random test: fewer under a sanitizer, through PACKSTONE_TEST_STEPS.
inline int test_steps(int usual) {
  const char* const steps = std::getenv("PACKSTONE_TEST_STEPS");
  return steps == nullptr ? usual : std::atoi(steps);
}

}  // namespace packstone::testing
