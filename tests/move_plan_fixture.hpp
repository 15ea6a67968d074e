// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What every plan must keep to, whatever the objective, and a manager to apply it to.

#include <packstone/move_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace packstone::test {

/// Destinations free and distinct, sources live, distinct and unpinned, no page both, one patch for
/// each table entry that names a source, budget kept, forecast true.
inline void expect_sound(const PoolSnapshot& snapshot, const PlanOptions& options,
                         const MovePlan& plan) {
  const auto state = [&](PageId page) {
    return snapshot.states.at(static_cast<std::size_t>(index_of(page)));
  };
  std::set<PageId> used;
  std::map<PageId, PageId> target;
  for (const PageMove& move : plan.moves) {
    ASSERT_EQ(state(move.from), PageState::live);
    ASSERT_EQ(state(move.to), PageState::free);
    ASSERT_GT(index_of(move.from), 0);
    ASSERT_GT(index_of(move.to), 0);
    ASSERT_TRUE(used.insert(move.from).second);
    ASSERT_TRUE(used.insert(move.to).second);
    ASSERT_FALSE(std::ranges::binary_search(snapshot.pinned, move.from));
    ASSERT_TRUE(std::ranges::find(options.held, move.from) == options.held.end());
    ASSERT_TRUE(std::ranges::find(options.held, move.to) == options.held.end());
    target[move.from] = move.to;
  }
  ASSERT_LE(static_cast<PageCount>(plan.moves.size()), options.moves_max);
  ASSERT_EQ(plan.reason == PlanReason::planned, !plan.moves.empty());
  std::set<std::pair<std::uint32_t, std::int64_t>> patched;
  for (const TablePatch& patch : plan.patches) {
    ASSERT_TRUE(patched.insert({patch.seq.index, patch.index}).second);
    ASSERT_EQ(target.at(patch.move.from), patch.move.to);
  }
  std::int64_t before = 0;
  std::int64_t after = 0;
  for (const auto& table : snapshot.tables) {
    for (std::size_t i = 0; i < table.pages.size(); ++i) {
      const auto moved = [&](std::size_t j) {
        const auto found = target.find(table.pages[j]);
        return index_of(found == target.end() ? table.pages[j] : found->second);
      };
      ASSERT_EQ(target.contains(table.pages[i]),
                patched.contains({table.seq.index, static_cast<std::int64_t>(i)}));
      before += i == 0 || index_of(table.pages[i]) != index_of(table.pages[i - 1]) + 1 ? 1 : 0;
      after += i == 0 || moved(i) != moved(i - 1) + 1 ? 1 : 0;
    }
  }
  ASSERT_EQ(plan.forecast.runs_before, before);
  ASSERT_EQ(plan.forecast.runs_after, after);
  std::int32_t highest = 0;
  for (std::size_t i = 1; i < snapshot.states.size(); ++i) {
    const PageId page{static_cast<std::int32_t>(i)};
    if (snapshot.states[i] == PageState::live && !target.contains(page)) highest = index_of(page);
  }
  for (const PageMove& move : plan.moves) highest = std::max(highest, index_of(move.to));
  ASSERT_EQ(plan.forecast.frontier_after, highest);
}

}  // namespace packstone::test
