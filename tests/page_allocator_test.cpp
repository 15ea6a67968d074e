// SPDX-License-Identifier: Apache-2.0
#include <packstone/page_allocator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace packstone {
namespace {

class PageAllocatorOf : public testing::TestWithParam<std::string> {
 protected:
  PageAllocator allocator_{{.pages = 11, .placement = {.policy = GetParam()}}};

  std::vector<PageId> take(std::size_t count, bool from_hold = false) {
    std::vector<PageId> pages(count);
    EXPECT_EQ(allocator_.allocate({.owner = 3, .from_hold = from_hold}, pages), Status::ok);
    allocator_.check();
    return pages;
  }
};

TEST_P(PageAllocatorOf, HeldPagesGoToNobodyButTheHolder) {
  ASSERT_EQ(allocator_.hold(4), Status::ok);
  EXPECT_EQ(allocator_.available(), 6);
  EXPECT_EQ(allocator_.hold(7), Status::out_of_pages);
  (void)take(6);
  std::vector<PageId> one(1);
  EXPECT_EQ(allocator_.allocate({.owner = 3}, one), Status::out_of_pages);
  (void)take(3, true);
  EXPECT_EQ(allocator_.held(), 1);
  std::vector<PageId> two(2);
  EXPECT_EQ(allocator_.allocate({.owner = 3, .from_hold = true}, two), Status::out_of_pages);
  EXPECT_THROW(allocator_.forfeit(2), InvalidArgument);
  allocator_.forfeit(1);
  EXPECT_EQ(allocator_.available(), 1);
  allocator_.check();
}

TEST_P(PageAllocatorOf, AMoveTakesReferencesAndOwnerAlong) {
  const std::vector<PageId> pages = take(3);
  allocator_.retain(std::vector{pages[1]});
  const PageId destination = take(1)[0];
  allocator_.release(std::vector{destination});
  allocator_.move({pages[1], destination}, 4);
  EXPECT_EQ(allocator_.set().references(destination), 2);
  EXPECT_EQ(allocator_.set().owner(destination), 3U);
  EXPECT_EQ(allocator_.set().state(pages[1]), PageState::retired);
  EXPECT_EQ(allocator_.available(), 6);
  EXPECT_THROW(allocator_.release(std::vector{pages[1]}), PageError);
  EXPECT_EQ(allocator_.reclaim(3), 0);
  EXPECT_EQ(allocator_.reclaim(4), 1);
  EXPECT_EQ(allocator_.available(), 7);
  allocator_.check();
}

TEST_P(PageAllocatorOf, AMoveThatDoesNotFitChangesNothing) {
  const std::vector<PageId> pages = take(3);
  allocator_.pin(pages[2]);
  const auto refused = [&](PageMove move) {
    EXPECT_THROW(allocator_.move(move, 1), PageError);
    allocator_.check();
    EXPECT_EQ(allocator_.available(), 7);
  };
  const PageId free = take(1)[0];
  allocator_.release(std::vector{free});
  refused({pages[0], pages[1]});
  refused({pages[2], free});
  refused({free, free});
  refused({kReservedPage, free});
  refused({pages[0], kReservedPage});
  refused({pages[0], PageId{11}});
  refused({kNoPage, free});
}

TEST_P(PageAllocatorOf, ARestoreBringsBackReferencesAndForgetsTheRest) {
  const std::vector<PageId> pages = take(5);
  allocator_.pin(pages[0]);
  ASSERT_EQ(allocator_.hold(2), Status::ok);
  const std::vector<PageAllocator::Living> living = {{PageId{2}, 3, 70}, {PageId{9}, 1, 71}};
  allocator_.restore(living);
  allocator_.check();
  EXPECT_EQ(allocator_.available(), 8);
  EXPECT_EQ(allocator_.held(), 0);
  EXPECT_EQ(allocator_.set().references(PageId{2}), 3);
  EXPECT_EQ(allocator_.set().owner(PageId{9}), 71U);
  EXPECT_FALSE(allocator_.set().pinned(pages[0]));

  for (const auto& bad :
       std::vector<std::vector<PageAllocator::Living>>{{{PageId{9}, 1, 0}, {PageId{2}, 1, 0}},
                                                       {{PageId{2}, 1, 0}, {PageId{2}, 1, 0}},
                                                       {{PageId{0}, 1, 0}},
                                                       {{PageId{11}, 1, 0}},
                                                       {{PageId{-1}, 1, 0}},
                                                       {{PageId{3}, 0, 0}}}) {
    EXPECT_THROW(allocator_.restore(bad), InvalidArgument);
    EXPECT_EQ(allocator_.available(), 8);
  }
  allocator_.clear();
  EXPECT_EQ(allocator_.available(), 10);
}

TEST_P(PageAllocatorOf, TwoAllocatorsLiveBesideEachOther) {
  PageAllocator other({.pages = 5, .placement = {.policy = GetParam()}});
  std::vector<PageId> pages(4);
  ASSERT_EQ(other.allocate({.owner = 1}, pages), Status::ok);
  EXPECT_EQ(allocator_.available(), 10);
  EXPECT_EQ(other.release(pages), 4);
  EXPECT_THROW(allocator_.release(pages), PageError);
}

TEST_P(PageAllocatorOf, StreamsKeepTheirPagesTogetherAndEndWithoutALoss) {
  std::vector<std::vector<PageId>> tables(2);
  for (int step = 0; step < 3; ++step) {
    for (StreamIndex stream = 0; stream < 2; ++stream) {
      std::vector<PageId> page(1);
      const PageId after = tables[stream].empty() ? kNoPage : tables[stream].back();
      ASSERT_EQ(allocator_.allocate(
                    {.take = {.stream = stream, .after = after, .expected = 2}, .owner = 1}, page),
                Status::ok);
      tables[stream].push_back(page[0]);
    }
  }
  EXPECT_EQ(allocator_.available(), 4);
  if (GetParam() == "run") {
    EXPECT_EQ(tables[0][2], page_after(tables[0][0], 2)) << "the first has its room ahead";
  }
  for (StreamIndex stream = 0; stream < 2; ++stream) {
    allocator_.end_stream(stream);
    allocator_.release(tables[stream]);
  }
  allocator_.end_stream(0);
  allocator_.end_stream(12345);
  EXPECT_EQ(allocator_.set().count(PageState::free), 10);
  allocator_.check();
}

INSTANTIATE_TEST_SUITE_P(Policies, PageAllocatorOf,
                         testing::Values("fifo", "lifo", "sorted", "lowest", "run"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace packstone
