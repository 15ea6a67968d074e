// SPDX-License-Identifier: Apache-2.0
// The barriers of the MLA kernels' ring on their own: two stages, each filled by one bulk copy,
// read by all warps once its barrier says so, and filled again when all have arrived at a second
// one. compute-sanitizer's racecheck reports hazards in this ring too (docs/performance.md).
#include "kernels/mla_ring.cuh"
#include "tests/gpu/device_test.cuh"

#include <numeric>
#include <vector>

namespace packstone::testing {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kStages = 2;
constexpr std::uint32_t kValues = 1024;  ///< of a tile

__global__ void sum_tiles(const std::int32_t* values, std::uint32_t tiles, std::int64_t* sums) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using namespace kernels;
  __shared__ __align__(128) std::int32_t stages[kStages][kValues];
  __shared__ std::uint64_t barriers[2][kStages];
  const auto shared = [](const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  };
  const auto full = [&](std::uint32_t tile) { return shared(&barriers[0][tile % kStages]); };
  const auto empty = [&](std::uint32_t tile) { return shared(&barriers[1][tile % kStages]); };
  const auto parity = [](std::uint32_t tile) { return tile / kStages & 1U; };
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < kStages; ++i) {
      mla::barrier_init(full(i), 1);
      mla::barrier_init(empty(i), kThreads / 32);
    }
    mla::fence_for_copies();
  }
  __syncthreads();
  const auto fill = [&](std::uint32_t tile) {
    if (threadIdx.x >= 32 || tile >= tiles) return;
    constexpr std::uint32_t kBytes = 4 * kValues;
    mla::copy_row(shared(stages[tile % kStages]),
                  reinterpret_cast<const char*>(values + std::size_t{tile} * kValues), kBytes,
                  full(tile));
  };
  fill(0);
  std::int64_t sum = 0;
  for (std::uint32_t tile = 0; tile < tiles; ++tile) {
    if (tile > 0) mla::barrier_wait(empty(tile - 1), parity(tile - 1));
    fill(tile + 1);
    mla::barrier_wait(full(tile), parity(tile));
    for (std::uint32_t i = threadIdx.x; i < kValues; i += kThreads)
      sum += stages[tile % kStages][kValues - 1 - i];
    __syncwarp();
    if (threadIdx.x % 32 == 0) mla::barrier_arrive(empty(tile));
  }
  sums[threadIdx.x] = sum;
#endif
}

class BulkRing : public DeviceTest {};

TEST_F(BulkRing, EveryTileIsReadWholeAndOnce) {
  cudaFuncAttributes code{};
  PACKSTONE_CUDA_CHECK(cudaFuncGetAttributes(&code, sum_tiles));
  if (code.ptxVersion < 90) GTEST_SKIP() << "no bulk copies in code for less than 9.0";
  for (const std::uint32_t tiles : {1U, 2U, 3U, 64U}) {
    std::vector<std::int32_t> values(std::size_t{tiles} * kValues);
    std::iota(values.begin(), values.end(), 1);
    const OnDevice<std::int32_t> in(values);
    const OnDevice<std::int64_t> out(std::size_t{kThreads});
    sum_tiles<<<1, kThreads>>>(in.data(), tiles, out.data());
    const std::vector<std::int64_t> sums = out.get();
    const auto count = static_cast<std::int64_t>(values.size());
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), count * (count + 1) / 2)
        << tiles;
  }
}

}  // namespace
}  // namespace packstone::testing
