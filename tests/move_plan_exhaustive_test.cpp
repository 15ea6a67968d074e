// SPDX-License-Identifier: Apache-2.0
// Every small pool, every budget, every objective: the plan is sound, a manager applies it, and
// repeated plans end.
#include "tests/move_plan_fixture.hpp"

#include <algorithm>
#include <functional>

namespace packstone {
namespace {

using test::expect_sound;

struct SmallPool {
  std::int32_t pages{0};  // with page 0
  std::vector<std::vector<PageId>> tables;
  bool pin_first{false};  // the first page of the first table
};

KvManager manager_of(const SmallPool& pool) {
  return KvManager({.pages = pool.pages, .page_size = 4, .policy = "lowest"});
}

void fill(KvManager& manager, const SmallPool& pool) {
  KvManager::Checkpoint state;
  std::map<PageId, std::int32_t> references;
  std::uint32_t generation = 0;
  for (const auto& table : pool.tables) {
    state.sequences.push_back({.alive = true,
                               .generation = ++generation,
                               .owner = generation,
                               .length = static_cast<TokenCount>(table.size()) * 4,
                               .expected = -1,
                               .pages = table});
    for (const PageId page : table) references[page] += 1;
  }
  for (const auto& [page, count] : references) {
    state.living.push_back({.page = page, .references = count, .owner = 1});
  }
  manager.restore(state);
  if (pool.pin_first) manager.pin({0, 1}, 0, 1);
}

// The lowest mark that some set of moves can reach, and the fewest moves that reach it.
std::pair<std::int32_t, PageCount> packed_by_search(const PoolSnapshot& snapshot) {
  const auto pages = static_cast<std::int32_t>(snapshot.states.size());
  for (std::int32_t mark = 0; mark < pages; ++mark) {
    PageCount free = 0;
    PageCount above = 0;
    for (std::int32_t i = 1; i < pages; ++i) {
      const PageState state = snapshot.states[static_cast<std::size_t>(i)];
      const bool pinned = std::ranges::binary_search(snapshot.pinned, PageId{i});
      if (i <= mark) free += state == PageState::free ? 1 : 0;
      if (i > mark) above += state == PageState::live && !pinned ? 1 : 0;
    }
    if (above <= free) return {mark, above};
  }
  return {pages, 0};
}

void exercise(const SmallPool& pool, const PlanOptions& options) {
  KvManager manager = manager_of(pool);
  fill(manager, pool);
  std::map<SeqId, std::size_t> sizes;
  for (const SeqId seq : manager.live_sequences()) sizes[seq] = manager.pages(seq).size();
  PageCount moved = 0;
  PageCount bound = 0;
  for (int pass = 0; pass < 40; ++pass) {
    const PoolSnapshot snapshot = manager.snapshot();
    const MovePlan plan = plan_moves(snapshot, options);
    ASSERT_NO_FATAL_FAILURE(expect_sound(snapshot, options, plan));
    if (pass == 0) bound = plan.lower_bound;
    if (options.objective == PlanObjective::frontier) {
      const auto [mark, moves] = packed_by_search(snapshot);
      ASSERT_EQ(plan.lower_bound, moves);
      ASSERT_EQ(static_cast<PageCount>(plan.moves.size()), std::min(moves, options.moves_max));
      if (moves <= options.moves_max && snapshot.pinned.empty()) {
        ASSERT_EQ(plan.forecast.frontier_after, mark);
      }
    }
    if (plan.moves.empty()) {
      if (options.objective == PlanObjective::frontier && options.moves_max > 0) {
        ASSERT_EQ(moved, bound);
      }
      return;
    }
    moved += static_cast<PageCount>(plan.moves.size());
    manager.apply(plan.moves, plan.patches, static_cast<Epoch>(pass));
    manager.check();
    manager.reclaim(static_cast<Epoch>(pass));
    manager.check();
    for (const auto& [seq, size] : sizes) ASSERT_EQ(manager.pages(seq).size(), size);
  }
  FAIL() << "40 plans and still moving";
}

void exercise_all(const SmallPool& pool) {
  for (const PlanObjective objective :
       {PlanObjective::frontier, PlanObjective::straighten, PlanObjective::granules}) {
    for (PageCount budget = 0; budget < pool.pages; ++budget) {
      const PlanOptions options{.objective = objective,
                                .moves_max = budget,
                                .granule_bytes = 200,
                                .granule_page_bytes = 100};
      ASSERT_NO_FATAL_FAILURE(exercise(pool, options))
          << to_string(objective) << " with budget " << budget;
    }
  }
}

TEST(MovePlanExhaustive, OneSequenceOfAnyPagesInAnyOrderInAPoolOfSix) {
  std::int64_t pools = 0;
  for (std::uint32_t set = 0; set < 64; ++set) {
    std::vector<PageId> table;
    for (std::int32_t i = 0; i < 6; ++i) {
      if ((set >> i & 1U) != 0) table.push_back(PageId{i + 1});
    }
    do {
      pools += 1;
      ASSERT_NO_FATAL_FAILURE(exercise_all({.pages = 7, .tables = {table}}));
    } while (std::ranges::next_permutation(table).found);
  }
  EXPECT_EQ(pools, 1957);
}

// Two sequences that may share pages, with a pin or without, in every order of each.
TEST(MovePlanExhaustive, TwoSequencesThatShareInAPoolOfFive) {
  for (std::uint32_t roles = 0; roles < 1024; ++roles) {
    std::vector<PageId> first;
    std::vector<PageId> second;
    for (std::int32_t i = 0; i < 5; ++i) {
      const std::uint32_t role = roles >> (2 * i) & 3U;
      if ((role & 1U) != 0) first.push_back(PageId{i + 1});
      if ((role & 2U) != 0) second.push_back(PageId{i + 1});
    }
    if (first.size() > 3 || second.size() > 3) continue;
    do {
      do {
        for (const bool pin : {false, true}) {
          if (pin && first.empty()) continue;
          ASSERT_NO_FATAL_FAILURE(
              exercise_all({.pages = 6, .tables = {first, second}, .pin_first = pin}));
        }
      } while (std::ranges::next_permutation(second).found);
    } while (std::ranges::next_permutation(first).found);
  }
}

}  // namespace
}  // namespace packstone
