// SPDX-License-Identifier: Apache-2.0
// What every policy has in common, and what `run` promises beyond.
#include <packstone/kv_manager.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace packstone {
namespace {

using testing::ElementsAre;

SeqId grown(KvManager& manager, TokenCount tokens, TokenCount expected = -1) {
  SeqId seq;
  EXPECT_EQ(manager.create({.expected_tokens = expected}, seq), Status::ok);
  EXPECT_EQ(manager.append(seq, tokens), Status::ok);
  return seq;
}

std::vector<std::int32_t> ids(std::span<const PageId> pages) {
  std::vector<std::int32_t> result;
  for (const PageId page : pages) result.push_back(index_of(page));
  return result;
}

std::int64_t runs(std::span<const PageId> pages) {
  std::int64_t result = pages.empty() ? 0 : 1;
  for (std::size_t i = 1; i < pages.size(); ++i) {
    result += pages[i] == page_after(pages[i - 1]) ? 0 : 1;
  }
  return result;
}

PageCount room(const KvManager& manager) {
  return manager.allocator().set().count(PageState::reserved);
}

TEST(Placement, NamesAreWhatTheFactoryKnows) {
  FreeSet set(4);
  for (const std::string_view name : placement_names()) {
    EXPECT_EQ(make_placement(set, {.policy = std::string(name)})->name(), name);
  }
  EXPECT_THROW((void)make_placement(set, {.policy = "best"}), InvalidArgument);
  EXPECT_THROW((void)make_placement(set, {.policy = ""}), InvalidArgument);
  EXPECT_THROW((void)make_placement(set, {.page_size = 0}), InvalidArgument);
  EXPECT_THROW(KvManager({.pages = 4, .sequences_max = 0}), InvalidArgument);
}

TEST(Placement, OrdersAreAsDocumented) {
  const auto order_after_freeing = [](const std::string& policy, std::int64_t page_size) {
    PageAllocator allocator({.pages = 7, .placement = {.policy = policy, .page_size = page_size}});
    std::vector<PageId> pages(5);
    EXPECT_EQ(allocator.allocate({.owner = 1}, pages), Status::ok);
    allocator.release(std::vector{PageId{4}, PageId{2}});
    allocator.release(std::vector{PageId{1}});
    std::vector<PageId> again(4);
    EXPECT_EQ(allocator.allocate({.owner = 2}, again), Status::ok);
    return ids(again);
  };
  EXPECT_THAT(order_after_freeing("fifo", 1), ElementsAre(6, 4, 2, 1));
  EXPECT_THAT(order_after_freeing("fifo", 16), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(order_after_freeing("lifo", 1), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(order_after_freeing("sorted", 1), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(order_after_freeing("lowest", 1), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(order_after_freeing("run", 1), testing::UnorderedElementsAre(1, 2, 4, 6));
}

TEST(Placement, AMoveTakesItsPageOutOfTheMiddleOfTheFreeOrder) {
  struct Case {
    std::string policy;
    std::int64_t page_size;
  };
  for (const Case& each : {Case{"fifo", 1}, Case{"fifo", 16}, Case{"lifo", 1}, Case{"lowest", 1}}) {
    SCOPED_TRACE(each.policy);
    FreeSet set(41);
    const auto placement =
        make_placement(set, {.policy = each.policy, .page_size = each.page_size});
    std::deque<PageId> list;
    std::vector<PageId> live;
    for (std::int32_t i = 1; i <= 40; ++i) list.push_back(PageId{i});
    std::mt19937_64 random(6);
    for (int step = 0; step < 50'000; ++step) {
      const std::uint64_t dice = random() % 3;
      if (dice == 0 && !list.empty()) {
        std::vector<PageId> out(random() % std::min<std::size_t>(list.size() + 1, 6));
        placement->take({}, out);
        set.acquire(out, 1);
        for (const PageId page : out) {
          ASSERT_EQ(page, list.front()) << "step " << step;
          list.pop_front();
        }
        live.insert(live.end(), out.begin(), out.end());
      } else if (dice == 1 && !list.empty()) {
        const auto at = list.begin() + static_cast<std::ptrdiff_t>(random() % list.size());
        placement->take_exact(*at);
        set.acquire(*at, 1);
        live.push_back(*at);
        // The last page of the list fills the gap: constant time for one page out of order.
        if (each.policy == "lowest") {
          list.erase(at);
        } else {
          *at = list.back();
          list.pop_back();
        }
      } else if (!live.empty()) {
        std::shuffle(live.begin(), live.end(), random);
        std::vector<PageId> given(
            live.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(live.size(), dice + 1)),
            live.end());
        live.resize(live.size() - given.size());
        std::vector<PageId> freed;
        set.release(given, freed);
        placement->give(freed);
        if (each.page_size > 1) std::ranges::sort(given, std::greater{});
        for (const PageId page : given) {
          each.policy == "fifo" && each.page_size == 1 ? list.push_back(page)
                                                       : list.push_front(page);
        }
        if (each.policy == "lowest") std::ranges::sort(list);
      }
      if (step % 16 == 0) placement->check();
    }
  }
}

/// A serving loop that depends on lengths and shortages, never on page ids.
std::vector<std::int64_t> availability(const std::string& policy, std::int64_t page_size,
                                       std::uint64_t seed) {
  KvManager manager({.pages = 200, .page_size = page_size, .policy = policy});
  std::mt19937_64 random(seed);
  std::vector<SeqId> live;
  std::vector<std::int64_t> seen;
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t dice = random() % 10;
    const std::uint64_t number = random();
    Status status = Status::ok;
    if (live.empty() || dice == 0) {
      live.emplace_back();
      status =
          manager.create({.expected_tokens = static_cast<TokenCount>(number % 300)}, live.back());
    } else if (dice == 1) {
      const auto at = live.begin() + static_cast<std::ptrdiff_t>(number % live.size());
      manager.finish(*at);
      live.erase(at);
    } else if (dice == 2) {
      const SeqId parent = live[number % live.size()];
      live.emplace_back();
      status = manager.fork(parent, manager.length(parent) / 2, live.back());
    } else if (dice == 3) {
      const SeqId seq = live[number % live.size()];
      manager.truncate(seq, manager.length(seq) / 3);
    } else if (dice == 4) {
      const SeqId seq = live[number % live.size()];
      status = manager.append(
          seq, static_cast<TokenCount>(number % static_cast<std::uint64_t>(30 * page_size)));
    } else {
      status = manager.decode(live);
    }
    seen.push_back(static_cast<std::int64_t>(status));
    seen.push_back(manager.available_pages());
  }
  manager.check();
  seen.push_back(static_cast<std::int64_t>(manager.digest()));
  return seen;
}

TEST(Placement, APolicyChangesWhichPagesButNeverHowMany) {
  for (const std::int64_t page_size : {1, 16}) {
    const std::vector<std::int64_t> expected = availability("fifo", page_size, 1);
    EXPECT_GT(std::ranges::count(expected, static_cast<std::int64_t>(Status::out_of_pages)), 10);
    for (const std::string_view policy : placement_names()) {
      EXPECT_EQ(availability(std::string(policy), page_size, 1), expected) << policy;
    }
    EXPECT_NE(availability("fifo", page_size, 2).back(), expected.back());
  }
}

TEST(Placement, EveryPageCanBeHad) {
  for (const std::string_view policy : placement_names()) {
    SCOPED_TRACE(policy);
    KvManager manager({.pages = 1001, .page_size = 1, .policy = std::string(policy)});
    std::vector<SeqId> batch;
    for (int i = 0; i < 10; ++i) batch.push_back(grown(manager, 1, 500));
    for (int step = 1; step < 100; ++step) ASSERT_EQ(manager.decode(batch), Status::ok);
    EXPECT_EQ(manager.available_pages(), 0);
    EXPECT_EQ(manager.decode(batch), Status::out_of_pages);
    manager.check();
    for (const SeqId seq : batch) manager.finish(seq);
    EXPECT_EQ(manager.available_pages(), 1000);
    manager.check();
  }
}

TEST(RunPlacement, RoomIsFreeMemoryOnLoan) {
  KvManager manager({.pages = 1001, .page_size = 1, .policy = "run"});
  const SeqId first = grown(manager, 10, 800);
  EXPECT_GE(room(manager), 790);
  EXPECT_EQ(manager.available_pages(), 990);
  const SeqId second = grown(manager, 900);
  EXPECT_EQ(manager.available_pages(), 90);
  manager.check();
  EXPECT_EQ(manager.append(first, 90), Status::ok);
  EXPECT_EQ(manager.available_pages(), 0);
  EXPECT_EQ(room(manager), 0);
  manager.check();
  manager.finish(second);
  manager.finish(first);
  EXPECT_EQ(manager.available_pages(), 1000);
}

TEST(RunPlacement, RoomComesBackWithItsSequence) {
  KvManager manager({.pages = 1001, .page_size = 1, .policy = "run"});
  for (int i = 0; i < 200; ++i) {
    const SeqId seq = grown(manager, 1 + i % 7, 100);
    EXPECT_GT(room(manager), 0);
    if (i % 3 == 0) manager.truncate(seq, 0);
    manager.finish(seq);
    EXPECT_EQ(room(manager), 0);
  }
  EXPECT_EQ(manager.allocator().set().count(PageState::free), 1000);
  const SeqId all = grown(manager, 1000);
  EXPECT_EQ(runs(manager.pages(all)), 1);
}

TEST(RunPlacement, SequencesOfABatchDoNotInterleave) {
  KvManager manager({.pages = 65'537, .page_size = 1, .policy = "run"});
  std::vector<SeqId> batch;
  for (int i = 0; i < 32; ++i) batch.push_back(grown(manager, 100 + i));
  for (int step = 0; step < 400; ++step) ASSERT_EQ(manager.decode(batch), Status::ok);
  for (const SeqId seq : batch) EXPECT_LE(runs(manager.pages(seq)), 2);
}

TEST(RunPlacement, ChurnAtHalfLoadKeepsLongRuns) {
  const auto mean_run = [](const std::string& policy) {
    KvManager manager({.pages = 32'769, .page_size = 1, .policy = policy});
    std::mt19937_64 random(9);
    std::deque<SeqId> live;
    std::int64_t pages = 0;
    std::int64_t pieces = 0;
    for (int step = 0; step < 30'000; ++step) {
      if (manager.available_pages() > 16'384) {
        live.push_back(grown(manager, static_cast<TokenCount>(50 + random() % 700)));
      }
      const auto at = live.begin() + static_cast<std::ptrdiff_t>(random() % live.size());
      if (random() % 40 == 0) {
        manager.finish(*at);
        live.erase(at);
        if (live.empty()) continue;
      }
      const std::vector<SeqId> batch(live.begin(), live.end());
      if (manager.decode(batch) != Status::ok) ADD_FAILURE() << "short of pages";
      if (step < 20'000 || step % 500 != 0) continue;
      for (const SeqId seq : live) {
        pages += std::ssize(manager.pages(seq));
        pieces += runs(manager.pages(seq));
      }
    }
    manager.check();
    return static_cast<double>(pages) / static_cast<double>(pieces);
  };
  EXPECT_GT(mean_run("run"), 100);
  EXPECT_LT(mean_run("fifo"), 3);
}

TEST(RunPlacement, AHoleIsFilledOnlyWhenNothingLongerIsLeft) {
  KvManager manager({.pages = 65, .page_size = 1, .policy = "run"});
  std::vector<SeqId> small;
  std::vector<PageId> pages(64);
  ASSERT_EQ(manager.allocator().allocate({.owner = 1}, pages), Status::ok);
  // Free: one page at 2, one at 4, sixteen from 33.
  manager.allocator().release(std::vector{PageId{2}});
  manager.allocator().release(std::vector{PageId{4}});
  for (std::int32_t i = 33; i < 49; ++i) manager.allocator().release(std::vector{PageId{i}});
  const SeqId seq = grown(manager, 16);
  EXPECT_EQ(runs(manager.pages(seq)), 1);
  EXPECT_EQ(manager.append(seq, 2), Status::ok);
  EXPECT_THAT(ids(manager.pages(seq).last(2)), testing::UnorderedElementsAre(2, 4));
}

}  // namespace
}  // namespace packstone
