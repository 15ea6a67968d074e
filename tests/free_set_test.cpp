// SPDX-License-Identifier: Apache-2.0
#include <packstone/free_set.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace packstone {
namespace {

using testing::ElementsAre;

constexpr std::array<PageState, 4> kStates = {PageState::free, PageState::reserved, PageState::live,
                                              PageState::retired};

std::array<PageCount, 4> counts(const FreeSet& set) {
  set.check();
  std::array<PageCount, 4> result{};
  for (std::size_t i = 0; i < kStates.size(); ++i) result[i] = set.count(kStates[i]);
  return result;
}

TEST(FreeSet, RefusesAPoolOfNoPageOrOfTooMany) {
  EXPECT_THROW(FreeSet(0), InvalidArgument);
  EXPECT_THROW(FreeSet(-1), InvalidArgument);
  EXPECT_THROW(FreeSet(kPagesMax + 1), InvalidArgument);
  const FreeSet only_the_reserved_page(1);
  EXPECT_EQ(only_the_reserved_page.count(PageState::free), 0);
  EXPECT_EQ(only_the_reserved_page.state(kReservedPage), PageState::reserved);
}

TEST(FreeSet, APageGoesThroughItsStates) {
  FreeSet set(10);
  EXPECT_THAT(counts(set), ElementsAre(9, 0, 0, 0));
  set.reserve({PageId{3}, 4});
  EXPECT_THAT(counts(set), ElementsAre(5, 4, 0, 0));
  set.acquire(PageId{3}, 7);
  set.acquire(PageId{9}, 8);
  EXPECT_THAT(counts(set), ElementsAre(4, 3, 2, 0));
  set.forfeit({PageId{4}, 3});
  EXPECT_THAT(counts(set), ElementsAre(7, 0, 2, 0));
  set.acquire(PageId{4}, 7);
  set.retain(std::vector{PageId{3}});
  set.retire({PageId{3}, PageId{4}}, 5);
  EXPECT_THAT(counts(set), ElementsAre(6, 0, 2, 1));
  EXPECT_EQ(set.references(PageId{4}), 2);
  EXPECT_EQ(set.last_epoch(), 5U);
  std::vector<PageId> freed;
  set.reclaim(4, freed);
  EXPECT_TRUE(freed.empty());
  set.reclaim(5, freed);
  EXPECT_THAT(freed, ElementsAre(PageId{3}));
  EXPECT_EQ(set.last_epoch(), 0U);
  EXPECT_THAT(counts(set), ElementsAre(7, 0, 2, 0));
}

TEST(FreeSet, ReleasedPagesComeInTheOrderOfTheCallAndAfterWhatWasThere) {
  FreeSet set(10);
  for (const std::int32_t page : {1, 2, 3}) set.acquire(PageId{page}, 1);
  set.retain(std::vector{PageId{2}});
  std::vector<PageId> freed = {PageId{9}};
  set.release(std::vector{PageId{3}, PageId{2}, PageId{1}}, freed);
  EXPECT_THAT(freed, ElementsAre(PageId{9}, PageId{3}, PageId{1}));
  EXPECT_THROW(set.release(std::vector{PageId{2}, PageId{1}}, freed), PageError);
  EXPECT_EQ(freed.size(), 3U);
  EXPECT_EQ(set.references(PageId{2}), 1);
}

/// A pool of 100 pages with all live but free 5, reserved 6 and retired 7; 20 and 60 are shared.
FreeSet long_set() {
  FreeSet set(100);
  set.reserve({PageId{6}, 1});
  for (std::int32_t page = 1; page < 100; ++page) {
    if (page != 6) set.acquire(PageId{page}, 0);
  }
  set.retain(std::vector{PageId{20}, PageId{60}});
  set.retire({PageId{7}, PageId{5}}, 1);
  std::vector<PageId> freed;
  set.release(std::vector{PageId{5}}, freed);
  return set;
}

TEST(FreeSet, ALongRunWithOneWrongPageChangesNothing) {
  FreeSet set = long_set();
  const auto before = counts(set);
  for (const std::int32_t wrong : {0, 5, 6, 7, 10, 100, 127, 128, -1, 2'147'483'647}) {
    // Before, at and behind the ends of words of 32 pages, and where a run ends within one.
    for (const std::size_t at : {1U, 7U, 8U, 21U, 22U, 23U, 40U, 69U, 70U}) {
      std::vector<PageId> pages;
      for (std::int32_t i = 0; i < 70; ++i) pages.push_back(PageId{10 + i});
      pages.insert(pages.begin() + static_cast<std::ptrdiff_t>(at), PageId{wrong});
      std::vector<PageId> freed = {PageId{1}};
      EXPECT_THROW(set.release(pages, freed), PageError) << wrong << " at " << at;
      EXPECT_THAT(freed, ElementsAre(PageId{1}));
      EXPECT_EQ(counts(set), before);
      EXPECT_EQ(set.references(PageId{20}), 2);
      EXPECT_EQ(set.references(PageId{60}), 2);
    }
  }
  std::vector<PageId> past_the_end;
  for (std::int32_t page = 90; page < 110; ++page) past_the_end.push_back(PageId{page});
  std::vector<PageId> freed;
  EXPECT_THROW(set.release(past_the_end, freed), PageError);
  EXPECT_EQ(counts(set), before);
}

TEST(FreeSet, ALongRunWithSharedPagesFreesTheOthers) {
  FreeSet set = long_set();
  std::vector<PageId> pages;
  std::vector<PageId> others;
  for (std::int32_t page = 10; page < 80; ++page) {
    pages.push_back(PageId{page});
    if (page != 20 && page != 60) others.push_back(PageId{page});
  }
  std::vector<PageId> freed;
  set.release(pages, freed);
  EXPECT_EQ(freed, others);
  EXPECT_EQ(set.references(PageId{20}), 1);
  // Tags that are named only now do not reach pages that had none.
  set.acquire(others, 9);
  EXPECT_EQ(set.owner(PageId{11}), 9U);
  EXPECT_EQ(set.owner(PageId{20}), 0U);
  EXPECT_EQ(set.owner(PageId{85}), 0U);
  EXPECT_EQ(set.state(PageId{79}), PageState::live);
  set.check();
}

TEST(FreeSet, RetiredPagesAreFreedInTheOrderOfRetirement) {
  FreeSet set(10);
  for (std::int32_t page = 1; page <= 6; ++page) set.acquire(PageId{page}, 1);
  set.retire({PageId{3}, PageId{4}}, 1);
  set.retire({PageId{1}, PageId{5}}, 1);
  set.retire({PageId{2}, PageId{6}}, 2);
  std::vector<PageId> freed;
  set.reclaim(9, freed);
  EXPECT_THAT(freed, ElementsAre(PageId{3}, PageId{1}, PageId{2}));
}

TEST(FreeSet, APinKeepsAPageAliveAndCountsByItself) {
  FreeSet set(4);
  set.acquire(PageId{2}, 6);
  set.pin(PageId{2});
  set.pin(PageId{2});
  EXPECT_EQ(set.references(PageId{2}), 3);
  std::vector<PageId> freed;
  set.release(std::vector{PageId{2}}, freed);
  EXPECT_TRUE(freed.empty());
  try {
    set.release(std::vector{PageId{2}}, freed);
    FAIL() << "a table dropped the reference of a pin";
  } catch (const PageError& error) {
    EXPECT_EQ(error.kind(), PageError::Kind::pinned);
    EXPECT_EQ(error.owner(), 6U);
  }
  EXPECT_THAT(set.pinned_list(), ElementsAre(PageId{2}));
  EXPECT_FALSE(set.unpin(PageId{2}));
  EXPECT_TRUE(set.unpin(PageId{2}));
  EXPECT_EQ(set.state(PageId{2}), PageState::free);
  EXPECT_THROW((void)set.unpin(PageId{2}), PageError);
  EXPECT_EQ(set.pinned_pages(), 0);
}

TEST(FreeSet, ALeakReportNamesPagesByOwner) {
  FreeSet set(10);
  for (const auto& [page, owner] : {std::pair{5, 30U}, {2, 10U}, {7, 30U}}) {
    set.acquire(PageId{page}, owner);
  }
  const auto holdings = set.holdings();
  ASSERT_EQ(holdings.size(), 2U);
  EXPECT_EQ(holdings[0].owner, 10U);
  EXPECT_THAT(holdings[0].pages, ElementsAre(PageId{2}));
  EXPECT_EQ(holdings[1].owner, 30U);
  EXPECT_THAT(holdings[1].pages, ElementsAre(PageId{5}, PageId{7}));
}

TEST(FreeSet, QuestionsAboutPagesOutsideThePoolAreErrors) {
  const FreeSet set(4);
  for (const PageId page : {PageId{-1}, PageId{4}, PageId{2'147'483'647}}) {
    EXPECT_THROW((void)set.state(page), PageError);
    EXPECT_THROW((void)set.references(page), PageError);
    EXPECT_THROW((void)set.owner(page), PageError);
    EXPECT_FALSE(set.pinned(page));
  }
}

TEST(FreeSetDeathTest, APolicyThatHandsOutALivePageIsABug) {
  FreeSet set(4);
  set.acquire(PageId{1}, 1);
  EXPECT_DEATH(set.acquire(PageId{1}, 2), "packstone bug");
  EXPECT_DEATH(set.acquire(kReservedPage, 2), "packstone bug");
}

}  // namespace
}  // namespace packstone
