// SPDX-License-Identifier: Apache-2.0
// Faults that users of KV allocators have met, one test each, over every placement policy. After
// each error the whole state must be what it was before.
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace packstone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> policies() {
  return {placement_names().begin(), placement_names().end()};
}

std::vector<PageId> pages_of(std::initializer_list<std::int32_t> ids) {
  std::vector<PageId> result;
  for (const std::int32_t id : ids) result.push_back(PageId{id});
  return result;
}

std::vector<std::int32_t> ids(std::span<const PageId> pages) {
  std::vector<std::int32_t> result;
  for (const PageId page : pages) result.push_back(index_of(page));
  return result;
}

/// All that can be seen of an allocator but the order of its free pages.
std::vector<std::int64_t> state_of(const PageAllocator& allocator) {
  const FreeSet& set = allocator.set();
  std::vector<std::int64_t> result = {allocator.available(), allocator.held(), set.pinned_pages()};
  for (std::int32_t i = 0; i < set.pages(); ++i) {
    const PageId page{i};
    result.push_back(static_cast<std::int64_t>(set.state(page)));
    result.push_back(set.references(page));
    result.push_back(set.owner(page));
    result.push_back(set.pins(page));
  }
  return result;
}

std::vector<std::int64_t> state_of(const KvManager& manager) {
  std::vector<std::int64_t> result = state_of(manager.allocator());
  result.push_back(static_cast<std::int64_t>(manager.digest()));
  for (const SeqId seq : manager.live_sequences()) {
    result.push_back(seq.index);
    result.push_back(manager.length(seq));
    for (const PageId page : manager.pages(seq)) result.push_back(index_of(page));
  }
  return result;
}

/// The call throws a PageError of this kind, page and owner, says both, and changes nothing.
template <typename Target, typename Call>
void expect_page_error(const Target& target, PageError::Kind kind, std::int32_t page,
                       OwnerTag owner, Call&& call) {
  const auto before = state_of(target);
  try {
    call();
    ADD_FAILURE() << "no error for page " << page;
  } catch (const PageError& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(index_of(error.page()), page);
    EXPECT_EQ(error.owner(), owner);
    EXPECT_THAT(error.what(), HasSubstr("page " + std::to_string(page)));
    if (owner != 0) {
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(owner)));
    }
  }
  EXPECT_EQ(state_of(target), before);
  target.check();
}

template <typename Exception, typename Target, typename Call>
void expect_refused(const Target& target, Call&& call) {
  const auto before = state_of(target);
  EXPECT_THROW(call(), Exception);
  EXPECT_EQ(state_of(target), before);
  target.check();
}

SeqId grown(KvManager& manager, TokenCount tokens) {
  SeqId seq;
  EXPECT_EQ(manager.create(seq), Status::ok);
  EXPECT_EQ(manager.append(seq, tokens), Status::ok);
  return seq;
}

/// A sequence whose table is exactly `pages`; every other page of the pool goes to `rest`.
SeqId with_table(KvManager& manager, const std::vector<PageId>& pages, std::vector<PageId>& rest) {
  std::vector<PageId> all(static_cast<std::size_t>(manager.available_pages()));
  EXPECT_EQ(manager.allocator().allocate({.owner = 99}, all), Status::ok);
  SeqId seq;
  EXPECT_EQ(manager.create({.owner = 99, .prefix = pages}, seq), Status::ok);
  manager.allocator().release(pages);
  std::ranges::sort(all);
  for (const PageId page : all) {
    if (std::ranges::find(pages, page) == pages.end()) rest.push_back(page);
  }
  return seq;
}

TEST(AllocatorFault, AL01_TheTailOfTheLastPageComesBackAfterSpeculation) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 9, .page_size = 16, .policy = policy});
    const SeqId seq = grown(manager, 30);
    const auto used = [&] { return 8 - manager.available_pages(); };
    constexpr TokenCount kAccepted[] = {3, 1, 4, 2};
    for (std::size_t i = 0; i < 20; ++i) {
      ASSERT_EQ(manager.reserve(seq, 5), Status::ok);
      EXPECT_EQ(used(), pages_for(manager.length(seq) + 5, 16));
      manager.commit(seq, kAccepted[i % 4]);
      EXPECT_EQ(used(), manager.capacity(seq) / 16);
      manager.trim(seq);
      EXPECT_EQ(used(), pages_for(manager.length(seq), 16));
      manager.check();
    }
    EXPECT_EQ(manager.length(seq), 30 + 50);
    manager.finish(seq);
    EXPECT_EQ(manager.available_pages(), 8);
    manager.check();
  }
}

TEST(AllocatorFault, AL03_APageNamedTwiceInOneReleaseIsNeverFreedTwice) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    PageAllocator allocator({.pages = 10, .placement = {.policy = policy}});
    std::vector<PageId> all(9);
    ASSERT_EQ(allocator.allocate({.owner = 42}, all), Status::ok);
    allocator.retain(pages_of({7}));
    EXPECT_EQ(allocator.release(pages_of({7, 7})), 1);
    EXPECT_EQ(allocator.available(), 1);
    allocator.check();

    for (const auto& twice : {pages_of({8, 8}), pages_of({8, 3, 8})}) {
      expect_page_error(allocator, PageError::Kind::not_live, 8, 42,
                        [&] { allocator.release(twice); });
    }
    EXPECT_EQ(allocator.available(), 1);
    std::vector<PageId> last(1);
    ASSERT_EQ(allocator.allocate({.owner = 43}, last), Status::ok);
    EXPECT_THAT(ids(last), ElementsAre(7));
    EXPECT_EQ(allocator.allocate({.owner = 43}, last), Status::out_of_pages);
  }
}

TEST(AllocatorFault, AL04_CapacityIsTestedBeforeAnyFreePageIsRead) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 4, .page_size = 8, .policy = policy});
    const SeqId a = grown(manager, 0);
    const SeqId b = grown(manager, 0);
    const std::vector<Growth> batch = {{a, 17}, {b, 17}};
    const auto before = state_of(manager);
    std::vector<SlotId> slots;
    EXPECT_EQ(manager.extend(batch, &slots), Status::out_of_pages);
    EXPECT_TRUE(slots.empty());
    EXPECT_EQ(state_of(manager), before);
    EXPECT_EQ(manager.append(a, 24), Status::ok);
    EXPECT_THAT(ids(manager.pages(a)), testing::UnorderedElementsAre(1, 2, 3));
    EXPECT_EQ(manager.available_pages(), 0);
    manager.check();
  }
}

TEST(AllocatorFault, AL05_ABatchThatFailsMidwayKeepsNothing) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    std::vector<std::vector<std::int32_t>> orders;
    for (const bool with_failure : {true, false}) {
      KvManager manager({.pages = 7, .page_size = 4, .policy = policy});
      // Freed in another order than allocated, so that the free order is not the initial one.
      const SeqId first = grown(manager, 8);
      const SeqId second = grown(manager, 12);
      manager.finish(second);
      manager.finish(first);
      const SeqId a = grown(manager, 0);
      const SeqId b = grown(manager, 0);
      const SeqId c = grown(manager, 0);
      const std::vector<Growth> batch = {{a, 8}, {b, 8}, {c, 12}};
      if (with_failure) {
        const auto before = state_of(manager);
        EXPECT_EQ(manager.extend(batch), Status::out_of_pages);
        EXPECT_EQ(state_of(manager), before);
        EXPECT_EQ(manager.available_pages(), 6);
      }
      EXPECT_EQ(manager.append(c, 24), Status::ok);
      orders.push_back(ids(manager.pages(c)));
      manager.check();
    }
    EXPECT_EQ(orders[0], orders[1]) << "the failed batch disturbed the free order";
  }
}

TEST(AllocatorFault, AL06_AFailedStepKeepsThePagesThatTheRequestHadBefore) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 6, .page_size = 1, .policy = policy});
    std::vector<PageId> rest;
    const SeqId seq = with_table(manager, pages_of({2, 5}), rest);
    ASSERT_EQ(manager.available_pages(), 0);
    EXPECT_EQ(manager.append(seq, 1), Status::out_of_pages);
    EXPECT_EQ(manager.decode({&seq, 1}), Status::out_of_pages);
    EXPECT_THAT(ids(manager.pages(seq)), ElementsAre(2, 5));
    manager.finish(seq);
    EXPECT_EQ(manager.available_pages(), 2);
    manager.check(rest);
  }
}

TEST(AllocatorFault, AL07_NegativeAndHugeSizesDoNotWrap) {
  constexpr auto kWrapped = static_cast<TokenCount>(std::numeric_limits<std::uint64_t>::max() - 3);
  for (const std::string& policy : policies()) {
    for (const std::int64_t page_size : {1, 16}) {
      SCOPED_TRACE(policy);
      KvManager manager({.pages = 9, .page_size = page_size, .policy = policy});
      const SeqId seq = grown(manager, 3);
      for (const TokenCount tokens :
           {TokenCount{-1}, TokenCount{-4}, TokenCount{std::numeric_limits<std::int32_t>::min()},
            kWrapped, std::numeric_limits<TokenCount>::min()}) {
        expect_refused<InvalidArgument>(manager, [&] { (void)manager.append(seq, tokens); });
        expect_refused<InvalidArgument>(manager, [&] { (void)manager.reserve(seq, tokens); });
        expect_refused<InvalidArgument>(manager, [&] { manager.commit(seq, tokens); });
        expect_refused<InvalidArgument>(manager, [&] { manager.truncate(seq, tokens); });
        expect_refused<InvalidArgument>(manager, [&] { (void)manager.allocator().hold(tokens); });
        expect_refused<InvalidArgument>(manager, [&] { manager.allocator().forfeit(tokens); });
      }
      const Growth shrinking{.seq = seq, .length = 2};
      expect_refused<InvalidArgument>(manager, [&] { (void)manager.extend({&shrinking, 1}); });

      const auto before = state_of(manager);
      for (const TokenCount tokens :
           {TokenCount{1} << 31, TokenCount{1} << 62, std::numeric_limits<TokenCount>::max()}) {
        EXPECT_EQ(manager.append(seq, tokens), Status::out_of_pages);
        EXPECT_EQ(manager.reserve(seq, tokens), Status::out_of_pages);
      }
      const SeqId other = grown(manager, 0);
      const std::vector<Growth> overflowing = {{seq, std::numeric_limits<TokenCount>::max()},
                                               {other, std::numeric_limits<TokenCount>::max()}};
      EXPECT_EQ(manager.extend(overflowing), Status::out_of_pages);
      manager.finish(other);
      EXPECT_EQ(manager.available_pages(), before[0]);
      EXPECT_EQ(manager.append(seq, 0), Status::ok);
      EXPECT_EQ(manager.extend({}), Status::ok);
      EXPECT_EQ(manager.decode({}), Status::ok);
      EXPECT_EQ(manager.allocator().allocate({.owner = 1}, {}), Status::ok);
      EXPECT_EQ(manager.available_pages(), before[0]);
      manager.check();
    }
  }
}

TEST(AllocatorFault, AL08_TheReservedPageIsNeitherHandedOutNorFreed) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    PageAllocator allocator({.pages = 10, .placement = {.policy = policy, .page_size = 16}});
    for (int round = 0; round < 2; ++round) {
      std::vector<PageId> all(9);
      ASSERT_EQ(allocator.allocate({.owner = 42}, all), Status::ok);
      EXPECT_THAT(ids(all), testing::UnorderedElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
      EXPECT_EQ(allocator.available(), 0);
      const auto reserved = PageError::Kind::reserved_page;
      const auto outside = PageError::Kind::out_of_range;
      expect_page_error(allocator, reserved, 0, 0, [&] { allocator.release(pages_of({0})); });
      expect_page_error(allocator, reserved, 0, 0, [&] { allocator.release(pages_of({3, 0})); });
      expect_page_error(allocator, reserved, 0, 0, [&] { allocator.release(pages_of({0, 3})); });
      expect_page_error(allocator, outside, -1, 0, [&] { allocator.release(pages_of({3, -1})); });
      expect_page_error(allocator, outside, 10, 0, [&] { allocator.release(pages_of({3, 10})); });
      expect_page_error(allocator, reserved, 0, 0, [&] { allocator.retain(pages_of({3, 0})); });
      expect_page_error(allocator, reserved, 0, 0, [&] { allocator.pin(kReservedPage); });
      EXPECT_EQ(allocator.set().state(PageId{3}), PageState::live);
      allocator.clear();
      EXPECT_EQ(allocator.available(), 9);
    }
    expect_page_error(allocator, PageError::Kind::not_live, 3, 0,
                      [&] { allocator.release(pages_of({3})); });
  }
}

TEST(AllocatorFault, AL08_AForeignPageIsNamedWithItsOwner) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    PageAllocator allocator({.pages = 6, .placement = {.policy = policy}});
    std::vector<PageId> mine(2);
    std::vector<PageId> others(2);
    ASSERT_EQ(allocator.allocate({.owner = 11}, mine), Status::ok);
    ASSERT_EQ(allocator.allocate({.owner = 22}, others), Status::ok);
    const std::vector<PageId> both = {mine[0], others[1]};
    expect_page_error(allocator, PageError::Kind::foreign, index_of(others[1]), 22,
                      [&] { allocator.release(both, OwnerTag{11}); });
    EXPECT_EQ(allocator.release(mine, OwnerTag{11}), 2);
    expect_page_error(allocator, PageError::Kind::not_live, index_of(mine[0]), 11,
                      [&] { allocator.release(mine, OwnerTag{11}); });
    const auto holdings = allocator.set().holdings();
    ASSERT_EQ(holdings.size(), 1U);
    EXPECT_EQ(holdings[0].owner, 22U);
    EXPECT_EQ(holdings[0].pages.size(), 2U);
  }
}

TEST(AllocatorFault, AL09_TheSecondEndOfADeferredReleaseFreesNothing) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    PageAllocator allocator({.pages = 10, .placement = {.policy = policy}});
    std::vector<PageId> all(9);
    ASSERT_EQ(allocator.allocate({.owner = 5}, all), Status::ok);
    allocator.release(pages_of({8, 9}));
    allocator.move({PageId{3}, PageId{8}}, 1);
    allocator.move({PageId{4}, PageId{9}}, 1);
    EXPECT_EQ(allocator.available(), 0);
    EXPECT_EQ(allocator.reclaim(0), 0);
    EXPECT_EQ(allocator.reclaim(1), 2);
    EXPECT_EQ(allocator.available(), 2);
    EXPECT_EQ(allocator.reclaim(1), 0);
    EXPECT_EQ(allocator.reclaim(9), 0);
    EXPECT_EQ(allocator.available(), 2);
    allocator.check();
  }
}

TEST(AllocatorFault, AL10_ARestoredPoolHasLostNoPage) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 11, .page_size = 1, .policy = policy});
    std::vector<PageId> rest;
    const SeqId seq = with_table(manager, pages_of({7, 2}), rest);
    manager.allocator().release(rest);
    const KvManager::Checkpoint saved = manager.checkpoint();

    const SeqId later = grown(manager, 2);
    manager.restore(saved);
    EXPECT_FALSE(manager.alive(later));
    EXPECT_EQ(manager.available_pages(), 8);
    EXPECT_THAT(ids(manager.pages(seq)), ElementsAre(7, 2));
    manager.check();
    const SeqId asked = grown(manager, 3);
    if (policy == "run") {
      EXPECT_THAT(ids(manager.pages(asked)), ElementsAre(8, 9, 10));  // the run that fits
    } else {
      EXPECT_THAT(ids(manager.pages(asked)), ElementsAre(1, 3, 4));
      EXPECT_EQ(manager.append(asked, 5), Status::ok);
      EXPECT_THAT(ids(manager.pages(asked)), ElementsAre(1, 3, 4, 5, 6, 8, 9, 10));
    }

    manager.restore(saved);
    manager.truncate(seq, 1);
    (void)grown(manager, 9);
    EXPECT_EQ(manager.available_pages(), 0);
    manager.restore(saved);
    EXPECT_EQ(manager.available_pages(), 8);
    manager.finish(seq);
    EXPECT_EQ(manager.available_pages(), 10);
    manager.check();
  }
}

TEST(AllocatorFault, AL11_PagesSetAsideAreFoundByExtendAndByDecode) {
  for (const std::string& policy : policies()) {
    for (const std::int64_t page_size : {1, 16}) {
      SCOPED_TRACE(policy);
      std::vector<PageId> all(10);
      for (const bool as_decode : {false, true}) {
        KvManager manager({.pages = 11, .page_size = page_size, .policy = policy});
        ASSERT_EQ(manager.allocator().allocate({.owner = 1}, all), Status::ok);
        for (const std::int32_t page : {9, 2, 5}) manager.allocator().release(pages_of({page}));
        EXPECT_EQ(manager.available_pages(), 3);
        std::vector<std::int32_t> got;
        if (as_decode) {
          const std::vector<SeqId> batch = {grown(manager, 0), grown(manager, 0),
                                            grown(manager, 0)};
          ASSERT_EQ(manager.decode(batch), Status::ok);
          for (const SeqId seq : batch) got.push_back(index_of(manager.pages(seq)[0]));
        } else {
          got = ids(manager.pages(grown(manager, 3 * page_size)));
        }
        if (policy == "sorted") {
          EXPECT_THAT(got, ElementsAre(2, 5, 9));
        } else {
          EXPECT_THAT(got, testing::UnorderedElementsAre(2, 5, 9));
        }
      }
    }
  }
}

TEST(AllocatorFault, AL12_SettingAsideMoreThanIsFreeIsRefusedAndSucceedsWhenItIs) {
  // A pool of 8 pages, 5 used, 1 set aside, is to give up 4: three more than are set aside.
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 9, .page_size = 1, .policy = policy});
    const SeqId seq = grown(manager, 5);
    ASSERT_EQ(manager.allocator().hold(1), Status::ok);
    EXPECT_EQ(manager.allocator().hold(3), Status::out_of_pages);
    EXPECT_EQ(manager.available_pages(), 2);
    manager.truncate(seq, 4);
    EXPECT_EQ(manager.allocator().hold(3), Status::ok);
    EXPECT_EQ(manager.available_pages(), 0);
    EXPECT_EQ(manager.append(seq, 1), Status::out_of_pages);
    EXPECT_EQ(manager.allocator().hold(1), Status::out_of_pages);
    EXPECT_EQ(manager.available_pages(), 0);
    manager.check();
  }
}

TEST(AllocatorFault, PS01_ATableThatNamesAPageTwiceIsRefusedAndAForkCountsOwners) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 11, .page_size = 16, .policy = policy});
    std::vector<PageId> rest;
    const SeqId seq = with_table(manager, pages_of({4, 9}), rest);
    manager.allocator().release(rest);
    SeqId out;
    const auto twice = pages_of({4, 9, 4});
    expect_page_error(manager, PageError::Kind::duplicate, 4, 99,
                      [&] { (void)manager.create({.prefix = twice}, out); });
    SeqId child;
    ASSERT_EQ(manager.fork(seq, 32, child), Status::ok);
    EXPECT_EQ(manager.allocator().set().references(PageId{4}), 2);
    EXPECT_EQ(manager.allocator().set().references(PageId{9}), 2);
    manager.finish(seq);
    EXPECT_EQ(manager.available_pages(), 8);
    manager.finish(child);
    EXPECT_EQ(manager.available_pages(), 10);
    manager.check();
  }
}

TEST(AllocatorFault, PS09_AnExtraUnlockOrReleaseIsAnErrorAndBothOrdersOfCachingAgree) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 11, .page_size = 16, .policy = policy});
    const SeqId seq = grown(manager, 32);
    const PageId first = manager.pages(seq)[0];
    expect_page_error(manager, PageError::Kind::not_live, index_of(first), 1,
                      [&] { manager.unpin(seq, 0, 1); });
    manager.pin(seq, 0, 1);
    manager.unpin(seq, 0, 1);
    expect_page_error(manager, PageError::Kind::not_live, index_of(first), 1,
                      [&] { manager.unpin(seq, 0, 1); });
    manager.pin(seq, 1, 1);
    expect_page_error(manager, PageError::Kind::not_live, index_of(first), 1,
                      [&] { manager.unpin(seq, 0, 2); });
    manager.unpin(seq, 1, 1);

    // The cache takes the pages, then the request ends; or a second holder ends first.
    const std::vector<PageId> cached(manager.pages(seq).begin(), manager.pages(seq).end());
    SeqId child;
    ASSERT_EQ(manager.fork(seq, 32, child), Status::ok);
    manager.allocator().retain(cached);
    manager.finish(seq);
    manager.finish(child);
    EXPECT_EQ(manager.available_pages(), 8);
    manager.check(cached);
    expect_refused<SequenceError>(manager.allocator(), [&] { manager.finish(seq); });
    EXPECT_EQ(manager.allocator().release(cached), 2);
    EXPECT_EQ(manager.available_pages(), 10);
    expect_page_error(manager, PageError::Kind::not_live, index_of(cached[0]), 1,
                      [&] { manager.allocator().release(cached); });
    expect_page_error(manager, PageError::Kind::not_live, index_of(cached[0]), 1,
                      [&] { manager.allocator().retain(cached); });
    EXPECT_EQ(manager.available_pages(), 10);
  }
}

TEST(AllocatorFault, PS10_AppendingToASharedTailCopiesIt) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 5, .page_size = 16, .policy = policy});
    std::vector<int> pool(5 * 16, -1);
    const auto row = [&](SeqId seq, TokenCount position) -> int& {
      return pool[static_cast<std::size_t>(manager.slot(seq, position))];
    };
    const SeqId a = grown(manager, 10);
    for (int t = 0; t < 10; ++t) row(a, t) = t;
    SeqId b;
    ASSERT_EQ(manager.fork(a, 10, b), Status::ok);
    const PageCount before = manager.available_pages();

    for (const auto& [seq, value] : {std::pair{a, 'x'}, std::pair{b, 'y'}}) {
      ASSERT_EQ(manager.append(seq, 1), Status::ok);
      for (const PageCopy& copy : manager.take_copies()) {
        for (TokenCount t = 0; t < copy.tokens; ++t) {
          pool[static_cast<std::size_t>(slot_of(copy.to, 16, t))] =
              pool[static_cast<std::size_t>(slot_of(copy.from, 16, t))];
        }
      }
      row(seq, 10) = value;
    }
    EXPECT_EQ(row(a, 10), 'x');
    EXPECT_EQ(row(b, 10), 'y');
    for (int t = 0; t < 10; ++t) {
      EXPECT_EQ(row(a, t), t);
      EXPECT_EQ(row(b, t), t);
    }
    EXPECT_EQ(manager.available_pages(), before - 1);
    EXPECT_EQ(manager.allocator().set().references(manager.pages(a)[0]), 1);
    EXPECT_EQ(manager.allocator().set().references(manager.pages(b)[0]), 1);
    manager.check();
  }
}

TEST(AllocatorFault, SP08_DraftsPastThePageEdgeHaveAPageOfTheirOwn) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 6, .page_size = 16, .policy = policy});
    const SeqId neighbour = grown(manager, 16);
    const SeqId seq = grown(manager, 14);
    const PageCount before = manager.available_pages();
    ASSERT_EQ(manager.reserve(seq, 4), Status::ok);
    EXPECT_EQ(manager.available_pages(), before - 1);
    for (TokenCount t = 14; t < 18; ++t) {
      EXPECT_GE(manager.slot(seq, t), 16);
      EXPECT_NE(manager.slot(seq, t) / 16, index_of(manager.pages(neighbour)[0]));
    }
    EXPECT_THROW((void)manager.slot(seq, 32), InvalidArgument);
    EXPECT_THROW((void)manager.slot(seq, -1), InvalidArgument);
  }
}

TEST(AllocatorFault, SP10_AnAcceptCountOfZeroMovesNothing) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 9, .page_size = 16, .policy = policy});
    const SeqId seq = grown(manager, 37);
    std::vector<SlotId> before;
    for (TokenCount t = 0; t < 37; ++t) before.push_back(manager.slot(seq, t));
    ASSERT_EQ(manager.reserve(seq, 5), Status::ok);
    manager.commit(seq, 0);
    manager.trim(seq);
    EXPECT_EQ(manager.length(seq), 37);
    for (TokenCount t = 0; t < 37; ++t) {
      EXPECT_EQ(manager.slot(seq, t), before[static_cast<std::size_t>(t)]);
    }
    manager.check();
  }
}

}  // namespace
}  // namespace packstone
