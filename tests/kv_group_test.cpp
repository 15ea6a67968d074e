// SPDX-License-Identifier: Apache-2.0
#include "sim/prng.hpp"

#include <packstone/kv_group.hpp>
#include <packstone/move_plan.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace packstone {
namespace {

enum Pool : std::size_t { kFull, kWindow, kIndexer, kDraft, kState };

std::vector<GroupPool> pools(PageCount window_pages = 64, PageCount states = 8) {
  return {
      {.name = "full", .manager = {.pages = 64, .page_size = 16}},
      {.name = "window",
       .manager = {.pages = window_pages, .page_size = 16},
       .kind = GroupKind::window,
       .window = 32},
      {.name = "indexer", .manager = {.pages = 32, .page_size = 64}},
      {.name = "draft", .manager = {.pages = 64, .page_size = 16, .policy = "fifo"}},
      {.name = "state", .manager = {.pages = states, .page_size = 1}, .kind = GroupKind::state}};
}

SeqId grown(KvGroup& group, TokenCount tokens) {
  SeqId seq;
  EXPECT_EQ(group.create(seq), Status::ok);
  EXPECT_EQ(group.append(seq, tokens), Status::ok);
  return seq;
}

std::vector<PageCount> available(const KvGroup& group) {
  std::vector<PageCount> result;
  for (std::size_t i = 0; i < group.pools(); ++i) {
    result.push_back(group.pool(i).available_pages());
  }
  return result;
}

TEST(GroupFault, SP09_PagesLeaveTheWindowByTheCommittedLengthOnly) {
  KvGroup group(pools());
  const SeqId seq = grown(group, 47);
  ASSERT_EQ(group.reserve(seq, 4), Status::ok);  // drafts would make it 51, window 19..50
  const PageId first = group.table(seq, kWindow)[0];
  EXPECT_EQ(group.release_out_of_window(seq), 0);
  group.trim(seq);  // all rejected: token 15 is needed again
  EXPECT_EQ(group.table(seq, kWindow)[0], first);
  EXPECT_EQ(group.slot(seq, kWindow, 15), slot_of(first, 16, 15));

  ASSERT_EQ(group.append(seq, 1), Status::ok);  // 48: the window is 16..47
  EXPECT_EQ(group.release_out_of_window(seq), 1);
  EXPECT_EQ(group.table(seq, kWindow)[0], kReservedPage);
  EXPECT_EQ(group.table(seq, kWindow).size(), 3U);
  EXPECT_EQ(group.table(seq, kFull).size(), 3U);
  EXPECT_THROW((void)group.slot(seq, kWindow, 15), InvalidArgument);
  EXPECT_EQ(group.slot(seq, kWindow, 16), slot_of(group.table(seq, kWindow)[1], 16, 0));
  EXPECT_EQ(group.release_out_of_window(seq), 0);
  group.check();
}

TEST(GroupFault, AL05_AShortageInAnyPoolTakesNothingFromTheOthers) {
  KvGroup group(pools(/*window_pages=*/4));
  const SeqId seq = grown(group, 40);
  const std::vector<PageCount> before = available(group);
  const std::uint64_t digest = group.digest();
  EXPECT_EQ(group.append(seq, 9), Status::out_of_pages);  // full has room, window has not
  EXPECT_EQ(group.reserve(seq, 9), Status::out_of_pages);
  EXPECT_EQ(group.append(seq, std::numeric_limits<TokenCount>::max()), Status::out_of_pages);
  EXPECT_EQ(available(group), before);
  EXPECT_EQ(group.digest(), digest);
  EXPECT_EQ(group.length(seq), 40);
  group.check();
  EXPECT_EQ(group.append(seq, 8), Status::ok);
}

TEST(GroupFault, AL05_WithoutAStateNeitherCreateNorForkTakesASequence) {
  KvGroup group(pools(64, /*states=*/2));
  const SeqId seq = grown(group, 20);
  SeqId other;
  EXPECT_EQ(group.create(other), Status::out_of_pages);
  EXPECT_EQ(group.fork(seq, 20, other), Status::out_of_pages);
  EXPECT_EQ(group.sequences(), 1);
  group.check();
  group.finish(seq);
  EXPECT_EQ(group.create(other), Status::ok);
}

TEST(GroupFault, AL05_ASequenceLimitInOnePoolUndoesTheOthers) {
  std::vector<GroupPool> limited = pools();
  limited[kDraft].manager.sequences_max = 1;
  KvGroup group(limited);
  const SeqId seq = grown(group, 20);
  SeqId other;
  const std::vector<PageCount> before = available(group);
  EXPECT_EQ(group.create(other), Status::out_of_sequences);
  EXPECT_EQ(group.fork(seq, 20, other), Status::out_of_sequences);
  EXPECT_EQ(available(group), before);
  group.check();
}

TEST(DefragFault, DF06_EachPoolOfAGroupIsPlannedAndRemappedByItself) {
  KvGroup group(pools());
  const SeqId gone = grown(group, 64);
  const SeqId seq = grown(group, 48);
  SeqId child;
  ASSERT_EQ(group.fork(seq, 48, child), Status::ok);
  (void)group.take_copies(kState);
  group.finish(gone);
  PageCount moved = 0;
  for (const std::size_t pool : {kFull, kDraft}) {
    const PageId old = group.table(seq, pool)[2];
    const MovePlan plan =
        plan_moves(group.pool(pool).snapshot(), {.objective = PlanObjective::frontier});
    group.pool(pool).apply(plan.moves, plan.patches, 1);
    group.pool(pool).reclaim(1);
    moved += static_cast<PageCount>(plan.moves.size());
    const PageId now = group.table(seq, pool)[2];
    EXPECT_NE(now, old);
    EXPECT_EQ(group.table(child, pool)[2], now);
    EXPECT_EQ(group.pool(pool).allocator().set().references(now), 2);
    EXPECT_EQ(group.pool(pool).allocator().set().state(old), PageState::free);
  }
  EXPECT_EQ(moved, 6);
  group.check();
}

TEST(KvGroup, AForkSharesTokensAndCopiesTheState) {
  KvGroup group(pools());
  const SeqId parent = grown(group, 40);
  SeqId child;
  ASSERT_EQ(group.fork(parent, 40, child), Status::ok);
  EXPECT_EQ(group.table(child, kFull), group.table(parent, kFull));
  EXPECT_NE(group.table(child, kState), group.table(parent, kState));
  const std::vector<PageCopy> copies = group.take_copies(kState);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].from, group.table(parent, kState)[0]);
  EXPECT_EQ(copies[0].to, group.table(child, kState)[0]);
  ASSERT_EQ(group.append(child, 1), Status::ok);
  EXPECT_EQ(group.take_copies(kFull).size(), 1U);
  EXPECT_EQ(group.take_copies(kIndexer).size(), 1U);
  group.check();
}

TEST(KvGroup, NothingGoesBackBehindAWindowThatHasBeenDropped) {
  KvGroup group(pools());
  const SeqId seq = grown(group, 100);
  EXPECT_EQ(group.release_out_of_window(seq), 4);  // tokens 0..63 of 0..67
  SeqId child;
  EXPECT_THROW((void)group.fork(seq, 95, child), InvalidArgument);  // sees 63
  EXPECT_THROW(group.truncate(seq, 95), InvalidArgument);
  ASSERT_EQ(group.fork(seq, 96, child), Status::ok);
  EXPECT_EQ(group.dropped(child, kWindow), 4);
  group.truncate(seq, 96);
  EXPECT_EQ(group.length(seq), 96);
  group.check();
  group.finish(seq);
  group.finish(child);
  EXPECT_EQ(available(group), (std::vector<PageCount>{63, 63, 31, 63, 7}));
}

TEST(KvGroup, ACommitThatOnePoolCannotTakeChangesNone) {
  KvGroup group(pools());
  const SeqId seq = grown(group, 20);
  ASSERT_EQ(group.reserve(seq, 8), Status::ok);
  SeqId child;
  ASSERT_EQ(group.fork(seq, 20, child), Status::ok);  // shares every partial tail
  const std::uint64_t digest = group.digest();
  EXPECT_THROW(group.commit(seq, 3), InvalidArgument);
  EXPECT_THROW(group.commit(seq, 100), InvalidArgument);
  EXPECT_EQ(group.digest(), digest);
  group.finish(child);
  group.commit(seq, 3);
  EXPECT_EQ(group.length(seq), 23);
  EXPECT_EQ(group.trim(seq), 0);
  group.check();
  EXPECT_THROW((void)group.length(child), SequenceError);
}

TEST(KvGroup, RandomCommandsKeepThePoolsInStepAndTwoGroupsAgree) {
  KvGroup group(pools(24, 6));
  KvGroup twin(pools(24, 6));
  sim::Prng random(17);
  std::vector<SeqId> live;
  const auto both = [&](const auto& call) {
    const Status status = call(group);
    EXPECT_EQ(call(twin), status);
    return status;
  };
  for (int i = 0; i < 20000; ++i) {
    const auto at = live.empty() ? 0 : random.below(live.size());
    const auto tokens = static_cast<TokenCount>(random.below(40));
    const std::uint64_t op = live.empty() ? 0 : random.below(8);
    SeqId out;
    if (op == 0) {
      if (both([&](KvGroup& g) { return g.create(out); }) == Status::ok) live.push_back(out);
    } else if (op == 1) {
      const TokenCount length = group.length(live[at]);
      const auto fork = [&](KvGroup& g) { return g.fork(live[at], length, out); };
      if (both(fork) == Status::ok) live.push_back(out);
    } else if (op == 2) {
      group.finish(live[at]);
      twin.finish(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (op == 3) {
      if (both([&](KvGroup& g) { return g.reserve(live[at], tokens); }) != Status::ok) continue;
      group.commit(live[at], tokens / 2);
      twin.commit(live[at], tokens / 2);
      EXPECT_EQ(group.trim(live[at]), twin.trim(live[at]));
    } else if (op == 4) {
      EXPECT_EQ(group.release_out_of_window(live[at]), twin.release_out_of_window(live[at]));
    } else {
      (void)both([&](KvGroup& g) { return g.append(live[at], tokens); });
    }
    for (std::size_t pool = 0; pool < group.pools(); ++pool) {
      (void)group.take_copies(pool);
      (void)twin.take_copies(pool);
    }
    if (i % 50 == 0) group.check();
  }
  EXPECT_EQ(group.digest(), twin.digest());
  for (const SeqId seq : live) group.finish(seq);
  EXPECT_NE(group.digest(), twin.digest());
  EXPECT_EQ(available(group), (std::vector<PageCount>{63, 23, 31, 63, 5}));
}

TEST(KvGroup, RefusesPoolsThatMakeNoSense) {
  EXPECT_THROW(KvGroup(std::vector<GroupPool>{}), InvalidArgument);
  std::vector<GroupPool> bad = pools();
  bad[kWindow].window = 0;
  EXPECT_THROW(KvGroup{bad}, InvalidArgument);
  bad = pools();
  bad[kState].manager.page_size = 2;
  EXPECT_THROW(KvGroup{bad}, InvalidArgument);
}

}  // namespace
}  // namespace packstone
