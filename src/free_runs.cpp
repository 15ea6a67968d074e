// SPDX-License-Identifier: Apache-2.0
#include "move_plan_view.hpp"

#include <algorithm>
#include <bit>

namespace packstone::detail {

FreeRuns::FreeRuns(const PlanView& view) : view_(view) {
  // A plan takes or spoils no more short runs of one length than a few times its moves.
  const auto cap = static_cast<std::size_t>(4 * view_.left());
  const auto list_run = [&](std::int32_t first, std::int32_t length) {
    if (length >= kShort) {
      long_.emplace(length, first);
    } else if (std::vector<std::int32_t>& list = short_[static_cast<std::size_t>(length)];
               list.size() < cap) {
      list.push_back(first);
    }
  };
  // 64 pages at a time, from edge to edge: a scattered pool has a run every few pages.
  std::int32_t begun = -1;
  for (std::int32_t base = 0; base < view_.pages(); base += 64) {
    std::uint64_t free = 0;
    const std::int32_t count = std::min(view_.pages() - base, 64);
    for (std::int32_t i = 0; i < count; ++i) {
      free |= std::uint64_t{view_.place(base + i) == Place::free} << i;
    }
    std::uint64_t edges = free ^ (free << 1U) ^ (begun >= 0 ? 1U : 0U);
    for (; edges != 0; edges &= edges - 1) {
      const std::int32_t page = base + std::countr_zero(edges);
      if (begun >= 0) list_run(begun, page - begun);
      begun = begun >= 0 ? -1 : page;
    }
  }
  if (begun >= 0) list_run(begun, view_.pages() - begun);
  for (std::vector<std::int32_t>& list : short_) std::ranges::reverse(list);
}

void FreeRuns::put(PageRun run) {
  if (run.count >= kShort) {
    long_.emplace(run.count, index_of(run.first));
  } else if (run.count > 0) {
    short_[static_cast<std::size_t>(run.count)].push_back(index_of(run.first));
  }
}

PageRun FreeRuns::pop(std::int32_t count) {
  for (std::int32_t length = count; length < kShort; ++length) {
    std::vector<std::int32_t>& list = short_[static_cast<std::size_t>(length)];
    if (list.empty()) continue;
    const PageRun run{.first = PageId{list.back()}, .count = length};
    list.pop_back();
    return run;
  }
  const auto fit = long_.lower_bound({count, 0});
  if (fit == long_.end()) return {};
  const PageRun run{.first = PageId{fit->second}, .count = fit->first};
  long_.erase(fit);
  return run;
}

bool FreeRuns::settle(PageRun run) {
  std::int32_t first = index_of(run.first);
  const std::int32_t end = first + run.count;
  std::int32_t page = first;
  while (page < end && view_.place(page) == Place::free) ++page;
  if (page == end) return true;
  while (first < end) {
    put({.first = PageId{first}, .count = page - first});
    first = page + 1;
    page = first;
    while (page < end && view_.place(page) == Place::free) ++page;
  }
  return false;
}

std::int32_t FreeRuns::take(std::int32_t count) {
  while (true) {
    const PageRun run = pop(count);
    if (run.count == 0) return -1;
    if (!settle(run)) continue;
    put({.first = page_after(run.first, count), .count = run.count - count});
    return index_of(run.first);
  }
}

std::int32_t FreeRuns::longest() {
  while (!long_.empty()) {
    const PageRun run{.first = PageId{std::prev(long_.end())->second},
                      .count = std::prev(long_.end())->first};
    long_.erase(std::prev(long_.end()));
    if (!settle(run)) continue;
    put(run);
    return run.count;
  }
  for (std::int32_t length = kShort - 1; length > 0; --length) {
    std::vector<std::int32_t>& list = short_[static_cast<std::size_t>(length)];
    while (!list.empty()) {
      const PageRun run{.first = PageId{list.back()}, .count = length};
      list.pop_back();
      if (!settle(run)) continue;
      put(run);
      return length;
    }
  }
  return 0;
}

}  // namespace packstone::detail
