// SPDX-License-Identifier: Apache-2.0
#include "src/run_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

namespace packstone {
namespace {

using testing::ElementsAre;

std::vector<PageRun> runs_of(const std::vector<bool>& free) {
  std::vector<PageRun> runs;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(free.size()); ++i) {
    if (!free[static_cast<std::size_t>(i)]) continue;
    if (!runs.empty() && index_of(runs.back().first) + runs.back().count == i) {
      runs.back().count += 1;
    } else {
      runs.push_back({PageId{i}, 1});
    }
  }
  return runs;
}

TEST(RunIndex, JoinsNeighboursOnBothSides) {
  RunIndex index(100);
  index.insert({PageId{10}, 5});
  index.insert({PageId{20}, 5});
  EXPECT_THAT(index.runs(), ElementsAre(PageRun{PageId{10}, 5}, PageRun{PageId{20}, 5}));
  index.insert({PageId{15}, 5});
  EXPECT_THAT(index.runs(), ElementsAre(PageRun{PageId{10}, 15}));
  EXPECT_EQ(index.at(PageId{10}), (PageRun{PageId{10}, 15}));
  EXPECT_EQ(index.at(PageId{11}).count, 0);
  EXPECT_EQ(index.at(PageId{100}).count, 0);
}

TEST(RunIndex, AFitIsTheShortestThatSufficesAndTheLowestOfEqualOnes) {
  RunIndex index(1000);
  index.insert({PageId{1}, 100});
  index.insert({PageId{200}, 9});
  index.insert({PageId{300}, 12});
  index.insert({PageId{400}, 9});
  EXPECT_EQ(index.best_fit(9), (PageRun{PageId{200}, 9}));
  EXPECT_EQ(index.best_fit(10), (PageRun{PageId{300}, 12}));
  EXPECT_EQ(index.best_fit(13), (PageRun{PageId{1}, 100}));
  EXPECT_EQ(index.best_fit(101).count, 0);
  EXPECT_EQ(index.longest(), (PageRun{PageId{1}, 100}));
}

TEST(RunIndex, ATouchOfEitherEndOfThePoolIsNoReadOutsideIt) {
  RunIndex index(8);
  index.insert({PageId{0}, 8});
  EXPECT_EQ(index.best_fit(8).count, 8);
  index.take_exact(PageId{7});
  index.take_exact(PageId{0});
  EXPECT_THAT(index.runs(), ElementsAre(PageRun{PageId{1}, 6}));
  index.insert({PageId{0}, 1});
  index.insert({PageId{7}, 1});
  EXPECT_EQ(index.longest().count, 8);
}

TEST(RunIndex, ARunOverManyWordsIsCutAndJoinedAnywhere) {
  constexpr std::int32_t kPages = 300'000;
  RunIndex index(kPages);
  index.insert({PageId{1}, kPages - 1});
  for (const std::int32_t page : {64, 4'096, 150'001, 262'143, kPages - 1}) {
    index.take_exact(PageId{page});
    EXPECT_EQ(index.at(PageId{1}), (PageRun{PageId{1}, page - 1}));
    EXPECT_EQ(index.at(page_after(PageId{page})).count, std::max(kPages - page - 1, 0));
    EXPECT_EQ(index.pages(), kPages - 2);
    index.insert({PageId{page}, 1});
    EXPECT_THAT(index.runs(), ElementsAre(PageRun{PageId{1}, kPages - 1}));
    EXPECT_EQ(index.longest(), (PageRun{PageId{1}, kPages - 1}));
  }
  index.take_front({PageId{1}, kPages - 1}, 200'000);
  EXPECT_EQ(index.longest(), (PageRun{PageId{200'001}, kPages - 200'001}));
}

TEST(RunIndex, FollowsABitmapThroughRandomTakesAndGifts) {
  std::mt19937_64 random(4);
  constexpr std::int32_t kPages = 300;
  RunIndex index(kPages);
  std::vector<bool> free(kPages, false);
  for (int step = 0; step < 20'000; ++step) {
    const auto page = static_cast<std::int32_t>(random() % kPages);
    const auto at = static_cast<std::size_t>(page);
    if (!free[at]) {
      std::int32_t count = 1;
      while (count < 9 && page + count < kPages && !free[at + static_cast<std::size_t>(count)]) {
        count += 1;
      }
      index.insert({PageId{page}, count});
      std::fill_n(free.begin() + page, count, true);
    } else if (const PageRun run = index.at(PageId{page}); run.count > 0 && random() % 2 == 0) {
      const auto count =
          static_cast<std::int32_t>(1 + random() % static_cast<std::uint64_t>(run.count));
      index.take_front(run, count);
      std::fill_n(free.begin() + page, count, false);
    } else {
      index.take_exact(PageId{page});
      free[at] = false;
    }
    const std::vector<PageRun> expected = runs_of(free);
    ASSERT_EQ(index.runs(), expected) << "step " << step;
    ASSERT_EQ(index.pages(), std::count(free.begin(), free.end(), true));
    const auto wanted = static_cast<PageCount>(1 + random() % 12);
    // Runs of the class of `wanted` itself may be passed over, longer ones never.
    const auto sure = static_cast<PageCount>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
    const PageCount most =
        expected.empty() ? 0 : std::ranges::max(expected, {}, &PageRun::count).count;
    const PageRun fit = index.best_fit(wanted);
    ASSERT_TRUE(fit.count == 0 || (fit.count >= wanted && index.at(fit.first) == fit));
    ASSERT_TRUE(fit.count > 0 || most < sure) << "a fit of " << wanted << " at step " << step;
    ASSERT_FALSE(fit.count > 0 && most < wanted);
    ASSERT_EQ(index.longest().count > 0, !expected.empty());
  }
}

// The index lists the run that came last only when something else is asked. Nothing that can be
// asked may tell when that was.
TEST(RunIndex, AnswersAsIfEveryRunWereListedAtOnce) {
  constexpr std::int32_t kPages = 200;
  for (const std::uint64_t gifts :
       {2U, 5U, 8U}) {  // of 10 steps: a nearly full index, a half, empty
    std::mt19937_64 random(gifts);
    RunIndex lazy(kPages);
    RunIndex listed(kPages);
    std::vector<bool> free(kPages, false);
    const auto take = [&](PageRun run, std::int32_t count) {
      lazy.take_front(run, count);
      listed.take_front(run, count);
      std::fill_n(free.begin() + index_of(run.first), count, false);
    };
    for (int step = 0; step < 20'000; ++step) {
      const auto page = static_cast<std::int32_t>(random() % kPages);
      const auto at = static_cast<std::size_t>(page);
      const std::uint64_t dice = random() % 10;
      if (dice < gifts && !free[at]) {
        const auto most = static_cast<std::int32_t>(1 + random() % 9);
        std::int32_t count = 1;
        while (count < most && page + count < kPages && !free[at + static_cast<std::size_t>(count)])
          count += 1;
        lazy.insert({PageId{page}, count});
        listed.insert({PageId{page}, count});
        std::fill_n(free.begin() + page, count, true);
      } else if (dice == 9 && free[at]) {
        lazy.take_exact(PageId{page});
        listed.take_exact(PageId{page});
        free[at] = false;
      } else if (dice % 3 == 0) {
        const PageRun run = lazy.at(PageId{page});
        ASSERT_EQ(run, listed.at(PageId{page})) << "step " << step;
        if (run.count > 0)
          take(run,
               static_cast<std::int32_t>(1 + random() % static_cast<std::uint64_t>(run.count)));
      } else if (dice % 3 == 1) {
        const auto wanted = static_cast<std::int32_t>(1 + random() % 12);
        const PageRun fit = lazy.best_fit(wanted);
        ASSERT_EQ(fit, listed.best_fit(wanted)) << "step " << step;
        if (fit.count > 0) take(fit, wanted);
      } else {
        const PageRun run = lazy.longest();
        ASSERT_EQ(run, listed.longest()) << "step " << step;
        if (run.count > 0) take(run, 1);
      }
      (void)listed.longest();
      ASSERT_EQ(lazy.runs(), runs_of(free)) << "step " << step;
      ASSERT_EQ(listed.runs(), lazy.runs()) << "step " << step;
      ASSERT_EQ(lazy.pages(), listed.pages());
    }
  }
}

}  // namespace
}  // namespace packstone
