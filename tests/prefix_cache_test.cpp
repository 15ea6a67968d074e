// SPDX-License-Identifier: Apache-2.0
#include "sim/prng.hpp"
#include "tests/prefix_cache_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

namespace packstone {
namespace {

using Ids = std::vector<std::int64_t>;

Ids counted(std::int64_t tokens, std::int64_t first = 0) {
  Ids ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

struct Server {
  explicit Server(PageCount pages, std::int64_t page_size, PrefixCacheOptions options = {})
      : manager({.pages = pages, .page_size = page_size, .policy = "lowest"}),
        cache(manager.allocator(), with_page(options, page_size)) {}
  static PrefixCacheOptions with_page(PrefixCacheOptions options, std::int64_t page_size) {
    options.page_size = page_size;
    return options;
  }
  // Computes a prompt, stores it and finishes.
  std::vector<PageId> serve(const PrefixKey& key, TokenCount tokens) {
    SeqId seq;
    EXPECT_EQ(manager.create(seq), Status::ok);
    EXPECT_EQ(manager.append(seq, tokens), Status::ok);
    std::vector<PageId> pages(manager.pages(seq).begin(), manager.pages(seq).end());
    cache.unlock(cache.insert(key, pages).lock);
    manager.finish(seq);
    return pages;
  }
  std::vector<PageId> serve(const Ids& ids) {
    return serve({.ids = ids}, static_cast<TokenCount>(ids.size()));
  }
  TokenCount hit(const PrefixKey& key, TokenCount left = 0) {
    const PrefixMatch match = cache.match(key, left);
    cache.unlock(match.lock);
    return match.tokens;
  }
  void check() {
    cache.check();
    manager.check(cache.held());
  }
  KvManager manager;
  PrefixCache cache;
};

TEST(PrefixFault, PS01_AForkCountsEveryOwnerOnceAndAPrefixThatRepeatsAPageIsRefused) {
  KvManager manager({.pages = 16, .page_size = 1, .policy = "fifo"});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 2), Status::ok);
  const std::vector<PageId> pages(manager.pages(seq).begin(), manager.pages(seq).end());
  const std::vector<PageId> repeated = {pages[0], pages[1], pages[0]};
  SeqId other;
  EXPECT_THROW((void)manager.create({.prefix = repeated}, other), PageError);
  ASSERT_EQ(manager.fork(seq, 2, other), Status::ok);
  for (const PageId page : pages) EXPECT_EQ(manager.allocator().set().references(page), 2);
  manager.finish(seq);
  manager.finish(other);
  EXPECT_EQ(manager.available_pages(), 15);
}

TEST(PrefixFault, PS03_ALockHoldsItsNodeAndTheAncestors) {
  Server server(8, 4);
  const std::vector<PageId> pages = server.serve(counted(8));
  const Ids both = counted(8);
  const PrefixMatch match = server.cache.match({.ids = both}, 0);
  ASSERT_EQ(match.tokens, 8);
  EXPECT_THAT(server.cache.evict({.pages = 8}).freed, testing::IsEmpty());
  EXPECT_EQ(server.cache.locks(pages[0]), 1);
  EXPECT_EQ(server.cache.locks(pages[1]), 1);
  EXPECT_EQ(server.cache.evictable_pages(), 0);
  // A branch beside it comes and goes; the lock stays.
  Ids branch = counted(4);
  branch.insert(branch.end(), {7, 7, 7, 7});
  server.serve(branch);
  EXPECT_EQ(server.cache.evict({.pages = 8}).freed.size(), 1U);
  server.check();
  server.cache.unlock(match.lock);
  EXPECT_EQ(server.cache.evictable_pages(), 2);
  EXPECT_THAT(server.cache.evict({.pages = 8}).freed,
              testing::ElementsAre(pages[1], pages[0]));  // leaf first
  server.check();
  EXPECT_EQ(server.manager.available_pages(), 7);
}

TEST(PrefixFault, PS05_ACollisionSharesNothing) {
  Server server(32, 4, {.hash_is_constant = true});
  server.serve({1, 2, 3, 4});
  const Ids other = {9, 9, 9, 9};
  EXPECT_EQ(server.hit({.ids = other}), 0);
  // Chains that differ in the first page only, and end alike.
  server.serve({1, 1, 1, 1, 5, 6, 7, 8});
  const Ids alike = {2, 2, 2, 2, 5, 6, 7, 8};
  EXPECT_EQ(server.hit({.ids = alike}), 0);
  server.serve(alike);
  EXPECT_EQ(server.cache.pages(), 5);
  EXPECT_GT(server.cache.counters().collisions, 0);
  const Ids first = {1, 1, 1, 1, 5, 6, 7, 8};
  const PrefixMatch a = server.cache.match({.ids = first}, 0);
  const PrefixMatch b = server.cache.match({.ids = alike}, 0);
  ASSERT_EQ(a.pages.size(), 2U);
  ASSERT_EQ(b.pages.size(), 2U);
  EXPECT_NE(a.pages[1], b.pages[1]);
  server.check();
}

TEST(PrefixFault, PS06_AnEvictedPageLosesItsKey) {
  Server server(2, 4);
  const Ids x = {1, 2, 3, 4};
  const Ids y = {5, 6, 7, 8};
  const std::vector<PageId> page = server.serve(x);
  EXPECT_EQ(server.cache.evict({.pages = 1}).freed, page);
  EXPECT_EQ(server.serve(y), page);
  EXPECT_EQ(server.hit({.ids = x}), 0);
  const PrefixMatch match = server.cache.match({.ids = y}, 0);
  EXPECT_EQ(match.pages, page);
}

TEST(PrefixFault, PS07_AKeyBelowAPageIsNoKey) {
  const TokenCount lengths[] = {0, 1, 15, 16, 17};
  const TokenCount matched[] = {0, 0, 0, 16, 16};
  const PageCount evictable[] = {0, 0, 0, 1, 1};
  for (std::size_t i = 0; i < 5; ++i) {
    Server server(8, 16);
    const Ids ids = counted(lengths[i]);
    server.serve(ids);
    EXPECT_EQ(server.hit({.ids = ids}), matched[i]);
    EXPECT_EQ(server.cache.evictable_pages(), evictable[i]);
    EXPECT_EQ(server.manager.available_pages(), 7 - evictable[i]) << "the partial page came back";
    server.check();
  }
}

TEST(PrefixFault, PS08_AFullHitLeavesATokenToComputeAndTheEstimateIsWhatIsTaken) {
  Server server(6, 16);  // four pages cached, one free
  const Ids ids = counted(64);
  server.serve(ids);
  ASSERT_EQ(server.manager.available_pages(), 1);
  const PrefixEstimate estimate = server.cache.estimate({.ids = ids});
  EXPECT_EQ(estimate.tokens_reused, 48);
  EXPECT_EQ(estimate.tokens_to_compute, 16);
  EXPECT_EQ(estimate.pages_needed, 1);
  const PrefixMatch match = server.cache.match({.ids = ids});
  EXPECT_EQ(match.tokens, 48);
  SeqId seq;
  ASSERT_EQ(server.manager.create({.prefix = match.pages}, seq), Status::ok);
  ASSERT_EQ(server.manager.append(seq, 64 - match.tokens), Status::ok);
  EXPECT_EQ(server.manager.available_pages(), 0);
  const Ids longer = counted(65);
  EXPECT_EQ(server.cache.estimate({.ids = longer}).tokens_reused, 64);
  EXPECT_EQ(server.cache.estimate({.ids = longer}).tokens_to_compute, 1);
}

TEST(PrefixFault, PS09_ASecondUnlockOrReleaseIsAnErrorAndBothOrdersEndAlike) {
  Server server(8, 4);
  const Ids ids = counted(8);
  SeqId seq;
  ASSERT_EQ(server.manager.create(seq), Status::ok);
  ASSERT_EQ(server.manager.append(seq, 8), Status::ok);
  const std::vector<PageId> pages(server.manager.pages(seq).begin(),
                                  server.manager.pages(seq).end());
  EXPECT_THROW(server.cache.unlock(PrefixLock{77}), InvalidArgument);
  const PrefixInsertion insertion = server.cache.insert({.ids = ids}, pages);
  server.manager.finish(seq);
  server.cache.unlock(insertion.lock);
  EXPECT_THROW(server.cache.unlock(insertion.lock), InvalidArgument);
  EXPECT_THROW(server.manager.finish(seq), SequenceError);
  EXPECT_EQ(server.manager.available_pages(), 5);
  EXPECT_EQ(server.cache.locks(pages[0]), 0);
  server.check();

  // The other order: the sequence ends before its pages are offered. They are nobody's by then.
  Server late(8, 4);
  ASSERT_EQ(late.manager.create(seq), Status::ok);
  ASSERT_EQ(late.manager.append(seq, 8), Status::ok);
  late.manager.finish(seq);
  EXPECT_THROW((void)late.cache.insert({.ids = ids}, pages), PageError);
  EXPECT_EQ(late.cache.pages(), 0);
  EXPECT_EQ(late.manager.available_pages(), 7);
  // Unlock and finish in either order end with the same count.
  for (const bool unlock_first : {false, true}) {
    Server order(8, 4);
    ASSERT_EQ(order.manager.create(seq), Status::ok);
    ASSERT_EQ(order.manager.append(seq, 8), Status::ok);
    const PrefixLock lock = order.cache.insert({.ids = ids}, order.manager.pages(seq)).lock;
    if (unlock_first) order.cache.unlock(lock);
    order.manager.finish(seq);
    if (!unlock_first) order.cache.unlock(lock);
    EXPECT_EQ(order.manager.available_pages(), 5);
    EXPECT_EQ(order.cache.evictable_pages(), 2);
    order.check();
  }
}

TEST(PrefixFault, PS10_AppendingToASharedTailCopiesIt) {
  KvManager manager({.pages = 8, .page_size = 16, .policy = "lowest"});
  SeqId a;
  SeqId b;
  ASSERT_EQ(manager.create(a), Status::ok);
  ASSERT_EQ(manager.append(a, 10), Status::ok);
  ASSERT_EQ(manager.fork(a, 10, b), Status::ok);
  const PageId shared = manager.pages(a)[0];
  ASSERT_EQ(manager.append(a, 1), Status::ok);
  ASSERT_EQ(manager.append(b, 1), Status::ok);
  const std::vector<PageCopy> copies = manager.take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].tokens, 10);
  EXPECT_NE(manager.slot(a, 10), manager.slot(b, 10));
  EXPECT_EQ(manager.allocator().set().references(shared), 1);
  EXPECT_EQ(manager.available_pages(), 5);
}

TEST(DefragFault, DF08_ThePrefixIndexNamesTheNewPageAfterAMove) {
  Server server(16, 4);
  const Ids ids = counted(8);
  const std::vector<PageId> pages = server.serve(ids);
  const PageMove move{pages[1], PageId{9}};
  server.manager.apply({&move, 1}, {}, 1);
  server.cache.remap({&move, 1});
  server.check();
  server.manager.reclaim(1);
  server.check();
  const PrefixMatch match = server.cache.match({.ids = ids}, 0);
  EXPECT_THAT(match.pages, testing::ElementsAre(pages[0], PageId{9}));
  const PageMove outside{pages[0], PageId{16}};
  EXPECT_THROW(server.cache.remap({&outside, 1}), PageError);
}

TEST(PrefixCache, AdapterAndSaltKeepPrefixesApart) {
  Server server(16, 4);
  const Ids ids = counted(4);
  server.serve({.ids = ids, .adapter = 1}, 4);
  EXPECT_EQ(server.hit({.ids = ids}), 0);
  EXPECT_EQ(server.hit({.ids = ids, .adapter = 1}), 4);
  EXPECT_EQ(server.hit({.ids = ids, .adapter = 1, .salt = 1}), 0);
  Server constant(16, 4, {.hash_is_constant = true});
  constant.serve({.ids = ids, .adapter = 1}, 4);
  EXPECT_EQ(constant.hit({.ids = ids, .adapter = 2}), 0) << "not by the hash alone";
}

// Blocks of a trace: the page divides the block, the block the page, or neither.
TEST(PrefixCache, BlockIdsOfATraceServePagesOfAnySize) {
  struct Case {
    std::int64_t page_size;
    std::int64_t id_tokens;
    TokenCount shared_blocks;
    TokenCount expected;  // tokens of whole pages that lie in shared blocks only
  };
  for (const Case& each : {Case{16, 512, 3, 1536}, Case{512, 512, 3, 1536}, Case{48, 16, 7, 96},
                           Case{10, 16, 3, 40}, Case{7, 5, 4, 14}, Case{24, 16, 2, 24}}) {
    const std::int64_t blocks = 8;
    Server server(4096, each.page_size, {.id_tokens = each.id_tokens});
    const Ids ids = counted(blocks, 100);
    server.serve({.ids = ids}, blocks * each.id_tokens);
    Ids other = ids;
    for (std::size_t i = static_cast<std::size_t>(each.shared_blocks); i < other.size(); ++i) {
      other[i] = 1000 + static_cast<std::int64_t>(i);
    }
    EXPECT_EQ(server.hit({.ids = other}), each.expected)
        << "page " << each.page_size << ", block " << each.id_tokens;
    // The last block may be cut: its last pages are simply not full.
    EXPECT_EQ(server.hit({.ids = ids, .tokens = blocks * each.id_tokens - 1}),
              (blocks * each.id_tokens - 1) / each.page_size * each.page_size);
    EXPECT_THROW((void)server.cache.match({.ids = ids, .tokens = blocks * each.id_tokens + 1}),
                 InvalidArgument);
    server.check();
  }
}

TEST(PrefixCache, EvictsLowPriorityFirstAndThenTheLeastRecentlyUsed) {
  Server server(16, 1);
  std::vector<PageId> pages;
  for (std::int64_t i = 0; i < 6; ++i) {
    SeqId seq;
    ASSERT_EQ(server.manager.create(seq), Status::ok);
    ASSERT_EQ(server.manager.append(seq, 1), Status::ok);
    const Ids id = {i};
    pages.push_back(server.manager.pages(seq)[0]);
    server.cache.unlock(
        server.cache.insert({.ids = id}, server.manager.pages(seq), i == 0 ? 5 : 0).lock);
    server.manager.finish(seq);
  }
  const Ids second = {1};
  EXPECT_EQ(server.hit({.ids = second}), 1);
  EXPECT_THAT(server.cache.evict({.pages = 6}).freed,
              testing::ElementsAre(pages[2], pages[3], pages[4], pages[5], pages[1], pages[0]));
}

TEST(PrefixCache, AddressAwareEvictionMakesRunsAndCountsWhatItCost) {
  PageCount longest[2] = {0, 0};
  for (const std::int64_t candidates : {1, 16}) {
    Server server(65, 1);
    std::vector<SeqId> live;
    for (std::int64_t i = 0; i < 64; ++i) {
      SeqId seq;
      ASSERT_EQ(server.manager.create(seq), Status::ok);
      ASSERT_EQ(server.manager.append(seq, 1), Status::ok);
      live.push_back(seq);
    }
    for (std::int64_t i = 0; i < 64; ++i) {  // in an order that has nothing to do with addresses
      const SeqId seq = live[static_cast<std::size_t>(i * 37 % 64)];
      const Ids id = {i};
      server.cache.unlock(server.cache.insert({.ids = id}, server.manager.pages(seq)).lock);
      server.manager.finish(seq);
    }
    const Eviction eviction = server.cache.evict({.pages = 16, .candidates = candidates});
    ASSERT_EQ(eviction.freed.size(), 16U);
    EXPECT_EQ(eviction.before_their_turn > 0, candidates > 1);
    PageCount run = 0;
    for (std::int32_t page = 1; page < 65; ++page) {
      run = server.manager.allocator().set().state(PageId{page}) == PageState::free ? run + 1 : 0;
      PageCount& best = longest[candidates > 1 ? 1 : 0];
      best = std::max(best, run);
    }
    for (std::int64_t i = 0; i < 64; ++i) {
      const Ids id = {i};
      (void)server.hit({.ids = id});
    }
    EXPECT_EQ(server.cache.counters().pages_evicted_early, eviction.before_their_turn);
    EXPECT_EQ(server.cache.counters().hits_lost_to_addresses, eviction.before_their_turn);
    EXPECT_EQ(server.cache.counters().pages_hit, 48);
    server.check();
  }
  EXPECT_GT(longest[1], longest[0]);
}

class Recorder : public KvEventSink {
 public:
  void on_event(const KvEvent& event) override {
    kinds.push_back(event.kind);
    hashes.push_back(event.hash);
    parents.push_back(event.parent_hash);
  }
  std::vector<KvEventKind> kinds;
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> parents;
};

TEST(PrefixCache, TellsASinkWhatIsStoredMovedEvictedAndRemoved) {
  Recorder recorder;
  Server server(16, 4, {.sink = &recorder});
  const std::vector<PageId> pages = server.serve(counted(12));
  EXPECT_EQ(recorder.parents[1], recorder.hashes[0]);
  EXPECT_EQ(recorder.parents[2], recorder.hashes[1]);
  const PageMove move{pages[0], PageId{9}};
  server.manager.apply({&move, 1}, {}, 1);
  server.cache.remap({&move, 1});
  (void)server.cache.evict({.pages = 1});
  EXPECT_EQ(server.cache.clear(), 2);
  using enum KvEventKind;
  EXPECT_THAT(recorder.kinds,
              testing::ElementsAre(stored, stored, stored, moved, evicted, removed, removed));
  EXPECT_EQ(recorder.hashes[3], recorder.hashes[0]);
  EXPECT_EQ(recorder.hashes[4], recorder.hashes[2]);
}

TEST(PrefixCache, AHundredThousandRandomCommandsAgreeWithTheOracle) {
  std::uint64_t commands = 20000;
  if (const char* wanted = std::getenv("PACKSTONE_RANDOM_COMMANDS")) {
    commands = std::strtoull(wanted, nullptr, 10) / 5;
  }
  for (const bool constant : {false, true}) {
    for (const std::int64_t candidates : {1, 4}) {
      test::PrefixDriver driver(constant, candidates);
      sim::Prng random(constant ? 1 : 2);
      for (std::uint64_t i = 0; i < commands; ++i) {
        const std::uint64_t bits = random.next();
        const auto byte = [&](int shift) { return static_cast<std::uint8_t>(bits >> shift); };
        ASSERT_NO_THROW(driver.run({byte(0), byte(8), byte(16), byte(24)})) << "command " << i;
        if (i % 16 == 0) {
          ASSERT_NO_THROW(driver.check()) << "command " << i;
        }
      }
      ASSERT_NO_THROW(driver.finish_all());
    }
  }
}

}  // namespace
}  // namespace packstone
