// SPDX-License-Identifier: Apache-2.0
// What the header of KvManager promises, call by call. Streams of calls are in
// kv_manager_model_test, named faults in allocator_faults_test.
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace packstone {
namespace {

using testing::ElementsAre;

class KvManagerOf : public testing::TestWithParam<std::string> {
 protected:
  KvManager manager_{{.pages = 17, .page_size = 4, .policy = GetParam(), .sequences_max = 3}};

  SeqId grown(TokenCount tokens) {
    SeqId seq;
    EXPECT_EQ(manager_.create(seq), Status::ok);
    EXPECT_EQ(manager_.append(seq, tokens), Status::ok);
    return seq;
  }
  void TearDown() override { manager_.check(); }
};

TEST_P(KvManagerOf, ASequenceGrowsShrinksAndEnds) {
  const SeqId seq = grown(6);
  EXPECT_EQ(manager_.length(seq), 6);
  EXPECT_EQ(manager_.capacity(seq), 8);
  EXPECT_EQ(manager_.append(seq, 2), Status::ok);
  EXPECT_EQ(manager_.capacity(seq), 8);
  EXPECT_EQ(manager_.append(seq, 1), Status::ok);
  EXPECT_EQ(manager_.pages(seq).size(), 3U);
  manager_.truncate(seq, 4);
  EXPECT_EQ(manager_.pages(seq).size(), 1U);
  manager_.truncate(seq, 0);
  EXPECT_EQ(manager_.pages(seq).size(), 0U);
  EXPECT_EQ(manager_.append(seq, 64), Status::ok);
  EXPECT_EQ(manager_.available_pages(), 0);
  EXPECT_EQ(manager_.append(seq, 1), Status::out_of_pages);
  manager_.finish(seq);
  EXPECT_EQ(manager_.available_pages(), 16);
}

TEST_P(KvManagerOf, AHandleDiesWithItsSequenceAlsoWhenThePlaceIsTakenAgain) {
  const SeqId seq = grown(4);
  manager_.finish(seq);
  const SeqId next = grown(4);
  EXPECT_EQ(next.index, seq.index);
  EXPECT_FALSE(manager_.alive(seq));
  EXPECT_THROW((void)manager_.append(seq, 1), SequenceError);
  EXPECT_THROW((void)manager_.length(seq), SequenceError);
  EXPECT_THROW((void)manager_.slot(seq, 0), SequenceError);
  EXPECT_THROW(manager_.finish(seq), SequenceError);
  EXPECT_THROW(manager_.pin(seq, 0, 1), SequenceError);
  EXPECT_THROW((void)manager_.pages(SeqId{}), SequenceError);
  try {
    (void)manager_.decode({&seq, 1});
    FAIL() << "a dead sequence decoded";
  } catch (const SequenceError& error) {
    EXPECT_EQ(error.seq(), seq);
  }
}

TEST_P(KvManagerOf, SequencesRunOutLikePagesDo) {
  const SeqId first = grown(1);
  (void)grown(1);
  (void)grown(1);
  SeqId out{7, 7};
  EXPECT_EQ(manager_.create(out), Status::out_of_sequences);
  EXPECT_EQ(manager_.fork(first, 1, out), Status::out_of_sequences);
  EXPECT_EQ(out, (SeqId{7, 7}));
  EXPECT_EQ(manager_.counters().shortages, 2);
  manager_.finish(first);
  EXPECT_EQ(manager_.create(out), Status::ok);
}

TEST_P(KvManagerOf, AnExtendNamesTheSlotOfEachNewToken) {
  const SeqId a = grown(3);
  const SeqId b = grown(4);
  const std::vector<Growth> batch = {{b, 6}, {a, 9}};
  std::vector<SlotId> slots = {-5};
  ASSERT_EQ(manager_.extend(batch, &slots), Status::ok);
  ASSERT_EQ(slots.size(), 1U + 2 + 6);
  EXPECT_EQ(slots[0], -5);
  EXPECT_EQ(slots[1], manager_.slot(b, 4));
  EXPECT_EQ(slots[2], manager_.slot(b, 5));
  for (TokenCount t = 3; t < 9; ++t) {
    EXPECT_EQ(slots[static_cast<std::size_t>(t)], manager_.slot(a, t));
  }
  EXPECT_THROW((void)manager_.decode(std::vector{a, b}, {slots.data(), 1}), InvalidArgument);
}

TEST_P(KvManagerOf, DraftsAreReservedCommittedAndTrimmed) {
  const SeqId seq = grown(3);
  ASSERT_EQ(manager_.reserve(seq, 10), Status::ok);
  EXPECT_EQ(manager_.length(seq), 3);
  EXPECT_EQ(manager_.capacity(seq), 16);
  manager_.commit(seq, 2);
  EXPECT_EQ(manager_.length(seq), 5);
  EXPECT_EQ(manager_.trim(seq), 2);
  EXPECT_EQ(manager_.capacity(seq), 8);
  EXPECT_EQ(manager_.trim(seq), 0);
}

TEST_P(KvManagerOf, AForkSharesWholePagesAndCopiesThePartialOneWhenItWrites) {
  const SeqId parent = grown(10);
  SeqId child;
  ASSERT_EQ(manager_.fork(parent, 9, child), Status::ok);
  EXPECT_EQ(manager_.available_pages(), 13);
  EXPECT_EQ(manager_.owner(child), child.index + 1);
  const PageId shared = manager_.pages(child)[2];
  ASSERT_EQ(manager_.append(child, 1), Status::ok);
  const std::vector<PageCopy> copies = manager_.take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].from, shared);
  EXPECT_EQ(copies[0].to, manager_.pages(child)[2]);
  EXPECT_EQ(copies[0].tokens, 1);
  EXPECT_TRUE(manager_.take_copies().empty());
  ASSERT_EQ(manager_.append(parent, 1), Status::ok);
  EXPECT_TRUE(manager_.take_copies().empty());
  EXPECT_EQ(manager_.counters().copies_on_write, 1);
}

TEST_P(KvManagerOf, ASequenceStartsFromAPrefixThatACacheHolds) {
  const SeqId first = grown(9);
  const std::vector<PageId> prefix(manager_.pages(first).begin(), manager_.pages(first).end() - 1);
  manager_.allocator().retain(prefix);
  manager_.finish(first);
  EXPECT_EQ(manager_.available_pages(), 14);
  SeqId second;
  ASSERT_EQ(manager_.create({.owner = 50, .prefix = prefix}, second), Status::ok);
  EXPECT_EQ(manager_.length(second), 8);
  EXPECT_EQ(manager_.append(second, 1), Status::ok);
  EXPECT_TRUE(manager_.take_copies().empty());
  EXPECT_EQ(manager_.allocator().set().owner(manager_.pages(second)[2]), 50U);
  manager_.check(prefix);
  EXPECT_THROW(manager_.check(), InvariantError);
  manager_.allocator().release(prefix);
  manager_.check();
}

TEST_P(KvManagerOf, APinHoldsPagesThatTheSequenceHasLeft) {
  const SeqId seq = grown(8);
  const PageId page = manager_.pages(seq)[1];
  manager_.pin(seq, 1, 1);
  manager_.truncate(seq, 4);
  EXPECT_EQ(manager_.available_pages(), 14);
  EXPECT_EQ(manager_.allocator().set().state(page), PageState::live);
  EXPECT_THROW(manager_.unpin(seq, 1, 1), InvalidArgument);
  manager_.allocator().unpin(page);
  EXPECT_EQ(manager_.available_pages(), 15);
}

TEST_P(KvManagerOf, ASnapshotShowsWhatThePlannerNeeds) {
  const SeqId a = grown(5);
  const SeqId b = grown(1);
  manager_.pin(b, 0, 1);
  const PoolSnapshot snapshot = manager_.snapshot();
  EXPECT_EQ(snapshot.page_size, 4);
  ASSERT_EQ(snapshot.states.size(), 17U);
  EXPECT_EQ(snapshot.states[0], PageState::reserved);
  EXPECT_THAT(snapshot.pinned, ElementsAre(manager_.pages(b)[0]));
  ASSERT_EQ(snapshot.tables.size(), 2U);
  EXPECT_EQ(snapshot.tables[0].seq, a);
  EXPECT_EQ(snapshot.tables[0].length, 5);
  EXPECT_EQ(snapshot.tables[0].pages.size(), 2U);
  for (const PageId page : manager_.pages(a)) {
    EXPECT_EQ(snapshot.states[static_cast<std::size_t>(index_of(page))], PageState::live);
    EXPECT_EQ(snapshot.references[static_cast<std::size_t>(index_of(page))], 1);
  }
}

TEST_P(KvManagerOf, AMoveRewritesTheTablesAndRetiresTheSource) {
  const SeqId seq = grown(8);
  SeqId child;
  ASSERT_EQ(manager_.fork(seq, 4, child), Status::ok);
  const PageId from = manager_.pages(seq)[0];
  PageId to = kNoPage;
  for (std::int32_t i = 16; i > 0 && to == kNoPage; --i) {
    if (manager_.allocator().set().state(PageId{i}) == PageState::free) to = PageId{i};
  }
  const PageMove move{from, to};
  const std::vector<TablePatch> patches = {{seq, 0, move}, {child, 0, move}};
  manager_.apply({&move, 1}, patches, 1);
  EXPECT_EQ(manager_.pages(seq)[0], to);
  EXPECT_EQ(manager_.pages(child)[0], to);
  EXPECT_EQ(manager_.allocator().set().references(to), 2);
  EXPECT_EQ(manager_.allocator().set().state(from), PageState::retired);
  EXPECT_EQ(manager_.counters().pages_moved, 1);
  EXPECT_THROW(manager_.apply({&move, 1}, patches, 1), PageError);
  EXPECT_EQ(manager_.reclaim(1), 1);
}

TEST_P(KvManagerOf, ARestoredManagerGoesOnLikeTheOneThatWasSaved) {
  const SeqId a = grown(5);
  const SeqId b = grown(6);
  manager_.finish(a);
  const KvManager::Checkpoint saved = manager_.checkpoint();
  KvManager fresh({.pages = 17, .page_size = 4, .policy = GetParam(), .sequences_max = 3});
  fresh.restore(saved);
  manager_.restore(saved);
  EXPECT_EQ(fresh.digest(), manager_.digest());
  for (KvManager* each : {&fresh, &manager_}) {
    SeqId seq;
    ASSERT_EQ(each->create(seq), Status::ok);
    EXPECT_EQ(seq.index, a.index);
    ASSERT_EQ(each->append(b, 9), Status::ok);
    ASSERT_EQ(each->append(seq, 9), Status::ok);
    each->check();
  }
  EXPECT_EQ(fresh.digest(), manager_.digest());
  EXPECT_EQ(fresh.snapshot().tables[0].pages, manager_.snapshot().tables[0].pages);
}

INSTANTIATE_TEST_SUITE_P(Policies, KvManagerOf,
                         testing::Values("fifo", "lifo", "sorted", "lowest", "run"),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace packstone
