// SPDX-License-Identifier: Apache-2.0
#include "src/bit_tree.hpp"

#include <packstone/units.hpp>

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace packstone {
namespace {

std::int64_t next_in(const std::set<std::int64_t>& set, std::int64_t from) {
  const auto at = set.lower_bound(from);
  return at == set.end() ? BitTree::kNone : *at;
}

std::int64_t previous_in(const std::set<std::int64_t>& set, std::int64_t from) {
  const auto at = set.upper_bound(from);
  return at == set.begin() ? BitTree::kNone : *std::prev(at);
}

TEST(BitTree, FollowsAnOrderedSetAtEverySizeAroundAWordBorder) {
  std::mt19937_64 random(3);
  for (const std::int64_t size : {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 300'000}) {
    BitTree tree(size);
    std::set<std::int64_t> set;
    const auto below = static_cast<std::uint64_t>(size);
    for (int step = 0; step < 3000; ++step) {
      const auto i = static_cast<std::int64_t>(random() % below);
      ASSERT_EQ(tree.contains(i), set.contains(i));
      if (set.contains(i)) {
        tree.erase(i);
        set.erase(i);
      } else if (set.size() < below / 2 + 1) {
        tree.insert(i);
        set.insert(i);
      }
      const auto from = static_cast<std::int64_t>(random() % below);
      ASSERT_EQ(tree.next(from), next_in(set, from)) << size << " from " << from;
      ASSERT_EQ(tree.previous(from), previous_in(set, from)) << size << " from " << from;
      ASSERT_EQ(tree.count(), static_cast<std::int64_t>(set.size()));
    }
    EXPECT_EQ(tree.next(size), BitTree::kNone);
    EXPECT_EQ(tree.previous(-1), BitTree::kNone);
    EXPECT_EQ(tree.size(), size);
  }
}

TEST(BitTree, IsEmptyUntilSomethingIsInserted) {
  BitTree tree(1000);
  EXPECT_TRUE(tree.empty());
  EXPECT_EQ(tree.next(0), BitTree::kNone);
  EXPECT_EQ(tree.previous(999), BitTree::kNone);
  tree.insert(999);
  EXPECT_EQ(tree.next(0), 999);
  tree.erase(999);
  EXPECT_TRUE(tree.empty());
  EXPECT_EQ(BitTree().size(), 0);
}

TEST(BitTree, ReachesTheLastPageOfTheLargestPool) {
  BitTree tree(kPagesMax);  // 272 MB
  tree.insert(kPagesMax - 1);
  tree.insert(1);
  EXPECT_EQ(tree.next(2), kPagesMax - 1);
  EXPECT_EQ(tree.previous(kPagesMax - 2), 1);
  tree.erase(kPagesMax - 1);
  EXPECT_EQ(tree.next(2), BitTree::kNone);
}

}  // namespace
}  // namespace packstone
