// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/units.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>
#include <unordered_set>

namespace packstone {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Units, PagesForRoundsUpAndDoesNotOverflow) {
  EXPECT_EQ(pages_for(0, 16), 0);
  EXPECT_EQ(pages_for(1, 16), 1);
  EXPECT_EQ(pages_for(16, 16), 1);
  EXPECT_EQ(pages_for(17, 16), 2);
  EXPECT_EQ(pages_for(kMost, 1), kMost);
  EXPECT_EQ(pages_for(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(pages_for(kMost, kMost), 1);
  EXPECT_EQ(pages_for(kMost - 1, kMost), 1);
}

TEST(Units, SlotsOfTheLastPagePass31Bits) {
  constexpr PageId kLast{static_cast<std::int32_t>(kPagesMax - 1)};
  EXPECT_EQ(slot_of(kLast, 1, 0), 2'147'483'646);
  EXPECT_EQ(slot_of(kLast, 64, 63), 2'147'483'646LL * 64 + 63);
  EXPECT_EQ(slot_of(kLast, 1'000'000, 999'999), 2'147'483'646'999'999LL);
  EXPECT_EQ(index_of(page_after(kLast)), std::numeric_limits<std::int32_t>::max());
}

TEST(Units, APageIsNoNumberByAccident) {
  static_assert(!std::is_convertible_v<PageId, std::int32_t>);
  static_assert(!std::is_convertible_v<std::int32_t, PageId>);
  static_assert(sizeof(PageId) == 4);
  EXPECT_EQ(index_of(kNoPage), -1);
  EXPECT_EQ(index_of(kReservedPage), 0);
}

TEST(Units, HandlesOfDifferentGenerationsDiffer) {
  const std::unordered_set<SeqId> handles = {{1, 1}, {1, 2}, {2, 1}, {1, 1}};
  EXPECT_EQ(handles.size(), 3U);
  EXPECT_LT((SeqId{1, 2}), (SeqId{2, 1}));
  EXPECT_NE(SeqId{}, (SeqId{0, 0}));
}

TEST(Units, EveryStatusHasAName) {
  EXPECT_STREQ(to_string(Status::ok), "ok");
  EXPECT_STREQ(to_string(Status::out_of_pages), "out of pages");
  EXPECT_STREQ(to_string(Status::out_of_sequences), "out of sequences");
}

TEST(UnitsDeathTest, AnAssertionNamesItsExpressionAndPlace) {
  EXPECT_DEATH(PACKSTONE_ASSERT(1 + 1 == 3), "units_test.*1 \\+ 1 == 3");
}

}  // namespace
}  // namespace packstone
