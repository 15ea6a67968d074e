// SPDX-License-Identifier: Apache-2.0
#include <packstone/lowest_free_list.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

namespace packstone {
namespace {

TEST(LowestFreeList, EqualsASortedSetUnderRandomCommands) {
  for (const PageCount pages : {1, 2, 64, 65, 500}) {
    LowestFreeList list(pages);
    std::set<std::int32_t> model;
    for (std::int32_t page = 1; page < pages; ++page) model.insert(page);
    std::mt19937_64 random(41);
    std::vector<PageId> live;
    for (int step = 0; step < 400; ++step) {
      if (random() % 2 == 0) {
        std::vector<std::int32_t> counts;
        for (std::uint64_t i = random() % 5; i > 0; --i) {
          counts.push_back(static_cast<std::int32_t>(random() % 40));
        }
        PageCount wanted = 0;
        for (const std::int32_t count : counts) wanted += count;
        std::vector<PageId> got;
        const Status status = list.allocate(counts, got);
        ASSERT_EQ(status == Status::ok, wanted <= static_cast<PageCount>(model.size()));
        if (status != Status::ok) {
          ASSERT_TRUE(got.empty());
          continue;
        }
        for (const PageId page : got) {
          ASSERT_EQ(index_of(page), *model.begin());
          model.erase(model.begin());
        }
        live.insert(live.end(), got.begin(), got.end());
      } else if (!live.empty()) {
        std::ranges::shuffle(live, random);
        const std::size_t keep = random() % live.size();
        const std::vector<PageId> back(live.begin() + static_cast<std::ptrdiff_t>(keep),
                                       live.end());
        live.resize(keep);
        list.release(back);
        for (const PageId page : back) model.insert(index_of(page));
      }
      ASSERT_EQ(list.free(), static_cast<PageCount>(model.size()));
    }
  }
}

TEST(LowestFreeList, BadCallsChangeNothing) {
  LowestFreeList list(100);
  std::vector<PageId> live;
  ASSERT_EQ(list.allocate(std::array{10}, live), Status::ok);
  const auto kind_of = [&](std::vector<PageId> pages) {
    try {
      list.release(pages);
    } catch (const PageError& error) {
      return error.kind();
    }
    return PageError::Kind::pinned;  // never thrown here
  };
  const std::vector<std::uint64_t> before(list.bits().begin(), list.bits().end());
  EXPECT_EQ(kind_of({PageId{3}, PageId{0}}), PageError::Kind::reserved_page);
  EXPECT_EQ(kind_of({PageId{3}, PageId{-1}}), PageError::Kind::out_of_range);
  EXPECT_EQ(kind_of({PageId{3}, PageId{100}}), PageError::Kind::out_of_range);
  EXPECT_EQ(kind_of({PageId{3}, PageId{50}}), PageError::Kind::not_live);
  EXPECT_EQ(kind_of({PageId{8}, PageId{3}, PageId{8}}), PageError::Kind::duplicate);
  std::vector<PageId> none;
  EXPECT_THROW((void)list.allocate(std::array{-1}, none), InvalidArgument);
  EXPECT_EQ(list.allocate(std::array{50, 40}, none), Status::out_of_pages);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(std::ranges::equal(list.bits(), before));
  EXPECT_EQ(list.free(), 89);
}

TEST(LowestFreeList, TakesOverAState) {
  LowestFreeList list(70);
  LowestFreeList other(70);
  std::vector<PageId> live;
  ASSERT_EQ(other.allocate(std::array{66}, live), Status::ok);
  list.assign(other.bits());
  EXPECT_EQ(list.free(), 3);
  EXPECT_THROW(list.assign(std::array<std::uint64_t, 1>{0}), InvalidArgument);
  EXPECT_THROW(list.assign(std::array<std::uint64_t, 2>{1, 0}), InvalidArgument);  // page 0
  EXPECT_THROW(list.assign(std::array<std::uint64_t, 2>{0, 1ULL << 6}), InvalidArgument);
  EXPECT_EQ(list.free(), 3);
}

}  // namespace
}  // namespace packstone
