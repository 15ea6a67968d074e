// SPDX-License-Identifier: Apache-2.0
// Defragmentation for tables that the allocator does not own.
#include "slot_allocator.hpp"

#include <packstone/move_plan.hpp>

#include <algorithm>

namespace packstone::python {

std::vector<PageMove> SlotAllocator::defrag(std::span<const IntView> tables,
                                            std::span<const IntView> values, PageCount moves_max,
                                            Epoch epoch) {
  const FreeSet& set = allocator_.set();
  PoolSnapshot snapshot{
      .page_size = page_size_, .states = {}, .references = {}, .pinned = {}, .tables = {}};
  std::vector<char> known(static_cast<std::size_t>(set.pages()), 0);
  const auto page_at = [&](const IntView& view, std::int64_t i) {
    const PageId page = page_of(view[i]);
    if (set.state(page) != PageState::live) {
      throw PageError(PageError::Kind::not_live, page, 0,
                      "defrag: slot " + std::to_string(view[i]) + " is not live");
    }
    known[static_cast<std::size_t>(index_of(page))] = 1;
    return page;
  };
  snapshot.references.assign(static_cast<std::size_t>(set.pages()), 0);
  for (const IntView& table : tables) {
    PoolSnapshot::Table& made = snapshot.tables.emplace_back();
    made.seq = {.index = static_cast<std::uint32_t>(snapshot.tables.size() - 1), .generation = 1};
    made.length = table.count;
    for (std::int64_t i = 0; i < table.count; i += page_size_) {
      made.pages.push_back(page_at(table, i));
      snapshot.references[static_cast<std::size_t>(index_of(made.pages.back()))] += 1;
    }
  }
  for (const IntView& view : values) {
    for (std::int64_t i = 0; i < view.count; ++i) (void)page_at(view, i);
  }
  // A page that no array names cannot be renamed, so it stays where it is.
  std::vector<PageId> held;
  for (std::int32_t i = 0; i < set.pages(); ++i) {
    const PageId page{i};
    snapshot.states.push_back(set.state(page));
    if (i == 0 || snapshot.states.back() != PageState::live) continue;
    if (known[static_cast<std::size_t>(i)] == 0) held.push_back(page);
    std::int32_t& references = snapshot.references[static_cast<std::size_t>(i)];
    references = std::max(references, 1);
  }
  PlanOptions options;
  options.moves_max = moves_max;
  options.held = held;
  const MovePlan plan = plan_moves(snapshot, options);
  allocator_.require_movable(std::ssize(plan.moves), epoch);
  for (const PageMove& move : plan.moves) {
    allocator_.move(move, epoch);
    // What was set aside for the next sort and has been taken is no longer there.
    std::erase(released_, move.to);
  }
  return plan.moves;
}

PageCount SlotAllocator::reclaim(Epoch reached) {
  const PageCount freed = allocator_.reclaim(reached);
  if (sorts() && freed > 0) {
    // Which pages came back only the set knows: those set aside are merged along, as by a sort.
    merge_and_sort();
  }
  return freed;
}

}  // namespace packstone::python
