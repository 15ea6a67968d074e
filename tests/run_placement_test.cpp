// SPDX-License-Identifier: Apache-2.0
// `run` under pressure: room on loan, holds, plans that move pages past both, and pins, all at
// once.
#include "tests/move_plan_fixture.hpp"

#include <packstone/kv_manager.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace packstone {
namespace {

class Pressure {
 public:
  Pressure(std::int64_t page_size, const std::string& policy, std::uint64_t seed)
      : manager_({.pages = kPages, .page_size = page_size, .policy = policy}), random_(seed) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      one_step();
      ASSERT_NO_THROW(manager_.check(held_pages_));
      const FreeSet& set = allocator().set();
      // Room is free memory on loan, what is held is not.
      ASSERT_EQ(manager_.available_pages(),
                set.count(PageState::free) + set.count(PageState::reserved) - allocator().held());
      ASSERT_EQ(set.count(PageState::free) + set.count(PageState::reserved) +
                    set.count(PageState::live) + set.count(PageState::retired),
                kPages - 1);
      if (HasFatalFailure()) return;
    }
    end();
  }

  [[nodiscard]] int plans_refused() const { return plans_refused_; }
  [[nodiscard]] int plans_made() const { return plans_made_; }
  [[nodiscard]] int shortages() const { return shortages_; }

 private:
  static constexpr PageCount kPages = 130;

  [[nodiscard]] static bool HasFatalFailure() { return testing::Test::HasFatalFailure(); }
  PageAllocator& allocator() { return manager_.allocator(); }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  SeqId any() { return live_[below(live_.size())]; }

  /// A shortage consumes nothing, and is none when there are pages.
  template <typename Call>
  bool grow(PageCount needed, const Call& call) {
    const PageCount before = manager_.available_pages();
    const Status status = call();
    EXPECT_EQ(status, needed <= before ? Status::ok : Status::out_of_pages);
    EXPECT_EQ(manager_.available_pages(), status == Status::ok ? before - needed : before);
    shortages_ += status == Status::ok ? 0 : 1;
    return status == Status::ok;
  }

  void one_step() {
    const std::uint64_t dice = below(20);
    if (live_.empty() || dice < 2) {
      SeqId seq;
      const auto expected = static_cast<TokenCount>(below(100));
      ASSERT_EQ(manager_.create({.expected_tokens = expected}, seq), Status::ok);
      live_.push_back(seq);
    } else if (dice < 8) {
      const SeqId seq = any();
      const auto tokens =
          static_cast<TokenCount>(below(static_cast<std::uint64_t>(8 * manager_.page_size())));
      grow(manager_.pages_needed(std::vector<Growth>{{seq, manager_.length(seq) + tokens}}),
           [&] { return manager_.append(seq, tokens); });
    } else if (dice < 12) {
      std::vector<Growth> growth;
      for (const SeqId seq : live_) growth.push_back({seq, manager_.length(seq) + 1});
      grow(manager_.pages_needed(growth), [&] { return manager_.decode(live_); });
    } else if (dice == 12) {
      finish(below(live_.size()));
    } else if (dice == 13) {
      const SeqId seq = any();
      manager_.truncate(seq, manager_.length(seq) / 2);
    } else if (dice == 14) {
      const auto pages = static_cast<PageCount>(below(40));
      const PageCount available = manager_.available_pages();
      ASSERT_EQ(allocator().hold(pages), pages <= available ? Status::ok : Status::out_of_pages);
    } else if (dice == 15) {
      allocator().forfeit(
          static_cast<PageCount>(below(static_cast<std::uint64_t>(allocator().held()) + 1)));
    } else if (dice == 16) {
      draw_on_hold();
    } else if (dice == 17) {
      pin_or_unpin();
    } else if (dice == 18) {
      manager_.reclaim(epoch_ - below(2));
    } else {
      plan();
    }
  }

  /// What is held can be had whatever else is short: from the room of others if need be.
  void draw_on_hold() {
    std::vector<PageId> pages(below(static_cast<std::uint64_t>(allocator().held()) + 1));
    const PageCount before = manager_.available_pages();
    ASSERT_EQ(allocator().allocate({.owner = 7, .from_hold = true}, pages), Status::ok);
    EXPECT_EQ(manager_.available_pages(), before);
    held_pages_.insert(held_pages_.end(), pages.begin(), pages.end());
    std::vector<PageId> more(static_cast<std::size_t>(allocator().held()) + 1);
    EXPECT_EQ(allocator().allocate({.owner = 7, .from_hold = true}, more), Status::out_of_pages);
    std::ranges::shuffle(held_pages_, random_);
    const auto kept = static_cast<std::ptrdiff_t>(below(held_pages_.size() + 1));
    allocator().release(std::vector<PageId>(held_pages_.begin() + kept, held_pages_.end()));
    held_pages_.resize(static_cast<std::size_t>(kept));
  }

  void pin_or_unpin() {
    if (!pinned_.empty() && below(2) == 0) {
      allocator().unpin(pinned_.back());
      pinned_.pop_back();
      return;
    }
    const SeqId seq = any();
    if (manager_.pages(seq).empty()) return;
    pinned_.push_back(manager_.pages(seq)[below(manager_.pages(seq).size())]);
    allocator().pin(pinned_.back());
  }

  void plan() {
    constexpr PlanObjective kObjectives[] = {PlanObjective::frontier, PlanObjective::straighten,
                                             PlanObjective::granules};
    const bool leave_held = below(4) != 0;
    const PlanOptions options{.objective = kObjectives[below(3)],
                              .moves_max = static_cast<PageCount>(below(130)),
                              .held = held_pages_,
                              .keep_free = leave_held ? allocator().held() : 0,
                              .granule_bytes = 800,
                              .granule_page_bytes = 100};
    const PoolSnapshot snapshot = manager_.snapshot();
    const MovePlan plan = plan_moves(snapshot, options);
    ASSERT_NO_FATAL_FAILURE(test::expect_sound(snapshot, options, plan));
    const auto moves = static_cast<PageCount>(plan.moves.size());
    if (moves > manager_.available_pages()) {
      // It would take what is held: refused as a whole.
      ASSERT_FALSE(leave_held);
      const std::uint64_t digest = manager_.digest();
      EXPECT_THROW(manager_.apply(plan.moves, plan.patches, epoch_ + 1), InvalidArgument);
      EXPECT_EQ(manager_.digest(), digest);
      EXPECT_EQ(allocator().set().count(PageState::retired),
                std::ranges::count(snapshot.states, PageState::retired));
      plans_refused_ += 1;
      return;
    }
    manager_.apply(plan.moves, plan.patches, ++epoch_);
    plans_made_ += moves > 0 ? 1 : 0;
  }

  void finish(std::size_t which) {
    manager_.finish(live_[which]);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void end() {
    while (!live_.empty()) finish(0);
    for (const PageId page : pinned_) allocator().unpin(page);
    allocator().release(held_pages_);
    manager_.reclaim(epoch_);
    allocator().forfeit(allocator().held());
    ASSERT_NO_THROW(manager_.check());
    EXPECT_EQ(allocator().set().count(PageState::free), kPages - 1);
    std::vector<PageId> all(kPages - 1);
    EXPECT_EQ(allocator().allocate({.owner = 1}, all), Status::ok);
  }

  KvManager manager_;
  std::mt19937_64 random_;
  std::vector<SeqId> live_;
  std::vector<PageId> held_pages_;  // drawn from the hold: the test's own
  std::vector<PageId> pinned_;
  Epoch epoch_{1};
  int plans_refused_{0};
  int plans_made_{0};
  int shortages_{0};
};

TEST(RunPlacement, HoldsRoomPlansAndPinsLeaveEveryCountRight) {
  for (const std::string_view policy : placement_names()) {
    for (const std::int64_t page_size : {1, 16}) {
      SCOPED_TRACE(policy);
      int refused = 0;
      for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
        Pressure pressure(page_size, std::string(policy), seed);
        ASSERT_NO_FATAL_FAILURE(pressure.run(1500));
        EXPECT_GT(pressure.plans_made(), 0);
        EXPECT_GT(pressure.shortages(), 0);
        refused += pressure.plans_refused();
      }
      EXPECT_GT(refused, 0);
    }
  }
}

}  // namespace
}  // namespace packstone
