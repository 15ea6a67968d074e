// SPDX-License-Identifier: Apache-2.0
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/cpu_gather.hpp>
#include <sim/table_layouts.hpp>

#include <algorithm>

namespace packstone::sim {
namespace {

using testing::ElementsAre;

TableSet small_set() {
  return {.page_size = 2,
          .pool_pages = 20,
          .tables = {{PageId{9}, PageId{3}}, {PageId{5}, PageId{12}, PageId{4}}},
          .lengths = {3, 6}};
}

TEST(TableLayouts, IdentityLaysSequencesEndToEnd) {
  const TableSet set = relaid(small_set(), TableLayout::identity, 1);
  EXPECT_THAT(set.tables[0], ElementsAre(PageId{1}, PageId{2}));
  EXPECT_THAT(set.tables[1], ElementsAre(PageId{3}, PageId{4}, PageId{5}));
  EXPECT_EQ(set.lengths, small_set().lengths);
}

TEST(TableLayouts, StrideInterleavesPageByPage) {
  const TableSet set = relaid(small_set(), TableLayout::stride, 1);
  EXPECT_THAT(set.tables[0], ElementsAre(PageId{1}, PageId{3}));
  EXPECT_THAT(set.tables[1], ElementsAre(PageId{2}, PageId{4}, PageId{5}));
}

TEST(TableLayouts, RandomNamesDistinctUsablePagesAndFollowsTheSeed) {
  const TableSet a = relaid(small_set(), TableLayout::random, 7);
  EXPECT_EQ(a.tables, relaid(small_set(), TableLayout::random, 7).tables);
  EXPECT_NE(a.tables, relaid(small_set(), TableLayout::random, 8).tables);
  std::vector<PageId> all;
  for (const auto& table : a.tables) all.insert(all.end(), table.begin(), table.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
  EXPECT_GE(index_of(all.front()), 1);
  EXPECT_LT(index_of(all.back()), 20);
}

TEST(TableLayouts, SlotsFollowPagesAndStopAtTheLength) {
  EXPECT_THAT(slots_of(small_set()), ElementsAre(18, 19, 6, 10, 11, 24, 25, 8, 9));
}

TEST(TableLayouts, PoolTooSmallForDistinctPagesIsRefused) {
  TableSet set = small_set();
  set.pool_pages = 5;
  EXPECT_THROW((void)relaid(set, TableLayout::identity, 1), InvalidArgument);
}

TEST(TableLayouts, SnapshotGivesLiveTablesCutToTheirLength) {
  KvManager manager({.pages = 10, .page_size = 2, .policy = "fifo"});
  SeqId a;
  SeqId empty;
  ASSERT_EQ(manager.create(a), Status::ok);
  ASSERT_EQ(manager.create(empty), Status::ok);
  ASSERT_EQ(manager.append(a, 3), Status::ok);
  ASSERT_EQ(manager.reserve(a, 4), Status::ok);
  const TableSet set = tables_of(manager.snapshot());
  ASSERT_EQ(set.tables.size(), 1U);
  EXPECT_THAT(set.tables[0], ElementsAre(PageId{1}, PageId{2}));
  EXPECT_EQ(set.pool_pages, 10);
}

TEST(CpuGather, MeasuresSomethingUnderItsOwnCeilingOrder) {
  const CpuGatherResult result = measure_cpu_gather(small_set(), {.row_bytes = 64, .repeats = 3});
  EXPECT_GT(result.gbps, 0.0);
  EXPECT_GT(result.ceiling_gbps, 0.0);
  EXPECT_LE(result.gbps_min, result.gbps);
  EXPECT_LE(result.gbps, result.gbps_max);
}

TEST(CpuGather, TablesThatShareTheirPagesMayHaveMoreTokensThanThePool) {
  TableSet set = small_set();
  set.tables.assign(100, {PageId{9}, PageId{3}});
  set.lengths.assign(100, 4);
  const Bytes pool = set.pool_pages * set.page_size * 64;
  ASSERT_GT(set.tokens(), set.pool_pages * set.page_size);
  EXPECT_GT(measure_cpu_gather(GatherMemory(pool), set, {.row_bytes = 64}).ceiling_gbps, 0.0);
}

TEST(CpuGather, RefusesWhatItCannotMeasure) {
  EXPECT_THROW((void)measure_cpu_gather(small_set(), {.row_bytes = 12}), InvalidArgument);
  EXPECT_THROW((void)measure_cpu_gather(small_set(), {.row_bytes = 64, .pool_bytes_max = 100}),
               InvalidArgument);
  EXPECT_THROW((void)measure_cpu_gather(TableSet{}, {}), InvalidArgument);
  const TableSet set = small_set();
  const Bytes pool = set.pool_pages * set.page_size * 64;
  EXPECT_GT(measure_cpu_gather(GatherMemory(pool), set, {.row_bytes = 64, .repeats = 1}).gbps, 0.0);
  EXPECT_THROW((void)measure_cpu_gather(GatherMemory(pool - 8), set, {.row_bytes = 64}),
               InvalidArgument);
}

}  // namespace
}  // namespace packstone::sim
