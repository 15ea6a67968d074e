// SPDX-License-Identifier: Apache-2.0
// The third step of straightening: a window is evacuated, so that a later plan finds a long free
// run.
#include "plan_straighten.hpp"

#include <algorithm>

namespace packstone::detail {

// The longest window up to `wanted` pages whose evacuation costs at most `cost_max`, the cheapest
// of those, the lowest of those. A live page costs its move, and one more for each run that it
// would be torn from.
Straightener::Window Straightener::cheapest_window(std::int32_t wanted,
                                                   std::int64_t cost_max) const {
  // By blocks where the window is many times as long; a wall costs more than any window may.
  const int shift = wanted >= 1024 ? 4 : 0;
  const std::int32_t block = 1 << shift;
  const std::int64_t wall = cost_max + 1;
  const std::int32_t blocks = (view_.pages() + block - 1) / block;
  std::vector<std::int64_t> costs(static_cast<std::size_t>(blocks), 0);
  for (std::int32_t page = 0; page < view_.pages(); ++page) {
    const bool movable = view_.movable(page);
    costs[static_cast<std::size_t>(page >> shift)] += static_cast<int>(movable) +
                                                      static_cast<int>(movable && linked(page)) +
                                                      (view_.place(page) == Place::wall ? wall : 0);
  }
  Window best;
  std::int32_t left = 0;
  std::int64_t cost = 0;
  for (std::int32_t b = 0; b < blocks; ++b) {
    cost += costs[static_cast<std::size_t>(b)];
    while (left <= b && (cost > cost_max || (b - left + 1) * block > wanted)) {
      cost -= costs[static_cast<std::size_t>(left++)];
    }
    const std::int32_t pages = std::min((b + 1) * block, view_.pages()) - left * block;
    if (pages > best.pages || (pages == best.pages && cost < best.cost)) {
      best = {.first = left * block, .pages = pages, .cost = cost};
    }
  }
  return best;
}

std::vector<Straightener::Named> Straightener::names_in(const Window& window) const {
  std::vector<Named> names(static_cast<std::size_t>(window.pages));
  const auto& tables = view_.snapshot().tables;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    for (std::size_t i = 0; i < tables[t].pages.size(); ++i) {
      const auto at = static_cast<std::uint32_t>(index_of(tables[t].pages[i]) - window.first);
      if (at >= names.size() || names[at].table >= 0) continue;
      names[at] = {.table = static_cast<std::int32_t>(t), .index = static_cast<std::int32_t>(i)};
    }
  }
  return names;
}

std::int32_t Straightener::joining_place(const Named& named) const {
  if (named.table < 0) return -1;
  const auto& pages = view_.snapshot().tables[static_cast<std::size_t>(named.table)].pages;
  const auto index = static_cast<std::size_t>(named.index);
  if (index > 0) {
    const std::int32_t behind = index_of(pages[index - 1]) + 1;
    if (behind < view_.pages() && view_.place(behind) == Place::free) return behind;
  }
  if (index + 1 < pages.size()) {
    const std::int32_t before = index_of(pages[index + 1]) - 1;
    if (before > 0 && view_.place(before) == Place::free) return before;
  }
  return -1;
}

void Straightener::keep_runs_whole(Window& window) const {
  std::int32_t first = window.first;
  std::int32_t end = window.first + window.pages;
  while (first < end && first > 0 && linked(first - 1)) ++first;
  while (first < end && linked(end - 1)) --end;
  window.first = first;
  window.pages = end - first;
}

bool Straightener::useful(const std::vector<Stretch>& unplaced, std::int32_t pages) const {
  return std::ranges::any_of(unplaced, [&](const Stretch& stretch) {
    return worth_placing(best_part(stretch, pages), stretch);
  });
}

std::vector<Straightener::Exit> Straightener::exits_of(Window& window, FreeRuns& free) {
  const std::vector<Named> names = names_in(window);
  const std::int32_t end = window.first + window.pages;
  std::vector<std::int32_t> own_free;
  for (std::int32_t page = window.first; page < end; ++page) {
    if (view_.place(page) != Place::free) continue;
    view_.wall_off(page);
    own_free.push_back(page);
  }
  std::vector<Exit> exits;
  std::int32_t page = window.first;
  while (page < end) {
    if (!view_.movable(page)) {
      ++page;
      continue;
    }
    std::int32_t pages = 1;
    while (linked(page + pages - 1)) ++pages;  // the window ends with a run
    const Named& named = names[static_cast<std::size_t>(page - window.first)];
    std::int32_t to = pages == 1 ? joining_place(named) : -1;
    if (to < 0) to = free.take(pages);
    if (to < 0) break;
    for (std::int32_t i = 0; i < pages; ++i) view_.wall_off(to + i);
    exits.push_back({.from = page, .to = to, .pages = pages});
    page += pages;
  }
  for (const Exit& exit : exits) {
    for (std::int32_t i = 0; i < exit.pages; ++i) view_.free_again(exit.to + i);
  }
  for (const std::int32_t each : own_free) view_.free_again(each);
  if (page < end) view_.wall_off(page);  // no window over this run again
  window.pages = page - window.first;
  return exits;
}

// Evacuation tears no run and ends with a window that a later plan fills, so that plans on a quiet
// pool end: each makes fewer runs, or leads to one that does.
void Straightener::make_room(const std::vector<Stretch>& unplaced, FreeRuns& free) {
  // What the window may be of use for: the stretches in order of merit, up to two plans' worth.
  const std::int64_t most = 2 * budget_;
  std::int64_t wanted = 0;
  for (const Stretch& stretch : unplaced) {
    wanted += stretch.pages;
    if (wanted >= most) break;
  }
  wanted = std::min<std::int64_t>({wanted, most, view_.pages()});
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Window window = cheapest_window(static_cast<std::int32_t>(wanted), view_.left());
    keep_runs_whole(window);
    if (!useful(unplaced, window.pages)) return;
    const std::vector<Exit> exits = exits_of(window, free);
    if (!useful(unplaced, window.pages)) continue;
    std::int64_t gain = 0;
    std::int64_t room = window.pages;
    for (const Stretch& stretch : unplaced) {
      const std::int64_t pages = std::min<std::int64_t>(stretch.pages, room);
      gain += (stretch.runs - 1) * pages / stretch.pages;
      room -= pages;
    }
    std::int64_t moves = 0;
    for (const Exit& exit : exits) moves += exit.pages;
    // With nothing to move, what is free here is on its way.
    if (moves > 0 && !pays(gain, moves + window.pages - room)) return refused(1);
    for (const Exit& exit : exits) {
      for (std::int32_t i = 0; i < exit.pages; ++i) view_.move(exit.from + i, exit.to + i);
    }
    return;
  }
}

}  // namespace packstone::detail
