// SPDX-License-Identifier: Apache-2.0
#include "move_plan_view.hpp"

#include <packstone/move_plan.hpp>

#include <algorithm>
#include <string>

namespace packstone {

const char* to_string(PlanObjective objective) {
  switch (objective) {
    case PlanObjective::frontier:
      return "frontier";
    case PlanObjective::straighten:
      return "straighten";
    case PlanObjective::granules:
      return "granules";
  }
  return "unknown objective";
}

const char* to_string(PlanReason reason) {
  switch (reason) {
    case PlanReason::planned:
      return "planned";
    case PlanReason::packed:
      return "packed";
    case PlanReason::below_threshold:
      return "below threshold";
    case PlanReason::no_budget:
      return "no budget";
    case PlanReason::no_free_pages:
      return "no free pages";
    case PlanReason::does_not_pay:
      return "does not pay";
    case PlanReason::no_room:
      return "no room";
    case PlanReason::blocked:
      return "blocked";
  }
  return "unknown reason";
}

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

void require(bool holds, const char* name, std::int64_t value) {
  if (!holds) throw InvalidArgument(std::string(name) + " = " + std::to_string(value));
}

void require_sound(const PoolSnapshot& snapshot, const PlanOptions& options) {
  require(options.moves_max >= 0, "moves_max", options.moves_max);
  require(options.bytes_max >= 0, "bytes_max", options.bytes_max);
  require(options.bytes_per_page >= 0, "bytes_per_page", options.bytes_per_page);
  require(options.keep_free >= 0, "keep_free", options.keep_free);
  require(options.run_target >= 2, "run_target", options.run_target);
  require(options.granule_bytes >= 1, "granule_bytes", options.granule_bytes);
  if (options.objective == PlanObjective::granules) {
    const auto pages = std::max<std::int64_t>(static_cast<std::int64_t>(snapshot.states.size()), 1);
    require(options.granule_page_bytes >= 1 && options.granule_page_bytes <= kNever / pages,
            "granule_page_bytes", options.granule_page_bytes);
    require(options.granule_bytes <= kNever / 2, "granule_bytes", options.granule_bytes);
  }
  require(options.costs.page_copy_ps >= 0, "page_copy_ps", options.costs.page_copy_ps);
  require(options.costs.break_read_ps >= 0, "break_read_ps", options.costs.break_read_ps);
  require(options.costs.steps_left >= 0, "steps_left", options.costs.steps_left);
  for (const ReadWeight& each : options.weights) require(each.weight >= 0, "weight", each.weight);
  const auto pages = static_cast<std::int64_t>(snapshot.states.size());
  require(pages <= kPagesMax, "pages of the snapshot", pages);
  require(snapshot.references.size() == snapshot.states.size(), "references of the snapshot",
          static_cast<std::int64_t>(snapshot.references.size()));
  // Only live pages have references; the view relies on it.
  bool sound = true;
  for (std::size_t i = 0; i < snapshot.states.size(); ++i) {
    const bool live = snapshot.states[i] == PageState::live;
    sound = sound && (live || snapshot.references[i] <= 0);
  }
  if (!sound) throw InvariantError("a page that is not live has references");
  for (const auto& list : {std::span(snapshot.pinned), options.held}) {
    for (const PageId page : list) {
      require(index_of(page) >= 0 && index_of(page) < pages, "pinned or held page", index_of(page));
    }
  }
}

[[noreturn]] void report_dead(const PoolSnapshot& snapshot, const PoolSnapshot::Table& table,
                              PageId page) {
  const std::string what = "table of sequence " + std::to_string(table.seq.index) + " names page " +
                           std::to_string(index_of(page));
  if (index_of(page) < 0 || index_of(page) >= static_cast<std::int64_t>(snapshot.states.size())) {
    throw InvalidArgument(what + ", outside the pool");
  }
  throw InvariantError(what + ", which is " +
                       to_string(snapshot.states[static_cast<std::size_t>(index_of(page))]));
}

std::int64_t runs_of(std::span<const PageId> pages) {
  std::int64_t runs = pages.empty() ? 0 : 1;
  for (std::size_t i = 1; i < pages.size(); ++i) {
    runs += index_of(pages[i]) != index_of(pages[i - 1]) + 1 ? 1 : 0;
  }
  return runs;
}

std::int64_t saturated_product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (!__builtin_mul_overflow(a, b, &result)) return result;
  return (a < 0) == (b < 0) ? kNever : std::numeric_limits<std::int64_t>::min();
}

// Finds every table entry that a move rewrites, and counts runs before and after, in one pass over
// the tables. Throws when a table names a page that is not live.
void patch_tables(const PoolSnapshot& snapshot, MovePlan& plan) {
  // One byte a page, because tables of a churned pool look pages up all over it.
  const std::size_t pages = snapshot.states.size();
  constexpr std::uint8_t kLive = 1;
  constexpr std::uint8_t kMoved = 2;
  std::vector<std::uint8_t> marks(pages);
  for (std::size_t i = 0; i < pages; ++i) {
    marks[i] = static_cast<std::uint8_t>(snapshot.states[i] == PageState::live);
  }
  for (const PageMove& move : plan.moves)
    marks[static_cast<std::size_t>(index_of(move.from))] |= kMoved;
  std::vector<std::int32_t> patched(plan.moves.size(), 0);
  std::vector<PageId> after;
  for (const PoolSnapshot::Table& table : snapshot.tables) {
    const std::size_t before = plan.patches.size();
    std::int32_t previous = -2;
    std::int64_t runs = 0;
    for (std::size_t i = 0; i < table.pages.size(); ++i) {
      const PageId page = table.pages[i];
      const auto at = static_cast<std::size_t>(index_of(page));
      const std::uint8_t mark = at < pages ? marks[at] : std::uint8_t{0};
      if ((mark & kLive) == 0) report_dead(snapshot, table, page);
      runs += index_of(page) != previous + 1 ? 1 : 0;
      previous = index_of(page);
      if (mark == kLive) continue;
      const auto move = std::ranges::lower_bound(plan.moves, page, {}, &PageMove::from);
      patched[static_cast<std::size_t>(move - plan.moves.begin())] += 1;
      plan.patches.push_back(
          {.seq = table.seq, .index = static_cast<std::int64_t>(i), .move = *move});
    }
    plan.forecast.runs_before += runs;
    if (plan.patches.size() > before) {
      after.assign(table.pages.begin(), table.pages.end());
      for (std::size_t i = before; i < plan.patches.size(); ++i) {
        after[static_cast<std::size_t>(plan.patches[i].index)] = plan.patches[i].move.to;
      }
      runs = runs_of(after);
    }
    plan.forecast.runs_after += runs;
  }
  for (std::size_t i = 0; i < plan.moves.size(); ++i) {
    const PageId page = plan.moves[i].from;
    const std::int32_t references = snapshot.references[static_cast<std::size_t>(index_of(page))];
    if (patched[i] <= references) continue;
    throw InvariantError("page " + std::to_string(index_of(page)) + " has " +
                         std::to_string(references) + " references, " + std::to_string(patched[i]) +
                         " tables name it");
  }
}

void forecast(const detail::PlanView& view, MovePlan& plan) {
  const PlanOptions& options = view.options();
  PlanForecast& result = plan.forecast;
  const auto moves = static_cast<std::int64_t>(plan.moves.size());
  result.frontier_before = view.frontier();
  std::int32_t highest = view.frontier();
  std::size_t next = plan.moves.size();
  // Sources ascend: from the top, pages that move away leave the frontier.
  for (; highest > 0; --highest) {
    if (view.snapshot().states[static_cast<std::size_t>(highest)] != PageState::live) continue;
    while (next > 0 && index_of(plan.moves[next - 1].from) > highest) --next;
    if (next == 0 || index_of(plan.moves[next - 1].from) != highest) break;
  }
  for (const PageMove& move : plan.moves) highest = std::max(highest, index_of(move.to));
  result.frontier_after = highest;
  result.bytes = saturated_product(moves, options.bytes_per_page);
  result.cost_ps = saturated_product(moves, options.costs.page_copy_ps);
  result.gain_ps =
      saturated_product(result.runs_before - result.runs_after, options.costs.break_read_ps);
  if (result.gain_ps > 0) {
    result.break_even_steps =
        result.cost_ps / result.gain_ps + (result.cost_ps % result.gain_ps != 0 ? 1 : 0);
  }
}

}  // namespace

namespace detail {

PlanView::PlanView(const PoolSnapshot& snapshot, const PlanOptions& options)
    : snapshot_(snapshot), options_(options), places_(snapshot.states.size(), Place::wall) {
  // In the order of PageState; no branch, because states of neighbours tell nothing of each other.
  constexpr Place kPlaces[] = {Place::free, Place::wall, Place::live, Place::coming};
  constexpr auto kToShared = static_cast<int>(Place::shared) - static_cast<int>(Place::live);
  PageCount counts[4] = {0, 0, 0, 0};
  for (std::size_t i = 1; i < places_.size(); ++i) {
    const auto state = static_cast<std::size_t>(snapshot.states[i]) & 3U;
    counts[state] += 1;
    places_[i] = static_cast<Place>(static_cast<int>(kPlaces[state]) +
                                    kToShared * static_cast<int>(snapshot.references[i] > 1));
  }
  frontier_ = std::max(pages() - 1, 0);
  while (frontier_ > 0 && snapshot.states[static_cast<std::size_t>(frontier_)] != PageState::live) {
    --frontier_;
  }
  live_ = counts[static_cast<std::size_t>(PageState::live)];
  const auto free = counts[static_cast<std::size_t>(PageState::free)];
  for (const PageId page : snapshot.pinned) wall_off(index_of(page));
  for (const PageId page : options.held) wall_off(index_of(page));
  PageCount allowed = options.moves_max;
  if (options.bytes_per_page > 0) {
    allowed = std::min(allowed, options.bytes_max / options.bytes_per_page);
  }
  left_ = std::min(allowed, std::max<PageCount>(free - options.keep_free, 0));
  if (left_ == 0) limit_ = allowed == 0 ? PlanReason::no_budget : PlanReason::no_free_pages;
}

void PlanView::move(std::int32_t from, std::int32_t to) {
  PACKSTONE_ASSERT(left_ > 0 && movable(from) && place(to) == Place::free);
  moves_.push_back({.from = PageId{from}, .to = PageId{to}});
  wall_off(from);
  wall_off(to);
  left_ -= 1;
}

}  // namespace detail

MovePlan plan_moves(const PoolSnapshot& snapshot, const PlanOptions& options) {
  require_sound(snapshot, options);
  detail::PlanView view(snapshot, options);
  detail::PlanGate gate(options.hysteresis);
  detail::Outlook outlook;
  MovePlan plan;
  switch (options.objective) {
    case PlanObjective::frontier:
      plan.reason = detail::plan_frontier(view, gate, outlook);
      break;
    case PlanObjective::straighten:
      plan.reason = detail::plan_straighten(view, gate, outlook);
      break;
    case PlanObjective::granules:
      plan.reason = detail::plan_granules(view, gate, outlook, plan.forecast.granules_emptied);
      break;
  }
  plan.moves = std::move(view.moves());
  plan.lower_bound = outlook.lower_bound;
  plan.fragmentation_permille = outlook.fragmentation_permille;
  plan.running = gate.is_open();
  std::ranges::sort(plan.moves, {}, &PageMove::from);
  patch_tables(snapshot, plan);
  forecast(view, plan);
  return plan;
}

}  // namespace packstone
