// SPDX-License-Identifier: Apache-2.0
// Faults that were once in the core, each named after what was wrong.
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace packstone {
namespace {

SeqId grown(KvManager& manager, TokenCount tokens) {
  SeqId seq;
  EXPECT_EQ(manager.create(seq), Status::ok);
  EXPECT_EQ(manager.append(seq, tokens), Status::ok);
  return seq;
}

TEST(KvManagerRegression, APlanOlderThanAForkIsRefusedInsteadOfLeavingATableOnARetiredPage) {
  KvManager manager({.pages = 8, .page_size = 4, .policy = "fifo"});
  const SeqId parent = grown(manager, 8);
  const PageMove move{manager.pages(parent)[0], PageId{7}};
  const TablePatch patch{.seq = parent, .index = 0, .move = move};
  SeqId child;
  ASSERT_EQ(manager.fork(parent, 4, child), Status::ok);
  const std::uint64_t digest = manager.digest();

  EXPECT_THROW(manager.apply({&move, 1}, {&patch, 1}, 1), PageError);
  EXPECT_THROW(manager.apply({&move, 1}, {}, 1), PageError);
  manager.check();
  EXPECT_EQ(manager.digest(), digest);
  EXPECT_EQ(manager.pages(parent)[0], move.from);
  EXPECT_EQ(manager.allocator().set().state(move.to), PageState::free);

  const std::vector<TablePatch> all = {patch, {.seq = child, .index = 0, .move = move}};
  manager.apply({&move, 1}, all, 1);
  manager.check();
  EXPECT_EQ(manager.pages(child)[0], move.to);
}

TEST(KvManagerRegression, MovesDoNotTakeThePagesThatAHoldHasSetAside) {
  KvManager manager({.pages = 5, .page_size = 1, .policy = "fifo"});
  const SeqId seq = grown(manager, 2);
  ASSERT_EQ(manager.allocator().hold(2), Status::ok);
  const PageMove move{PageId{1}, PageId{4}};
  const TablePatch patch{.seq = seq, .index = 0, .move = move};
  EXPECT_THROW(manager.apply({&move, 1}, {&patch, 1}, 1), InvalidArgument);
  EXPECT_THROW(manager.allocator().move(move, 1), InvalidArgument);
  manager.check();
  std::vector<PageId> pages(2);
  EXPECT_EQ(manager.allocator().allocate({.owner = 9, .from_hold = true}, pages), Status::ok);
  manager.check(pages);
}

TEST(KvManagerRegression, AnEpochThatGoesBackIsAnErrorAndNoAbort) {
  KvManager manager({.pages = 8, .page_size = 1, .policy = "lowest"});
  const SeqId seq = grown(manager, 2);
  const PageMove first{PageId{1}, PageId{5}};
  const TablePatch first_patch{.seq = seq, .index = 0, .move = first};
  manager.apply({&first, 1}, {&first_patch, 1}, 7);
  const PageMove second{PageId{2}, PageId{6}};
  const TablePatch second_patch{.seq = seq, .index = 1, .move = second};
  EXPECT_THROW(manager.apply({&second, 1}, {&second_patch, 1}, 6), InvalidArgument);
  manager.check();
  EXPECT_EQ(manager.pages(seq)[1], PageId{2});
  manager.apply({&second, 1}, {&second_patch, 1}, 7);
  EXPECT_EQ(manager.reclaim(7), 2);
  manager.check();
}

}  // namespace
}  // namespace packstone
