// SPDX-License-Identifier: Apache-2.0
// Every step is carried out on a pool of token values, so a token in a wrong slot is a wrong value.
#include "sim/prng.hpp"

#include <packstone/speculation.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace packstone {
namespace {

using Path = std::vector<std::int32_t>;

/// A manager, its pool of values, and what each sequence must read.
class World {
 public:
  World(const KvManagerOptions& options, const SpeculationOptions& speculation)
      : manager(options),
        drafts(manager, speculation),
        pool_(static_cast<std::size_t>(options.pages * options.page_size), -1) {}

  KvManager manager;
  Speculation drafts;
  std::map<SeqId, std::vector<std::int64_t>> expected;

  SeqId grown(TokenCount tokens) {
    SeqId seq;
    EXPECT_EQ(manager.create(seq), Status::ok);
    EXPECT_EQ(manager.append(seq, tokens), Status::ok);
    for (TokenCount i = 0; i < tokens; ++i) write(manager.slot(seq, i), next_);
    for (TokenCount i = 0; i < tokens; ++i) expected[seq].push_back(next_);
    ++next_;
    return seq;
  }
  SeqId fork(SeqId parent) {
    SeqId seq;
    EXPECT_EQ(manager.fork(parent, manager.length(parent), seq), Status::ok);
    expected[seq] = expected[parent];
    return seq;
  }
  void copy_on_write() {
    for (const PageCopy& copy : manager.take_copies()) {
      for (TokenCount i = 0; i < copy.tokens; ++i) {
        write(slot_of(copy.to, manager.page_size(), i),
              read(slot_of(copy.from, manager.page_size(), i)));
      }
    }
  }
  // Writes every node, commits the path, and carries the moves out in order.
  DraftCommit step(SeqId seq, const DraftTree& tree, const Path& path) {
    EXPECT_EQ(drafts.reserve(seq, tree.nodes()), Status::ok);
    copy_on_write();
    return verify(seq, tree, path);
  }
  DraftCommit verify(SeqId seq, const DraftTree& tree, const Path& path) {
    for (std::int64_t node = 0; node < tree.nodes(); ++node) {
      write(drafts.slot(seq, node), next_ * 1000 + node);
    }
    for (const std::int32_t node : path) expected[seq].push_back(next_ * 1000 + node);
    ++next_;
    DraftCommit result = drafts.commit(seq, tree, path);
    for (const SlotMove& move : result.moves) write(move.to, read(move.from));
    return result;
  }
  void check() const {
    manager.check();
    for (const auto& [seq, values] : expected) {
      if (!manager.alive(seq)) continue;
      ASSERT_EQ(manager.length(seq), static_cast<TokenCount>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(read(manager.slot(seq, static_cast<TokenCount>(i))), values[i])
            << "token " << i << " of sequence " << seq.index;
      }
    }
  }
  [[nodiscard]] std::int64_t read(SlotId slot) const {
    return pool_[static_cast<std::size_t>(slot)];
  }
  void write(SlotId slot, std::int64_t value) { pool_[static_cast<std::size_t>(slot)] = value; }

 private:
  std::vector<std::int64_t> pool_;
  std::int64_t next_{1};
};

Path first_nodes(int count) {
  Path path;
  for (int i = 0; i < count; ++i) path.push_back(i);
  return path;
}

constexpr SpeculationMode kModes[] = {SpeculationMode::rollback, SpeculationMode::reserve_tail,
                                      SpeculationMode::tree_front};

TEST(SpeculationFault, AL01_DraftTailsComeBackInWholePages) {
  for (const SpeculationMode mode : kModes) {
    World world({.pages = 9, .page_size = 16}, {.mode = mode});
    const SeqId seq = world.grown(30);
    const int accepts[] = {3, 1, 4, 2};
    for (int i = 0; i < 20; ++i) {
      (void)world.step(seq, DraftTree::chain(5), first_nodes(accepts[i % 4]));
      world.check();
      const PageCount used = 8 - world.manager.available_pages();
      EXPECT_EQ(used, pages_for(world.manager.capacity(seq), 16));
      if (mode != SpeculationMode::reserve_tail) {
        EXPECT_EQ(used, pages_for(world.manager.length(seq), 16));
      }
    }
    EXPECT_EQ(world.manager.length(seq), 80);
    world.manager.finish(seq);
    EXPECT_EQ(world.manager.available_pages(), 8);
  }
}

TEST(SpeculationFault, SP07_DraftsPastTheRowOrTheContextAreRefusedBeforeAnythingIsTaken) {
  World row({.pages = 100, .page_size = 16}, {.row_pages_max = 4});
  const SeqId seq = row.grown(1);
  const std::uint64_t digest = row.manager.digest();
  EXPECT_THROW((void)row.drafts.reserve(seq, 256), InvalidArgument);
  EXPECT_THROW((void)row.drafts.reserve(seq, 64), InvalidArgument);
  EXPECT_EQ(row.manager.digest(), digest);
  EXPECT_EQ(row.drafts.reserve(seq, 63), Status::ok);
  row.manager.finish(seq);
  EXPECT_EQ(row.manager.available_pages(), 99);

  for (const SpeculationMode mode : kModes) {
    World context({.pages = 100, .page_size = 16}, {.mode = mode, .tokens_max = 256});
    const SeqId late = context.grown(254);
    EXPECT_THROW((void)context.drafts.reserve(late, 4), InvalidArgument);
    EXPECT_EQ(context.drafts.reserve(late, 2), Status::ok);
    EXPECT_LE(context.manager.capacity(late), 256);
    context.manager.finish(late);
    EXPECT_EQ(context.manager.available_pages(), 99);
  }
}

TEST(SpeculationFault, SP08_DraftsPastAPageEdgeHaveAPageOfTheirOwn) {
  World world({.pages = 8, .page_size = 16, .policy = "fifo"}, {});
  const SeqId seq = world.grown(14);
  const SeqId neighbour = world.grown(16);
  for (SlotId slot = 0; slot < 16; ++slot) world.write(slot, -7);
  const PageCount before = world.manager.available_pages();
  ASSERT_EQ(world.drafts.reserve(seq, 4), Status::ok);
  EXPECT_EQ(world.manager.available_pages(), before - 1);
  (void)world.verify(seq, DraftTree::chain(4), first_nodes(4));
  world.check();
  EXPECT_EQ(world.manager.length(seq), 18);
  for (SlotId slot = 0; slot < 16; ++slot) EXPECT_EQ(world.read(slot), -7);
  for (TokenCount i = 0; i < 16; ++i) {
    EXPECT_EQ(world.read(world.manager.slot(neighbour, i)), world.expected[neighbour][0]);
  }
}

TEST(SpeculationFault, SP10_AnAcceptCountOfZeroMovesNothingAndKeepsTheHistory) {
  for (const SpeculationMode mode : kModes) {
    for (const std::int64_t page_size : {1, 16, 64}) {
      World world({.pages = 512, .page_size = page_size}, {.mode = mode});
      const SeqId seq = world.grown(37);
      const DraftTree tree(Path{-1, 0, 1, 0, 3});
      const DraftCommit result = world.step(seq, tree, {});
      EXPECT_THAT(result.moves, testing::IsEmpty());
      EXPECT_EQ(result.length, 37);
      EXPECT_EQ(result.tail, world.manager.slot(seq, 36));
      world.check();
    }
  }
}

TEST(SpeculationFault, SP10_ABatchWithAcceptCountsZeroFiveAndOne) {
  for (const SpeculationMode mode : kModes) {
    for (const std::int64_t page_size : {1, 4, 16}) {
      World world({.pages = 256, .page_size = page_size}, {.mode = mode});
      const SeqId seqs[] = {world.grown(37), world.grown(8), world.grown(11)};
      const DraftTree tree = DraftTree::chain(5);
      std::vector<DraftRequest> requests;
      for (const SeqId seq : seqs) requests.push_back({.seq = seq, .nodes = 5});
      ASSERT_EQ(world.drafts.reserve(requests), Status::ok);
      const Path paths[] = {{}, first_nodes(5), first_nodes(1)};
      std::vector<DraftAcceptance> batch;
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::int64_t node = 0; node < 5; ++node) {
          const std::int64_t value = static_cast<std::int64_t>(i + 1) * 10'000 + node;
          world.write(world.drafts.slot(seqs[i], node), value);
          if (node < std::ssize(paths[i])) world.expected[seqs[i]].push_back(value);
        }
        batch.push_back({.seq = seqs[i], .tree = &tree, .path = paths[i]});
      }
      const std::vector<DraftCommit> results = world.drafts.commit(batch);
      EXPECT_EQ(results[0].length, 37);
      EXPECT_EQ(results[1].length, 13);
      EXPECT_EQ(results[2].length, 12);
      for (const DraftCommit& result : results) EXPECT_TRUE(result.moves.empty());
      world.check();
    }
  }
}

TEST(Speculation, ATreeMovesAcceptedRowsToTheFrontInAnOrderThatReadsNoOverwrittenRow) {
  World world({.pages = 64, .page_size = 4, .policy = "fifo"}, {});
  const SeqId seq = world.grown(6);
  const DraftTree tree(Path{-1, 0, 0, 2, 3, 4, 5});
  const DraftCommit result = world.step(seq, tree, {0, 2, 3, 4, 5, 6});
  EXPECT_EQ(result.moves.size(), 5U);
  EXPECT_EQ(result.length, 12);
  EXPECT_EQ(world.manager.pages(seq).size(), 3U);
  EXPECT_EQ(result.released.size(), 1U);  // room for 13 tokens was four pages
  world.check();
}

TEST(Speculation, RollbackAtPageSizeOneKeepsAcceptedPagesWhereTheyAre) {
  World world({.pages = 64, .page_size = 1, .policy = "fifo"}, {.mode = SpeculationMode::rollback});
  const SeqId seq = world.grown(3);
  const DraftTree tree(Path{-1, 0, 0, 2, 1});
  const DraftCommit result = world.step(seq, tree, {0, 2, 3});
  EXPECT_TRUE(result.moves.empty());
  EXPECT_THAT(world.manager.pages(seq), testing::ElementsAre(PageId{1}, PageId{2}, PageId{3},
                                                             PageId{4}, PageId{6}, PageId{7}));
  EXPECT_THAT(result.released, testing::ElementsAre(PageId{5}, PageId{8}));
  world.check();
}

TEST(Speculation, ReserveTailFreesNothingAndMostStepsAllocateNothing) {
  World world({.pages = 64, .page_size = 4}, {.mode = SpeculationMode::reserve_tail});
  const SeqId seq = world.grown(5);
  int allocated = 0;
  PageCount before = world.manager.available_pages();
  for (int i = 0; i < 20; ++i) {
    const DraftCommit result = world.step(seq, DraftTree::chain(8), {0, 1});
    EXPECT_TRUE(result.released.empty());
    allocated += world.manager.available_pages() != before ? 1 : 0;
    before = world.manager.available_pages();
    world.check();
  }
  EXPECT_LE(allocated, 8);
  EXPECT_GT(world.drafts.release_tail(seq), 0);
  EXPECT_EQ(world.manager.capacity(seq), pages_for(45, 4) * 4);
}

TEST(Speculation, DraftsOfAForkCopyTheSharedTailFirst) {
  for (const SpeculationMode mode : kModes) {
    World world({.pages = 16, .page_size = 16}, {.mode = mode});
    const SeqId parent = world.grown(10);
    const SeqId child = world.fork(parent);
    (void)world.step(child, DraftTree(Path{-1, 0, 0}), {0, 2});
    (void)world.step(parent, DraftTree(Path{-1, 0, 0}), {0, 1});
    world.check();
    EXPECT_EQ(world.manager.counters().copies_on_write, 1);
    // A fork between reserve and commit shares the tail again: the commit is refused.
    ASSERT_EQ(world.drafts.reserve(child, 3), Status::ok);
    const SeqId late = world.fork(child);
    const std::uint64_t digest = world.manager.digest();
    EXPECT_THROW((void)world.drafts.commit(child, DraftTree::chain(3), first_nodes(1)),
                 InvalidArgument);
    EXPECT_EQ(world.manager.digest(), digest);
    world.manager.finish(late);
    world.manager.finish(child);
    world.manager.finish(parent);
    EXPECT_EQ(world.manager.available_pages(), 15);
  }
}

TEST(Speculation, ABatchIsReservedAndCommittedAsAWholeOrNotAtAll) {
  World world({.pages = 5, .page_size = 4}, {});
  const SeqId a = world.grown(4);
  const SeqId b = world.grown(4);
  const std::uint64_t digest = world.manager.digest();
  const std::vector<DraftRequest> too_much = {{.seq = a, .nodes = 4}, {.seq = b, .nodes = 8}};
  EXPECT_EQ(world.drafts.reserve(too_much), Status::out_of_pages);
  const std::vector<DraftRequest> twice = {{.seq = a, .nodes = 1}, {.seq = a, .nodes = 1}};
  EXPECT_THROW((void)world.drafts.reserve(twice), InvalidArgument);
  EXPECT_THROW((void)world.drafts.reserve(a, 257), InvalidArgument);
  EXPECT_THROW((void)world.drafts.reserve(a, -1), InvalidArgument);
  EXPECT_EQ(world.manager.digest(), digest);
  EXPECT_EQ(world.manager.available_pages(), 2);

  const std::vector<DraftRequest> fits = {{.seq = a, .nodes = 4}, {.seq = b, .nodes = 4}};
  ASSERT_EQ(world.drafts.reserve(fits), Status::ok);
  const DraftTree chain = DraftTree::chain(4);
  const DraftTree larger = DraftTree::chain(5);
  const Path good = {0, 1};
  const Path bad = {0, 2};
  const std::uint64_t reserved = world.manager.digest();
  EXPECT_THROW(
      (void)world.drafts.commit(std::vector<DraftAcceptance>{
          {.seq = a, .tree = &chain, .path = good}, {.seq = b, .tree = &chain, .path = bad}}),
      TreeError);
  EXPECT_THROW((void)world.drafts.commit(a, larger, good), InvalidArgument);
  EXPECT_EQ(world.manager.digest(), reserved);
  world.check();
}

// spec-tree in small: random trees of up to 64 nodes, random paths, forks and finishes, in all
// modes and page sizes, every token compared, every page back at the end.
TEST(Speculation, RandomTreesInEveryModeAndPageSizeLeaveEveryTokenRightAndEveryPageFree) {
  for (const SpeculationMode mode : kModes) {
    for (const std::int64_t page_size : {1, 3, 16, 64}) {
      for (const char* policy : {"fifo", "run", "sorted"}) {
        World world({.pages = 6000 / page_size + 64, .page_size = page_size, .policy = policy},
                    {.mode = mode});
        sim::Prng random(static_cast<std::uint64_t>(page_size) * 7 + 1);
        std::vector<SeqId> live;
        for (int i = 0; i < 250; ++i) {
          if (live.size() < 6) live.push_back(world.grown(static_cast<int>(random.below(90))));
          const std::size_t at = random.below(live.size());
          if (random.below(12) == 0) live.push_back(world.fork(live[at]));
          Path parents{-1};
          const std::uint64_t nodes = 1 + random.below(64);
          while (parents.size() < nodes) {
            parents.push_back(static_cast<std::int32_t>(
                parents.size() - 1 - random.below(std::min<std::size_t>(parents.size(), 5))));
          }
          const DraftTree tree(parents);
          Path path = tree.path_to(static_cast<std::int64_t>(random.below(nodes)));
          path.resize(random.below(path.size() + 1));
          (void)world.step(live[at], tree, path);
          if (random.below(10) == 0) {
            world.manager.finish(live[at]);
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
          }
          if (i % 25 == 0) {
            ASSERT_NO_FATAL_FAILURE(world.check());
          }
        }
        ASSERT_NO_FATAL_FAILURE(world.check());
        for (const SeqId seq : live) world.manager.finish(seq);
        EXPECT_EQ(world.manager.available_pages(), 6000 / page_size + 63);
      }
    }
  }
}

TEST(KvManagerTables, KeepAndDropFrontRefuseWhatIsNotTheirs) {
  KvManager manager({.pages = 16, .page_size = 4});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 6), Status::ok);
  ASSERT_EQ(manager.reserve(seq, 14), Status::ok);  // pages 0, 1 written; 2, 3, 4 drafts
  const std::vector<PageId> pages(manager.pages(seq).begin(), manager.pages(seq).end());
  const std::uint64_t digest = manager.digest();
  for (const auto& kept : std::vector<std::vector<std::int64_t>>{{1}, {5}, {-1}, {2, 2}}) {
    EXPECT_THROW((void)manager.keep(seq, kept), InvalidArgument);
  }
  EXPECT_THROW((void)manager.drop_front(seq, 2), InvalidArgument);  // the second is not full
  EXPECT_THROW((void)manager.drop_front(seq, -1), InvalidArgument);
  EXPECT_EQ(manager.digest(), digest);
  EXPECT_EQ(manager.keep(seq, std::vector<std::int64_t>{4, 2}), 1);
  EXPECT_THAT(manager.pages(seq), testing::ElementsAre(pages[0], pages[1], pages[4], pages[2]));
  EXPECT_EQ(manager.drop_front(seq, 1), 1);
  EXPECT_EQ(manager.length(seq), 2);
  EXPECT_THAT(manager.pages(seq), testing::ElementsAre(pages[1], pages[4], pages[2]));
  manager.check();
  manager.finish(seq);
  EXPECT_EQ(manager.available_pages(), 15);
}

}  // namespace
}  // namespace packstone
