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

}  // namespace
}  // namespace packstone
