// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/page_table.hpp>

#include <algorithm>
#include <array>

namespace packstone::testing {
namespace {

/// Rows of every page through a table that names all pages in order.
struct WholePool {
  explicit WholePool(const DevicePool& pool_)
      : pool(pool_),
        tokens(pool_),
        table({.rows = 1,
               .columns = pool_.pages(),
               .page_size = pool_.page_size(),
               .pages = pool_.pages()}) {
    std::vector<PageId> all;
    for (std::int32_t page = 0; page < pool.pages(); ++page) all.push_back(PageId{page});
    table.set(0, 0, all);
    EXPECT_TRUE(table.flush(stream.get()));
    sync(stream.get());
  }
  void fill(const std::vector<std::int32_t>& pages) const {
    std::vector<TokenAt> list;
    for (const std::int32_t page : pages) {
      for (std::int64_t o = 0; o < pool.page_size(); ++o) {
        const std::int64_t slot = page * pool.page_size() + o;
        list.push_back({slot, static_cast<std::uint64_t>(slot)});
      }
    }
    tokens.fill(list, stream.get());
  }
  [[nodiscard]] std::uint64_t wrong(const std::vector<std::int32_t>& pages) const {
    std::vector<Expected> list;
    for (const std::int32_t page : pages) {
      for (std::int64_t o = 0; o < pool.page_size(); ++o) {
        const std::int64_t slot = page * pool.page_size() + o;
        list.push_back({0, slot, static_cast<std::uint64_t>(slot)});
      }
    }
    return tokens.wrong(table.view(), list, stream.get());
  }
  const DevicePool& pool;
  Stream stream;
  Tokens tokens;
  DevicePageTable table;
};

std::vector<std::int32_t> range(std::int32_t first, std::int32_t last) {
  std::vector<std::int32_t> result;
  for (std::int32_t i = first; i < last; ++i) result.push_back(i);
  return result;
}

class PoolLayouts : public DeviceTestWithParam<NamedLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, PoolLayouts, ::testing::ValuesIn(all_layouts()), layout_name);

TEST_P(PoolLayouts, OwnedPoolsHaveAZeroPage0AndDistinctRows) {
  DevicePool pool(GetParam().layout, {.pages = 20});
  WholePool whole(pool);
  whole.fill(range(1, 20));
  EXPECT_EQ(whole.wrong(range(1, 20)), 0U);
  for (const RowPlane& plane : pool.row_planes()) {
    std::vector<std::uint8_t> row(static_cast<std::size_t>(plane.row_bytes));
    PACKSTONE_CUDA_CHECK(cudaMemcpy(row.data(), reinterpret_cast<const void*>(plane.base),
                                    row.size(), cudaMemcpyDeviceToHost));
    EXPECT_TRUE(std::ranges::all_of(row, [](std::uint8_t b) { return b == 0; }));
  }
}

// The caller's pointers, off every alignment: neighbours in memory stay untouched by moves.
TEST_P(PoolLayouts, WrappedPointersOffAlignmentMoveRight) {
  const PoolLayout& layout = GetParam().layout;
  std::vector<OnDevice<std::uint8_t>> memory;
  std::vector<WrappedPlane> planes;
  for (const PoolBuffer& buffer : layout.buffers) {
    for (std::int32_t layer = 0; layer < buffer.layers; ++layer) {
      const Bytes stride = page_bytes(buffer, layout.page_size) + 3 * layer;
      memory.emplace_back(
          std::vector<std::uint8_t>(static_cast<std::size_t>(32 * stride + 8), 0xAB));
      planes.push_back({memory.back().data() + 2 * layer + 1, stride});
    }
  }
  DevicePool pool(layout, 32, planes);
  WholePool whole(pool);
  whole.fill(range(1, 16));
  Compactor compactor(
      std::array{static_cast<const DevicePool*>(&pool)},
      std::array{PatchedArray{.entries = whole.table.data(), .count = whole.table.entries()}}, {});
  std::vector<PageMove> moves;
  for (std::int32_t i = 1; i < 16; ++i) moves.push_back({PageId{i}, PageId{31 - i}});
  ASSERT_TRUE(compactor.compact(moves, whole.stream.get()));
  // The table followed the moves, so position still names the token.
  EXPECT_EQ(whole.wrong(range(1, 16)), 0U);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::vector<std::uint8_t> bytes = memory[i].get();
    EXPECT_EQ(bytes.front(), 0xAB);
    EXPECT_EQ(bytes.back(), 0xAB);
  }
}

class PoolTest : public DeviceTest {};

TEST_F(PoolTest, RefusesWrongWrapping) {
  const PoolLayout layout = mla_layout({.layers = 2, .page_size = 16});
  const OnDevice<std::uint8_t> memory(1 << 20);
  const WrappedPlane good{memory.data(), 16 * 1152};
  EXPECT_THROW(DevicePool(layout, 8, std::array{good}), InvalidArgument);
  EXPECT_THROW(DevicePool(layout, 8, std::array{good, WrappedPlane{nullptr, 16 * 1152}}),
               InvalidArgument);
  EXPECT_THROW(DevicePool(layout, 8, std::array{good, WrappedPlane{memory.data(), 16 * 1152 - 1}}),
               InvalidArgument);
  EXPECT_THROW(DevicePool(layout, {.pages = 0}), InvalidArgument);
  const DevicePool pool(layout, 8, std::array{good, good});
  EXPECT_EQ(pool.plane(0, 1).bytes, 16 * 1152);
  EXPECT_THROW((void)pool.plane(0, 2), InvalidArgument);
  EXPECT_THROW((void)pool.plane(1, 0), InvalidArgument);
}

TEST_F(PoolTest, EmptiedGranulesGoBackAndComeBack) {
  // Page-major, 64-token MLA pages of 16 layers: 1.1 MiB each, so granules empty in pairs.
  const PoolLayout layout =
      mla_layout({.layers = 16, .page_size = 64, .order = PoolOrder::page_major});
  DevicePool pool(layout, {.pages = 65, .virtual_memory = true, .cached_granules_max = 4});
  WholePool whole(pool);
  whole.fill(range(1, 65));
  EXPECT_EQ(whole.wrong(range(1, 65)), 0U);
  const PoolMemory full = pool.memory();
  EXPECT_EQ(full.committed, full.reserved);

  std::vector<std::uint8_t> live(65, 0);
  std::fill(live.begin(), live.begin() + 20, std::uint8_t{1});
  EventFence fence;
  Gate gate;
  gate.close(whole.stream.get());
  fence.record(whole.stream.get());
  EXPECT_FALSE(pool.release_unused(live, fence).has_value());  // a kernel is in flight
  EXPECT_EQ(pool.memory().committed, full.committed);
  gate.open();
  sync(whole.stream.get());
  const std::optional<Bytes> released = pool.release_unused(live, fence);
  ASSERT_TRUE(released.has_value());
  // 45 dead pages of 1.125 MiB hold at least 45 * 1.125 / 2 - 1 whole granules.
  EXPECT_GE(*released, (Bytes{45} * pool.page_bytes() / (2 << 20) - 1) * (2 << 20));
  EXPECT_EQ(pool.memory().committed, full.committed - *released);
  EXPECT_LE(pool.memory().cached, Bytes{4} * (2 << 20));
  EXPECT_EQ(whole.wrong(range(1, 20)), 0U);

  std::vector<PageId> back;
  for (std::int32_t page = 40; page < 65; ++page) back.push_back(PageId{page});
  pool.commit(back);
  whole.fill(range(40, 65));
  EXPECT_EQ(whole.wrong(range(40, 65)), 0U);
  EXPECT_EQ(whole.wrong(range(1, 20)), 0U);
  EXPECT_THROW(pool.commit(std::array{PageId{65}}), PageError);
  EXPECT_THROW((void)pool.release_unused(std::vector<std::uint8_t>(64, 0), fence), InvalidArgument);
  // All of it again, and nothing but page 0's granule kept.
  std::fill(live.begin(), live.end(), std::uint8_t{0});
  ASSERT_TRUE(pool.release_unused(live, fence).has_value());
  EXPECT_EQ(pool.memory().committed, 2 << 20);
  DevicePool plain(layout, {.pages = 65});
  EXPECT_EQ(plain.release_unused(live, fence), std::optional<Bytes>(0));
}

TEST_F(PoolTest, FenceEpochsFireInOrder) {
  EventFence fence;
  Stream a;
  Stream b;
  EXPECT_EQ(fence.completed(), 0U);
  EXPECT_TRUE(fence.drained());
  EXPECT_THROW(fence.record(std::span<const cudaStream_t>{}), InvalidArgument);
  Gate gate;
  gate.close(a.get());
  EXPECT_EQ(fence.next(), 1U);
  EXPECT_EQ(fence.record({a.get(), b.get()}), 1U);
  EXPECT_EQ(fence.record(b.get()), 2U);
  sync(b.get());
  EXPECT_EQ(fence.completed(), 0U);  // 2 has fired, but 1 has not
  gate.open();
  sync(a.get());
  EXPECT_EQ(fence.completed(), 2U);
  EXPECT_TRUE(fence.drained());
}

}  // namespace
}  // namespace packstone::testing
