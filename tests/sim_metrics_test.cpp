// SPDX-License-Identifier: Apache-2.0
// Every metric on scenes small enough to count by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/metrics.hpp>
#include <sim/oracle.hpp>

#include <cmath>
#include <initializer_list>
#include <vector>

namespace packstone::sim {
namespace {

std::vector<PageId> pages(std::initializer_list<std::int32_t> ids) {
  std::vector<PageId> result;
  for (const std::int32_t id : ids) result.push_back(PageId{id});
  return result;
}

// Two sequences in a pool of 16 pages of one slot; free are page 6 and pages 9 to 16.
class TwoSequences : public ::testing::Test {
 protected:
  TwoSequences() {
    meter.begin();
    meter.add({.pages = a, .length = 5, .prefilled = 3});
    meter.add({.pages = b, .length = 2, .prefilled = 2});
    meter.end();
    metrics = metrics_of(meter);
  }
  std::vector<PageId> a = pages({1, 2, 3, 7, 8});
  std::vector<PageId> b = pages({5, 4});
  Meter meter{17, 1, 1152};
  Metrics metrics{};
};

TEST_F(TwoSequences, ContiguityOfPrefillAndDecodeApart) {
  EXPECT_DOUBLE_EQ(metrics.contig_prefill, 2.0 / 3.0);  // 1-2, 2-3, not 5-4
  EXPECT_DOUBLE_EQ(metrics.contig_decode, 1.0);         // 7-8; 3-7 is the border
  EXPECT_DOUBLE_EQ(metrics.contig_all, 3.0 / 5.0);
  EXPECT_DOUBLE_EQ(metrics.contig_all_by_request, (0.75 + 0.0) / 2.0);
}

TEST_F(TwoSequences, Runs) {
  EXPECT_DOUBLE_EQ(metrics.run_mean, 7.0 / 4.0);  // 123, 78, 5, 4
  EXPECT_DOUBLE_EQ(metrics.run_p50w, 2.0);        // tokens by run: 1 1 2 2 3 3 3
  EXPECT_DOUBLE_EQ(metrics.tok_in_runs_16, 0.0);
  EXPECT_DOUBLE_EQ(meter.run_lengths().share_at_least(2), 5.0 / 7.0);
  EXPECT_DOUBLE_EQ(metrics.descriptors, 2.0);
  EXPECT_DOUBLE_EQ(metrics.mergeable, 1.0 - 4.0 / 7.0);
}

TEST_F(TwoSequences, SpanAndStride) {
  EXPECT_DOUBLE_EQ(metrics.span_ratio, (8.0 + 2.0) / 7.0);
  EXPECT_DOUBLE_EQ(metrics.stride_regular,
                   1.0 / 3.0);  // steps 1 1 4 1: one repeats; b has one step
}

TEST_F(TwoSequences, Frontier) {
  EXPECT_EQ(meter.live_pages(), 7);
  EXPECT_EQ(meter.frontier(), 8);
  EXPECT_DOUBLE_EQ(metrics.frontier_waste, 1.0 - 7.0 / 8.0);
  EXPECT_EQ(meter.frontier_moves(), 1);  // page 8 into page 6
}

TEST_F(TwoSequences, FreeExtents) {
  EXPECT_DOUBLE_EQ(metrics.free_pages, 9.0);
  EXPECT_DOUBLE_EQ(metrics.holes, 2.0);
  EXPECT_DOUBLE_EQ(metrics.lfe, 8.0);
  EXPECT_DOUBLE_EQ(metrics.lfe_waste, 1.0 / 9.0);
  EXPECT_NEAR(metrics.free_entropy, std::log2(9.0) - 24.0 / 9.0, 1e-12);
  EXPECT_DOUBLE_EQ(free_F(meter.free(), 0), 0.0);
  EXPECT_DOUBLE_EQ(free_F(meter.free(), 3), 0.0);
  EXPECT_TRUE(std::isnan(free_F(meter.free(), 4)));
  EXPECT_DOUBLE_EQ(ufsi(meter.free(), 1), 1.0 / 9.0);
  EXPECT_DOUBLE_EQ(ufsi(meter.free(), 4), 1.0);
  EXPECT_DOUBLE_EQ(extfrag(meter.free(), 3), -1.0);
  EXPECT_DOUBLE_EQ(extfrag(meter.free(), 4), 1.0 - (1.0 + 9.0 / 16.0) / 2.0);
}

TEST(Metrics, CheckerboardOfFreePagesServesSinglePagesOnly) {
  Meter meter(9, 1, 1152);
  const std::vector<PageId> odd = pages({1, 3, 5, 7});
  meter.begin();
  meter.add({.pages = odd, .length = 4, .prefilled = 4});
  meter.end();
  EXPECT_DOUBLE_EQ(free_F(meter.free(), 0), 0.0);
  EXPECT_DOUBLE_EQ(free_F(meter.free(), 1), 1.0);
  EXPECT_DOUBLE_EQ(metrics_of(meter).free_F_auc, (0.5 + 1.0) / 2.0);
  EXPECT_DOUBLE_EQ(metrics_of(meter).free_entropy, 2.0);
  EXPECT_DOUBLE_EQ(metrics_of(meter).stride_regular, 1.0);
  EXPECT_DOUBLE_EQ(metrics_of(meter).contig_all, 0.0);
}

TEST(Metrics, LargePagesBreakAtPageBordersOnly) {
  Meter meter(17, 4, 1152);
  const std::vector<PageId> table = pages({2, 3, 9});
  const LayoutTotals totals = meter.measure({.pages = table, .length = 10, .prefilled = 6});
  EXPECT_EQ(totals.prefill_pairs, 5);
  EXPECT_EQ(totals.prefill_adjacent, 5);
  EXPECT_EQ(totals.decode_pairs, 3);
  EXPECT_EQ(totals.decode_adjacent, 2);
  EXPECT_EQ(totals.runs, 2);
  EXPECT_EQ(totals.wasted_slots, 2);
  EXPECT_EQ(totals.span_slots, 8 * 4 - 2);  // the last page is the highest and has two slots
}

TEST(Metrics, ABorderBetweenPrefillAndDecodeIsNeither) {
  Meter meter(17, 4, 1152);
  const std::vector<PageId> table = pages({2, 5});
  const LayoutTotals totals = meter.measure({.pages = table, .length = 8, .prefilled = 4});
  EXPECT_EQ(totals.prefill_adjacent, 3);
  EXPECT_EQ(totals.prefill_pairs, 3);
  EXPECT_EQ(totals.decode_adjacent, 3);
  EXPECT_EQ(totals.decode_pairs, 3);
  EXPECT_EQ(totals.all_pairs, 7);
  EXPECT_EQ(totals.all_adjacent, 6);
}

TEST(Metrics, CapacityBeyondTheLengthIsWasteAndInUse) {
  Meter meter(17, 4, 1152);
  const std::vector<PageId> table = pages({1, 2, 3});
  meter.begin();
  meter.add({.pages = table, .length = 5, .prefilled = 5});
  meter.end();
  EXPECT_EQ(meter.live_pages(), 3);
  EXPECT_DOUBLE_EQ(metrics_of(meter).internal_frag, 7.0 / 12.0);
}

TEST(Metrics, TwoMebibyteRegions) {
  Meter meter(9, 1, 1 << 20);  // a slot is 1 MiB: page 1 ends region 0, page 2 begins region 1
  const std::vector<PageId> table = pages({1, 2});
  meter.begin();
  meter.add({.pages = table, .length = 2, .prefilled = 2});
  meter.end();
  EXPECT_DOUBLE_EQ(metrics_of(meter).pages2m_ratio, 2.0);
  EXPECT_DOUBLE_EQ(metrics_of(meter).returnable_2m, 2.0 / 3.0);  // 4-6 and 6-8 of 3-9 MiB
}

TEST(Metrics, NothingIsNotANumberRatherThanZero) {
  Meter meter(9, 1, 1152);
  meter.begin();
  meter.end();
  const Metrics metrics = metrics_of(meter);
  EXPECT_TRUE(std::isnan(metrics.run_mean));
  EXPECT_TRUE(std::isnan(metrics.contig_prefill));
  EXPECT_TRUE(std::isnan(metrics.frontier_waste));
  EXPECT_DOUBLE_EQ(metrics.free_pages, 8.0);
  EXPECT_DOUBLE_EQ(metrics.lfe, 8.0);
}

TEST(Metrics, AWholeWordOfUsedPagesIsSkipped) {
  Meter meter(200, 1, 1152);
  std::vector<PageId> table;
  for (std::int32_t i = 1; i < 150; ++i) table.push_back(PageId{i});
  meter.begin();
  meter.add({.pages = table, .length = 149, .prefilled = 149});
  meter.end();
  EXPECT_EQ(meter.free().pages, 50);
  EXPECT_EQ(meter.free().holes, 1);
  EXPECT_EQ(meter.frontier_moves(), 0);
}

TEST(Metrics, OccupiedPagesOutsideTheTablesCount) {
  Meter meter(9, 1, 1152);
  meter.begin();
  meter.occupy(PageId{8});
  meter.occupy(PageId{8});
  meter.end();
  EXPECT_EQ(meter.live_pages(), 1);
  EXPECT_EQ(meter.frontier(), 8);
  EXPECT_EQ(meter.frontier_moves(), 1);
}

TEST(Metrics, MapCellsSayHowFullAndHowLongTheRuns) {
  Meter meter(17, 1, 1152);
  std::vector<PageId> table;
  for (std::int32_t i = 8; i < 16; ++i) table.push_back(PageId{i});
  meter.begin();
  meter.add({.pages = table, .length = 8, .prefilled = 8});
  meter.end();
  const std::vector<std::uint8_t> cells = meter.map(2);
  EXPECT_THAT(cells, ::testing::ElementsAre(0, 0, 8, 3));  // 8 of 9 pages, runs of 2^3
}

TEST(Metrics, RunBinsInvertAndStartAtPowersOfTwo) {
  EXPECT_EQ(run_bin(1), 0);
  EXPECT_EQ(run_bin(2), 4);
  EXPECT_EQ(run_bin(3), 6);
  EXPECT_EQ(run_bin(4), 8);
  EXPECT_EQ(run_bin(64), 24);
  for (std::int64_t slots = 1; slots < 100'000; ++slots) {
    ASSERT_LE(run_bin_start(run_bin(slots)), slots);
    ASSERT_GT(run_bin_start(run_bin(slots) + 1), slots);
  }
}

TEST(Metrics, LongRunsKeepExactMedianAndShares) {
  RunLengths runs;
  runs.add(5000);
  runs.add(100);
  runs.add(10'000);
  EXPECT_EQ(runs.tokens(), 15'100);
  EXPECT_EQ(runs.weighted_median(), 10'000);
  EXPECT_DOUBLE_EQ(runs.share_at_least(5000), 15'000.0 / 15'100.0);
}

TEST(Oracle, OneRunASequence) {
  Oracle oracle;
  oracle.begin();
  oracle.add(100);
  oracle.add(20);
  oracle.add(0);
  EXPECT_DOUBLE_EQ(oracle.run_mean(), 60.0);
  EXPECT_DOUBLE_EQ(oracle.tok_in_runs(64), 100.0 / 120.0);
}

TEST(Oracle, ModelledCosts) {
  const CostModel model{.slot_bytes = 1000, .layers = 10, .copy_gbps = 2.0, .read_gbps = 4.0};
  EXPECT_DOUBLE_EQ(copy_seconds(model, 100, 1), 2.0 * 100 * 10'000 / 2e9);
  EXPECT_DOUBLE_EQ(attention_floor_seconds(model, 400), 400.0 * 10'000 / 4e9);
  EXPECT_DOUBLE_EQ(break_even_steps(1.0, 0.3, 0.2), 1.0 / (0.3 - 0.2));
  EXPECT_TRUE(std::isinf(break_even_steps(1.0, 0.2, 0.2)));
}

}  // namespace
}  // namespace packstone::sim
