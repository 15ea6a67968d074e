// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/transfer.hpp>

#include <algorithm>
#include <cstring>
#include <random>

namespace packstone::testing {
namespace {

constexpr PageCount kPages = 200;

/// Bytes of a page's plane as they lie in the pool.
std::vector<std::uint8_t> page_bytes_of(const PagePlane& plane, PageId page) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(plane.bytes));
  PACKSTONE_CUDA_CHECK(cudaMemcpy(
      bytes.data(),
      reinterpret_cast<const void*>(plane.base +
                                    static_cast<std::uint64_t>(index_of(page) * plane.stride)),
      bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

std::vector<std::uint8_t> image(const DevicePool& pool) {
  std::vector<std::uint8_t> bytes;
  for (const PagePlane& plane : pool.page_planes()) {
    for (std::int32_t page = 0; page < pool.pages(); ++page) {
      const auto part = page_bytes_of(plane, PageId{page});
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
  }
  return bytes;
}

void randomise(const DevicePool& pool, std::uint64_t seed) {
  const Tokens tokens(pool);
  std::vector<TokenAt> list;
  for (std::int64_t slot = pool.page_size(); slot < pool.pages() * pool.page_size(); ++slot) {
    list.push_back({slot, mixed(seed + static_cast<std::uint64_t>(slot))});
  }
  tokens.fill(list, nullptr);
}

class TransferLayouts : public DeviceTestWithParam<NamedLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, TransferLayouts, ::testing::ValuesIn(all_layouts()), layout_name);

TEST_P(TransferLayouts, EveryWayThereAndBackKeepsEveryByte) {
  DevicePool pool(GetParam().layout, {.pages = kPages});
  randomise(pool, 1);
  // Stretches so short that a call needs many of them, and that classes of planes share some.
  Transfer transfer(pool, {.stretch_bytes = 20'000, .tuning = {.multiprocessors = 8}});
  std::mt19937_64 random(2);
  std::vector<PageId> pages;
  for (std::int32_t page = 1; page < kPages; ++page) pages.push_back(PageId{page});
  for (std::size_t i = 0; i + 20 < pages.size(); i += 20) {  // runs and scattered pages
    if (i % 40 == 0)
      std::shuffle(pages.begin() + static_cast<std::ptrdiff_t>(i),
                   pages.begin() + static_cast<std::ptrdiff_t>(i + 20), random);
  }
  pages.resize(150);
  const auto count = static_cast<std::int64_t>(pages.size());
  Stream stream;
  const std::vector<std::uint8_t> before = image(pool);
  PinnedMemory first(transfer.bytes(count));
  PinnedMemory host(transfer.bytes(count));
  for (const TransferMethod method :
       {TransferMethod::staged, TransferMethod::direct, TransferMethod::batched}) {
    std::memset(host.data(), 0xEE, static_cast<std::size_t>(host.bytes()));
    ASSERT_TRUE(transfer.gather(pages, host.data(), method, stream.get()));
    sync(stream.get());
    if (method == TransferMethod::staged) {
      std::memcpy(first.data(), host.data(), static_cast<std::size_t>(host.bytes()));
    }
    EXPECT_EQ(std::memcmp(first.data(), host.data(), static_cast<std::size_t>(host.bytes())), 0)
        << static_cast<int>(method);
    randomise(pool, 99 + static_cast<std::uint64_t>(method));
    ASSERT_TRUE(transfer.scatter(pages, host.data(), method, stream.get()));
    sync(stream.get());
    // Pages that were not named keep what randomise wrote; named ones have their old bytes.
    std::vector<bool> named(kPages, false);
    for (const PageId page : pages) named[static_cast<std::size_t>(index_of(page))] = true;
    const std::vector<std::uint8_t> after = image(pool);
    std::size_t at = 0;
    for (const PagePlane& plane : pool.page_planes()) {
      const auto bytes = static_cast<std::ptrdiff_t>(plane.bytes);
      for (std::int32_t page = 0; page < kPages; ++page, at += static_cast<std::size_t>(bytes)) {
        const auto old = before.begin() + static_cast<std::ptrdiff_t>(at);
        const auto now = after.begin() + static_cast<std::ptrdiff_t>(at);
        if (named[static_cast<std::size_t>(page)]) {
          ASSERT_TRUE(std::equal(old, old + bytes, now)) << "page " << page;
        }
      }
    }
    randomise(pool, 1);
    ASSERT_EQ(image(pool), before);
  }
}

TEST(TransferRuns, AreMaximal) {
  const auto run = [](std::int32_t first, std::int32_t count) {
    return PageRun{PageId{first}, count};
  };
  EXPECT_TRUE(runs_of({}).empty());
  const std::vector<PageId> pages{PageId{4}, PageId{5}, PageId{6}, PageId{9}, PageId{8}, PageId{9}};
  EXPECT_EQ(runs_of(pages), (std::vector<PageRun>{run(4, 3), run(9, 1), run(8, 2)}));
}

class TransferTest : public DeviceTest {};

TEST_F(TransferTest, ChoosesByRunLength) {
  DevicePool pool(mla_layout({.layers = 1, .page_size = 64}), {.pages = 200});
  Transfer transfer(pool, {.batched_bytes_min = Bytes{1} << 20});
  std::vector<PageId> run;
  std::vector<PageId> scattered;
  for (std::int32_t i = 1; i < 100; ++i) {
    run.push_back(PageId{i});
    scattered.push_back(PageId{199 - 2 * i + (i > 90 ? 100 : 0)});
  }
  EXPECT_EQ(transfer.choose(run), TransferMethod::batched);  // 99 x 72 KiB in one piece
  EXPECT_EQ(transfer.choose(scattered), TransferMethod::staged);
  EXPECT_EQ(transfer.choose({}), TransferMethod::staged);
  DevicePool page_major(mla_layout({.layers = 2, .page_size = 64, .order = PoolOrder::page_major}),
                        {.pages = 200});
  // One merged plane whose pages follow each other: a run stays one piece.
  EXPECT_EQ(Transfer(page_major, {.batched_bytes_min = Bytes{1} << 20}).choose(run),
            TransferMethod::batched);
}

TEST_F(TransferTest, RefusesBadCallsBeforeAnythingIsQueued) {
  DevicePool pool(mla_layout({.layers = 1, .page_size = 16}), {.pages = 20});
  Transfer transfer(pool, {.pages_max = 4});
  PinnedMemory host(transfer.bytes(8) + 256);
  Stream stream;
  const auto gather = [&](std::vector<PageId> pages, void* at) {
    return transfer.gather(pages, at, TransferMethod::staged, stream.get());
  };
  EXPECT_THROW((void)gather(std::vector<PageId>(5, PageId{1}), host.data()), InvalidArgument);
  EXPECT_THROW((void)gather({PageId{20}}, host.data()), PageError);
  EXPECT_THROW((void)gather({PageId{-1}}, host.data()), PageError);
  EXPECT_THROW((void)gather({PageId{1}}, nullptr), InvalidArgument);
  EXPECT_THROW((void)gather({PageId{1}}, host.data() + 16), InvalidArgument);
  EXPECT_TRUE(gather({}, nullptr));
  const std::vector<PageId> twice{PageId{3}, PageId{3}};
  const std::vector<PageId> reserved{PageId{0}};
  EXPECT_THROW((void)transfer.scatter(twice, host.data(), TransferMethod::staged, stream.get()),
               PageError);
  EXPECT_THROW((void)transfer.scatter(reserved, host.data(), TransferMethod::staged, stream.get()),
               PageError);
  EXPECT_THROW((void)transfer.gather(reserved, host.data(), TransferMethod::batched, nullptr),
               InvalidArgument);
}

// GS-07: padded rows of a captured batch write neither slot 0 nor the last slot, in any buffer.
TEST_F(TransferTest, Gs07PaddedRowsAreWrittenNowhere) {
  for (const NamedLayout& named : layouts(16)) {
    DevicePool pool(named.layout, {.pages = 20});
    randomise(pool, 4);
    const std::int64_t last = 20 * 16 - 1;
    const std::vector<std::uint8_t> before = image(pool);
    for (std::size_t p = 0; p < pool.row_planes().size(); ++p) {
      const auto row = static_cast<std::size_t>(pool.row_planes()[p].row_bytes);
      std::vector<std::uint8_t> data(8 * row, 0xFF);  // NaN in every float format
      for (std::size_t i = 0; i < 5 * row; ++i) data[i] = static_cast<std::uint8_t>(i * 7 + p);
      const OnDevice<std::uint8_t> rows(data);
      for (const std::int64_t padding : {std::int64_t{0}, std::int64_t{-1}, last + 1}) {
        const OnDevice<std::int64_t> slots(
            std::vector<std::int64_t>{17, 300, 40, 41, 99, padding, padding, padding});
        Stream stream;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        PACKSTONE_CUDA_CHECK(
            cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
        write_rows(pool, {.row_plane = p, .slots = slots.data(), .rows = 8, .data = rows.data()},
                   stream.get());
        PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
        PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, stream.get()));
        sync(stream.get());
        PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
        PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
        const OnDevice<std::uint8_t> read(8 * row);
        read_rows(pool, {.row_plane = p, .slots = slots.data(), .rows = 8, .data = read.data()},
                  stream.get());
        sync(stream.get());
        std::vector<std::uint8_t> expected = data;
        std::fill(expected.begin() + static_cast<std::ptrdiff_t>(5 * row), expected.end(),
                  std::uint8_t{0});
        ASSERT_EQ(read.get(), expected) << named.name;
      }
    }
    // Put the five live rows back and compare the whole pool: nothing else may have changed.
    const Tokens tokens(pool);
    std::vector<TokenAt> live;
    for (const std::int64_t slot : {17, 300, 40, 41, 99}) {
      live.push_back({slot, mixed(4 + static_cast<std::uint64_t>(slot))});
    }
    tokens.fill(live, nullptr);
    EXPECT_EQ(image(pool), before) << named.name;
  }
}

}  // namespace
}  // namespace packstone::testing
