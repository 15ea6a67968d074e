// SPDX-License-Identifier: Apache-2.0
// Faults that were once in the core, each named after what was wrong.
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
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

TEST(KvManagerRegression, AMoveIntoAPageThatACopyStillWaitsForIsRefused) {
  // The child writes and takes page 3 as its copy of page 1, then both end before anyone made the
  // copy. A row moved to page 3 would be overwritten by it, a row moved to page 1 read by it.
  KvManager manager({.pages = 8, .page_size = 4, .policy = "lowest"});
  const SeqId parent = grown(manager, 2);
  const SeqId other = grown(manager, 4);
  SeqId child;
  ASSERT_EQ(manager.fork(parent, 2, child), Status::ok);
  ASSERT_EQ(manager.append(child, 1), Status::ok);
  ASSERT_EQ(manager.pages(child)[0], PageId{3});
  manager.finish(child);
  manager.finish(parent);

  for (const PageId destination : {PageId{1}, PageId{3}}) {
    const PageMove move{PageId{2}, destination};
    const TablePatch patch{.seq = other, .index = 0, .move = move};
    EXPECT_THROW(manager.apply({&move, 1}, {&patch, 1}, 1), PageError);
    manager.check();
  }
  EXPECT_EQ(manager.take_copies().size(), 1U);
  const PageMove move{PageId{2}, PageId{3}};
  const TablePatch patch{.seq = other, .index = 0, .move = move};
  manager.apply({&move, 1}, {&patch, 1}, 1);
  EXPECT_EQ(manager.pages(other)[0], PageId{3});
}

TEST(KvManagerRegression, TwoForksDoNotBothCommitIntoTheirSharedTail) {
  KvManager manager({.pages = 8, .page_size = 16, .policy = "fifo"});
  const SeqId a = grown(manager, 10);
  SeqId b;
  ASSERT_EQ(manager.fork(a, 10, b), Status::ok);
  EXPECT_THROW(manager.commit(a, 3), InvalidArgument);
  EXPECT_THROW(manager.commit(b, 3), InvalidArgument);
  EXPECT_EQ(manager.length(a), 10);
  manager.commit(a, 0);

  ASSERT_EQ(manager.reserve(b, 3), Status::ok);
  manager.commit(b, 3);
  manager.commit(a, 3);
  EXPECT_NE(manager.slot(a, 10), manager.slot(b, 10));
  manager.check();
}

TEST(KvManagerRegression, ACheckpointDoesNotForgetACopyThatWasNotMade) {
  KvManager manager({.pages = 8, .page_size = 16, .policy = "fifo"});
  const SeqId a = grown(manager, 10);
  SeqId b;
  ASSERT_EQ(manager.fork(a, 10, b), Status::ok);
  ASSERT_EQ(manager.append(b, 1), Status::ok);
  EXPECT_THROW((void)manager.checkpoint(), InvalidArgument);
  EXPECT_EQ(manager.take_copies().size(), 1U);
  EXPECT_EQ(manager.checkpoint().living.size(), 2U);
}

TEST(KvManagerRegression, ACheckpointThatContradictsItselfIsRefusedWhole) {
  KvManager manager({.pages = 8, .page_size = 4, .policy = "run", .sequences_max = 2});
  const SeqId seq = grown(manager, 6);
  const KvManager::Checkpoint good = manager.checkpoint();
  const auto refused = [&](auto&& spoil) {
    KvManager::Checkpoint bad = good;
    spoil(bad);
    EXPECT_THROW(manager.restore(bad), InvalidArgument);
    manager.check();
    EXPECT_EQ(manager.length(seq), 6);
  };
  refused([](auto& c) { c.sequences[0].length = 9; });
  refused([](auto& c) { c.sequences[0].length = -1; });
  refused([](auto& c) { c.sequences[0].expected = -2; });
  refused([](auto& c) { c.sequences[0].alive = false; });
  refused([](auto& c) { c.sequences[0].pages[1] = c.sequences[0].pages[0]; });
  refused([](auto& c) { c.sequences[0].pages[1] = PageId{7}; });
  refused([](auto& c) { c.sequences[0].pages[1] = PageId{-7}; });
  refused([](auto& c) { c.sequences.resize(4, c.sequences[0]); });
  refused([](auto& c) {
    c.sequences.resize(4);
    for (auto& sequence : c.sequences) sequence.alive = true;
  });
  refused([](auto& c) { c.living[0].references = 2; });
  refused([](auto& c) { c.living[0].page = PageId{0}; });
  refused([](auto& c) { c.living.pop_back(); });
  refused([](auto& c) { c.living.push_back({PageId{8}, 1, 1}); });
  refused([](auto& c) { c.living.push_back({PageId{7}, 1, 1}); });
  manager.restore(good);
  manager.check();
}

TEST(KvManagerRegression, SlotsPast64BitsAreRefusedAtTheStart) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(KvManager({.pages = 4, .page_size = kMost}), InvalidArgument);
  KvManager manager({.pages = 4, .page_size = kMost / 4});
  const SeqId seq = grown(manager, kMost / 4 + 1);
  EXPECT_EQ(manager.pages(seq).size(), 2U);
  EXPECT_EQ(manager.append(seq, kMost / 2), Status::out_of_pages);
  EXPECT_EQ(manager.append(seq, kMost), Status::out_of_pages);
  EXPECT_EQ(manager.reserve(seq, kMost), Status::out_of_pages);
  manager.check();
}

TEST(KvManagerRegression, AnExpectedLengthPastThePoolIsNoOverflow) {
  for (const std::string policy : {"run", "fifo"}) {
    KvManager manager({.pages = 8, .page_size = 1, .policy = policy});
    SeqId seq;
    ASSERT_EQ(manager.create({.expected_tokens = std::numeric_limits<std::int64_t>::max()}, seq),
              Status::ok);
    ASSERT_EQ(manager.append(seq, 2), Status::ok);
    EXPECT_EQ(manager.available_pages(), 5);
    manager.check();
  }
}

TEST(KvManagerRegression, AHintOutsideThePoolIsAnErrorAndNoReadPastTheBitmaps) {
  for (const std::string_view policy : placement_names()) {
    PageAllocator allocator({.pages = 8, .placement = {.policy = std::string(policy)}});
    std::vector<PageId> out(1);
    for (const std::int32_t after : {-2, 8, std::numeric_limits<std::int32_t>::max(),
                                     std::numeric_limits<std::int32_t>::min()}) {
      EXPECT_THROW((void)allocator.allocate({.take = {.after = PageId{after}}}, out), PageError);
    }
    EXPECT_EQ(allocator.available(), 7);
    EXPECT_EQ(allocator.allocate({.take = {.after = PageId{7}}}, out), Status::ok);
    allocator.check();
  }
}

TEST(KvManagerRegression, APageOutsideThePoolInTheArgumentOfCheckIsAnError) {
  const KvManager manager({.pages = 8, .page_size = 1});
  for (const PageId page : {PageId{-1}, PageId{8}}) {
    EXPECT_THROW(manager.check({&page, 1}), PageError);
  }
}

TEST(KvManagerRegression, TheLastWriterOfASharedTailNeedsNoPageForIt) {
  // Three share a page of which two write in one batch with one page free; then the two left do.
  for (const bool as_decode : {false, true}) {
    KvManager manager({.pages = 4, .page_size = 4, .policy = "fifo"});
    const SeqId a = grown(manager, 2);
    SeqId b;
    SeqId c;
    ASSERT_EQ(manager.fork(a, 2, b), Status::ok);
    ASSERT_EQ(manager.fork(a, 2, c), Status::ok);
    const SeqId filler = grown(manager, 4);
    const std::vector<SeqId> pair = {a, b};
    const std::vector<Growth> growths = {{a, 3}, {b, 3}};
    const auto grow = [&] { return as_decode ? manager.decode(pair) : manager.extend(growths); };
    ASSERT_EQ(manager.available_pages(), 1);
    EXPECT_EQ(grow(), Status::out_of_pages);
    manager.finish(c);
    EXPECT_EQ(grow(), Status::ok);
    EXPECT_EQ(manager.take_copies().size(), 1U);
    EXPECT_NE(manager.slot(a, 2), manager.slot(b, 2));
    manager.check();
    manager.finish(filler);
  }
}

TEST(KvManagerRegression, TheDigestTellsEveryInputOfACall) {
  const auto digest_of = [](auto&& calls) {
    KvManager manager({.pages = 65600, .page_size = 1, .policy = "fifo"});
    const SeqId seq = grown(manager, 65590);
    manager.allocator().retain(manager.pages(seq).first(2));
    calls(manager, seq);
    return manager.digest();
  };
  const auto create = [&](const KvManager::CreateOptions& options) {
    return digest_of([&](KvManager& m, SeqId /*seq*/) {
      SeqId out;
      ASSERT_EQ(m.create(options, out), Status::ok);
    });
  };
  const PageId first{1};
  const PageId second{2};
  EXPECT_NE(create({.expected_tokens = 3}), create({.expected_tokens = 4}));
  EXPECT_NE(create({.owner = 3}), create({.owner = 4}));
  EXPECT_NE(create({.prefix = {&first, 1}}), create({.prefix = {&second, 1}}));
  EXPECT_NE(digest_of([](KvManager& m, SeqId s) { m.pin(s, 0, 0x10001); }),
            digest_of([](KvManager& m, SeqId s) { m.pin(s, 1, 0); }));

  // Reclaiming makes pages free: ranks whose events fired in another order must notice.
  const auto moved = [&](Epoch reached) {
    return digest_of([&](KvManager& m, SeqId s) {
      const PageMove move{m.pages(s)[5], PageId{65599}};
      const TablePatch patch{.seq = s, .index = 5, .move = move};
      m.apply({&move, 1}, {&patch, 1}, 3);
      (void)m.reclaim(reached);
    });
  };
  EXPECT_NE(moved(2), moved(3));
  EXPECT_EQ(moved(3), moved(4));

  // `sorted` places one batch of two and two batches of one differently.
  const auto batched = [&](bool together) {
    return digest_of([&](KvManager& m, SeqId s) {
      SeqId other;
      ASSERT_EQ(m.create(other), Status::ok);
      const std::vector<SeqId> both = {s, other};
      if (together) {
        ASSERT_EQ(m.decode(both), Status::ok);
      } else {
        ASSERT_EQ(m.decode({both.data(), 1}), Status::ok);
        ASSERT_EQ(m.decode({both.data() + 1, 1}), Status::ok);
      }
    });
  };
  EXPECT_NE(batched(true), batched(false));
}

TEST(KvManagerRegression, SortedMergesAlsoWhenTheBatchIsRefused) {
  // SGLang merges before it tests for shortage, so the next batch that fits starts at page 1.
  for (const std::int64_t page_size : {1, 4}) {
    KvManager manager({.pages = 9, .page_size = page_size, .policy = "sorted"});
    const SeqId first = grown(manager, page_size * 2);
    const SeqId second = grown(manager, page_size * 2);
    manager.finish(first);
    EXPECT_EQ(manager.append(second, page_size * 20), Status::out_of_pages);
    EXPECT_EQ(manager.append(second, page_size), Status::ok);
    EXPECT_EQ(manager.pages(second).back(), PageId{1});
  }
}

}  // namespace
}  // namespace packstone
