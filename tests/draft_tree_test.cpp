// SPDX-License-Identifier: Apache-2.0
#include "sim/prng.hpp"

#include <packstone/draft_tree.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace packstone {
namespace {

using Parents = std::vector<std::int32_t>;

std::int64_t offending_node(const Parents& parents) {
  try {
    const DraftTree tree(parents);
  } catch (const TreeError& error) {
    return error.node();
  }
  return -1;
}

bool bit(const std::vector<std::uint64_t>& rows, std::size_t stride, std::size_t i, std::size_t j) {
  return (rows[i * stride + j / 64] >> (j % 64) & 1U) != 0;
}

TEST(TreeFault, SP04_PositionsComeFromRealParentsAndRepeat) {
  const DraftTree tree(Parents{-1, 0, 1, 0, 2, 3});
  std::vector<TokenCount> positions(6);
  tree.positions(100, positions);
  EXPECT_THAT(positions, testing::ElementsAre(100, 101, 102, 101, 103, 102));
  // Siblings with the same position do not see each other.
  std::vector<std::uint64_t> rows(6);
  tree.ancestor_mask(rows, 1);
  EXPECT_THAT(rows, testing::ElementsAre(0b1, 0b11, 0b111, 0b1001, 0b10111, 0b101001));
}

TEST(TreeFault, SP03_AMaskInABufferForFortyNodesEqualsOneOfItsOwnSize) {
  for (const int nodes : {7, 33}) {
    Parents parents{-1};
    for (int i = 1; i < nodes; ++i) parents.push_back((i - 1) / 2);
    const DraftTree tree(parents);
    std::vector<std::uint64_t> exact(static_cast<std::size_t>(nodes));
    tree.ancestor_mask(exact, 1);
    std::vector<std::uint64_t> wide(40 * 3, ~std::uint64_t{0});
    tree.ancestor_mask(wide, 3);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_EQ(wide[i * 3], exact[i]);
      EXPECT_EQ(wide[i * 3 + 1], 0U);
      EXPECT_EQ(wide[i * 3 + 2], 0U);
    }
    EXPECT_EQ(wide[exact.size() * 3], ~std::uint64_t{0}) << "rows past the tree are not touched";
  }
}

TEST(DraftTree, NamesTheFirstNodeThatIsNoTreesNode) {
  EXPECT_EQ(offending_node({}), -1);
  EXPECT_EQ(offending_node({-1}), -1);
  EXPECT_EQ(offending_node({0}), 0);            // its own parent
  EXPECT_EQ(offending_node({-1, 0, -1}), 2);    // second root
  EXPECT_EQ(offending_node({-1, 0, 7}), 2);     // parent outside
  EXPECT_EQ(offending_node({-1, -2}), 1);       // neither root nor node
  EXPECT_EQ(offending_node({-1, 2, 1}), 1);     // cycle
  EXPECT_EQ(offending_node({-1, 3, 0, 0}), 1);  // child before parent
  EXPECT_EQ(offending_node({1, -1}), 0);        // root does not come first
  EXPECT_EQ(offending_node(Parents(257, -1)), 256);
  EXPECT_EQ(DraftTree::chain(256).depth(255), 255);
  EXPECT_THROW((void)DraftTree::chain(257), TreeError);
  EXPECT_THROW((void)DraftTree::chain(-1), InvalidArgument);
}

TEST(DraftTree, MasksOfAnyWidthHoldExactlyTheAncestors) {
  sim::Prng random(5);
  for (const std::size_t nodes : {1U, 2U, 63U, 64U, 65U, 128U, 129U, 256U}) {
    Parents parents{-1};
    for (std::size_t i = 1; i < nodes; ++i) {
      parents.push_back(static_cast<std::int32_t>(random.below(i)));
    }
    const DraftTree tree(parents);
    const auto stride = static_cast<std::size_t>(tree.mask_words()) + nodes % 3;
    std::vector<std::uint64_t> rows(nodes * stride, ~std::uint64_t{0});
    tree.ancestor_mask(rows, static_cast<std::int64_t>(stride));
    for (std::size_t i = 0; i < nodes; ++i) {
      std::vector<bool> seen(stride * 64, false);
      for (const std::int32_t node : tree.path_to(static_cast<std::int64_t>(i))) {
        seen[static_cast<std::size_t>(node)] = true;
      }
      for (std::size_t j = 0; j < stride * 64; ++j) ASSERT_EQ(bit(rows, stride, i, j), seen[j]);
    }
    std::vector<std::uint64_t> small(nodes * stride - 1);
    EXPECT_THROW(tree.ancestor_mask(small, static_cast<std::int64_t>(stride)), InvalidArgument);
    EXPECT_THROW(tree.ancestor_mask(rows, tree.mask_words() - 1), InvalidArgument);
  }
}

TEST(DraftTree, AcceptedPathsBeginAtTheRootAndFollowParents) {
  const DraftTree tree(Parents{-1, 0, 1, 0, 2, 3});
  EXPECT_NO_THROW(tree.require_path({}));
  EXPECT_NO_THROW(tree.require_path(Parents{0, 1, 2, 4}));
  EXPECT_NO_THROW(tree.require_path(Parents{0, 3}));
  const auto broken_at = [&](const Parents& path) {
    try {
      tree.require_path(path);
    } catch (const TreeError& error) {
      return error.node();
    }
    return std::int64_t{-99};
  };
  EXPECT_EQ(broken_at({1}), 1);        // not the root
  EXPECT_EQ(broken_at({0, 2}), 2);     // skips node 1
  EXPECT_EQ(broken_at({0, 1, 3}), 3);  // another branch
  EXPECT_EQ(broken_at({0, 0}), 0);     // twice
  EXPECT_EQ(broken_at({0, -1}), -1);   // an accept count of 0 turned into an index
  EXPECT_EQ(broken_at({0, 6}), 6);     // outside
}

}  // namespace
}  // namespace packstone
