// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/device_free_list.hpp>

#include <algorithm>
#include <numeric>
#include <random>

namespace packstone::testing {
namespace {

/// A list on the device with its buffers, and the twin on the host.
struct Twins {
  Twins(PageCount pages, std::int32_t requests_max, std::int32_t ids_max_)
      : ids_max(ids_max_),
        device({.pages = pages, .requests_max = requests_max}),
        host(pages),
        counts(static_cast<std::size_t>(requests_max)),
        requests(1),
        ids(static_cast<std::size_t>(ids_max_)),
        released(static_cast<std::size_t>(ids_max_)),
        released_count(1) {}

  DeviceFreeListStatus status() const {
    DeviceFreeListStatus result{};
    sync(stream.get());
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(&result, device.status(), sizeof(result), cudaMemcpyDeviceToHost));
    return result;
  }
  /// Both allocate; returns the host's ids after comparing.
  std::vector<PageId> allocate(const std::vector<std::int32_t>& wanted) {
    std::vector<std::int32_t> padded = wanted;
    padded.resize(counts.size(), 1'000'000);  // behind *requests: never read as requests
    counts.set(padded);
    requests.set({static_cast<std::int32_t>(wanted.size())});
    ids.set(std::vector<std::int32_t>(ids.size(), -7));
    device.allocate(counts.data(), requests.data(), ids.data(), ids_max, stream.get());
    std::vector<PageId> expected;
    const Status outcome = host.allocate(wanted, expected);
    const DeviceFreeListStatus now = status();
    EXPECT_EQ(now.shortage, outcome == Status::ok ? 0 : 1);
    EXPECT_EQ(now.taken, static_cast<std::int32_t>(expected.size()));
    EXPECT_EQ(now.free, host.free());
    const std::vector<std::int32_t> got = ids.get();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::int32_t id = i < expected.size() ? index_of(expected[i]) : -7;
      if (got[i] != id) {
        ADD_FAILURE() << "entry " << i << ": " << got[i] << " on the device, " << id;
        break;
      }
    }
    return expected;
  }
  DeviceFreeListStatus release(const std::vector<PageId>& pages) {
    std::vector<std::int32_t> list;
    for (const PageId page : pages) list.push_back(index_of(page));
    list.resize(released.size(), 0);
    released.set(list);
    released_count.set({static_cast<std::int32_t>(pages.size())});
    device.release(released.data(), released_count.data(), ids_max, stream.get());
    return status();
  }

  std::int32_t ids_max;
  Stream stream;
  DeviceFreeList device;
  LowestFreeList host;
  OnDevice<std::int32_t> counts;
  OnDevice<std::int32_t> requests;
  OnDevice<std::int32_t> ids;
  OnDevice<std::int32_t> released;
  OnDevice<std::int32_t> released_count;
};

class FreeListTest : public DeviceTest {};

TEST_F(FreeListTest, HostAndDeviceGiveTheSameIdsForOneStreamOfCommands) {
  for (const PageCount pages :
       {PageCount{2}, PageCount{64}, PageCount{65}, PageCount{1000}, PageCount{20'000}}) {
    const auto ids_max = static_cast<std::int32_t>(pages);
    Twins twins(pages, 8, ids_max);
    std::mt19937_64 random(17);
    std::vector<PageId> live;
    LowestFreeList mirror(pages);
    for (int step = 0; step < test_steps(60); ++step) {
      if (random() % 2 == 0 || live.empty()) {
        std::vector<std::int32_t> wanted;
        for (std::uint64_t r = random() % 9; r > 0; --r) {
          wanted.push_back(
              static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(pages / 4 + 2)));
        }
        const std::vector<PageId> got = twins.allocate(wanted);
        live.insert(live.end(), got.begin(), got.end());
      } else {
        std::ranges::shuffle(live, random);
        const auto count = static_cast<std::ptrdiff_t>(1 + random() % live.size());
        const std::vector<PageId> back(live.end() - count, live.end());
        live.resize(live.size() - static_cast<std::size_t>(count));
        const DeviceFreeListStatus status = twins.release(back);
        twins.host.release(back);
        EXPECT_EQ(status.fault, 0);
        EXPECT_EQ(status.free, twins.host.free());
      }
      ASSERT_FALSE(HasFailure()) << "step " << step;
      if (step % 7 == 0) {
        ASSERT_TRUE(twins.device.snapshot(twins.stream.get()));
        sync(twins.stream.get());
        const auto status = twins.device.reconcile(mirror);
        ASSERT_TRUE(status.has_value());
        EXPECT_EQ(status->commands, static_cast<std::uint64_t>(step) + 1);
        EXPECT_TRUE(std::ranges::equal(mirror.bits(), twins.host.bits()));
        EXPECT_EQ(mirror.free(), twins.host.free());
      }
    }
  }
}

TEST_F(FreeListTest, ShortageTakesNothingAndTheNextAskSucceeds) {
  Twins twins(7, 4, 64);  // six free pages
  EXPECT_TRUE(twins.allocate({2, 2, 3}).empty());
  EXPECT_EQ(twins.status().shortages, 1U);
  EXPECT_EQ(twins.allocate({6}).size(), 6U);
  EXPECT_TRUE(twins.allocate({1}).empty());
  EXPECT_TRUE(twins.allocate({}).empty());  // asks for nothing: no shortage
  EXPECT_EQ(twins.status().shortage, 0);
  // Sums past 2^31 are a shortage, not a wrap.
  twins.counts.set({INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX});
  twins.requests.set({4});
  twins.device.allocate(twins.counts.data(), twins.requests.data(), twins.ids.data(), 64,
                        twins.stream.get());
  EXPECT_EQ(twins.status().shortage, 1);
}

TEST_F(FreeListTest, BadReleasesChangeNothing) {
  Twins twins(100, 2, 64);
  const std::vector<PageId> live = twins.allocate({10});  // pages 1 .. 10
  ASSERT_EQ(live.size(), 10U);
  const auto fault = [&](std::vector<PageId> pages) {
    const DeviceFreeListStatus status = twins.release(pages);
    EXPECT_EQ(status.free, 89);
    return static_cast<FreeFault>(status.fault);
  };
  EXPECT_EQ(fault({PageId{0}}), FreeFault::no_such_page);
  EXPECT_EQ(fault({PageId{3}, PageId{-1}}), FreeFault::no_such_page);
  EXPECT_EQ(fault({PageId{3}, PageId{100}}), FreeFault::no_such_page);
  EXPECT_EQ(fault({PageId{3}, PageId{50}}), FreeFault::not_live);
  EXPECT_EQ(fault({PageId{8}, PageId{3}, PageId{8}}), FreeFault::duplicate);
  EXPECT_EQ(twins.status().faults, 5U);
  twins.released_count.set({65});
  twins.device.release(twins.released.data(), twins.released_count.data(), 64, twins.stream.get());
  EXPECT_EQ(static_cast<FreeFault>(twins.status().fault), FreeFault::bad_count);
  // No claim is left behind by the refused calls.
  const DeviceFreeListStatus status = twins.release({PageId{3}, PageId{8}});
  EXPECT_EQ(status.fault, 0);
  EXPECT_EQ(status.free, 91);
  const std::vector<PageId> again{PageId{3}, PageId{8}};
  twins.host.release(again);
  EXPECT_EQ(twins.allocate({3}), (std::vector<PageId>{PageId{3}, PageId{8}, PageId{11}}));
}

TEST_F(FreeListTest, AllocateAndReleaseInsideOneGraph) {
  for (const std::int32_t pages : {1, 17, 4096, 65'536}) {
    Twins twins(200'000, 4, 65'536);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    PACKSTONE_CUDA_CHECK(
        cudaStreamBeginCapture(twins.stream.get(), cudaStreamCaptureModeThreadLocal));
    twins.device.allocate(twins.counts.data(), twins.requests.data(), twins.ids.data(), 65'536,
                          twins.stream.get());
    // What the graph takes it gives back: the count is a word of the status.
    twins.device.release(twins.ids.data(), &twins.device.status()->taken, 65'536,
                         twins.stream.get());
    PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(twins.stream.get(), &graph));
    PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
      const std::int32_t now = std::max(1, pages - replay);
      twins.counts.set({now, 0, 0, 0});
      twins.requests.set({1});
      PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, twins.stream.get()));
      const DeviceFreeListStatus status = twins.status();
      EXPECT_EQ(status.taken, now);
      EXPECT_EQ(status.fault, 0);
      EXPECT_EQ(status.free, 199'999);
      const std::vector<std::int32_t> ids = twins.ids.get();
      for (std::int32_t i = 0; i < now; ++i) ASSERT_EQ(ids[static_cast<std::size_t>(i)], i + 1);
    }
    PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
    PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
  }
}

// DF-09: compacting 2^22 flags to a list, 200 times, equals the host each time.
TEST_F(FreeListTest, Df09ListOfFreePagesEqualsTheHostEveryTime) {
  constexpr PageCount kPages = PageCount{1} << 22;
  Twins twins(kPages, 1, 1'000'000);
  std::mt19937_64 random(23);
  std::vector<PageId> live = twins.allocate({1'000'000});
  std::ranges::shuffle(live, random);
  live.resize(500'000);
  ASSERT_EQ(twins.release(live).fault, 0);
  twins.host.release(live);
  std::vector<std::int32_t> expected;
  for (std::int32_t page = 1; page < kPages; ++page) {
    if (twins.host.is_free(PageId{page})) expected.push_back(page);
  }
  const OnDevice<std::int32_t> ids(static_cast<std::size_t>(kPages));
  const OnDevice<std::int32_t> found(1);
  const int runs = test_steps(200);
  for (int run = 0; run < runs; ++run) {
    PACKSTONE_CUDA_CHECK(cudaMemsetAsync(ids.data(), 0xEE, ids.size() * 4, twins.stream.get()));
    twins.device.list(ids.data(), found.data(), twins.stream.get());
    sync(twins.stream.get());
    ASSERT_EQ(found.get()[0], static_cast<std::int32_t>(expected.size())) << run;
    std::vector<std::int32_t> got(expected.size());
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(got.data(), ids.data(), got.size() * 4, cudaMemcpyDeviceToHost));
    ASSERT_EQ(got, expected) << run;
  }
}

TEST_F(FreeListTest, MirrorIsNeverWaitedFor) {
  Twins twins(1000, 1, 64);
  LowestFreeList mirror(1000);
  EXPECT_FALSE(twins.device.reconcile(mirror).has_value());
  Gate gate;
  gate.close(twins.stream.get());
  ASSERT_TRUE(twins.device.snapshot(twins.stream.get()));
  EXPECT_FALSE(twins.device.snapshot(twins.stream.get()));
  EXPECT_FALSE(twins.device.reconcile(mirror).has_value());
  gate.open();
  sync(twins.stream.get());
  EXPECT_TRUE(twins.device.reconcile(mirror).has_value());
  EXPECT_FALSE(twins.device.reconcile(mirror).has_value());
}

}  // namespace
}  // namespace packstone::testing
