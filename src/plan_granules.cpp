// SPDX-License-Identifier: Apache-2.0
#include "move_plan_view.hpp"

#include <algorithm>

namespace packstone::detail {

namespace {

struct Granule {
  std::int32_t live{0};  // sources in it
  bool fixed{false};     // something in it can neither move nor go
  bool victim{false};    // it is to be emptied
  [[nodiscard]] bool stays() const { return (live > 0 || fixed) && !victim; }
};

// Granules are byte ranges of a buffer; a page belongs to each granule that it touches.
class Granules {
 public:
  explicit Granules(const PlanView& view)
      : view_(view),
        granule_(view.options().granule_bytes),
        page_(view.options().granule_page_bytes) {
    if (view.pages() == 0) return;
    all_.resize(static_cast<std::size_t>(last_of(view.pages() - 1)) + 1);
    for (std::int32_t page = 0; page < view.pages(); ++page) {
      for (std::int64_t g = first_of(page); g <= last_of(page); ++g) count(at(g), page);
    }
  }
  [[nodiscard]] std::vector<Granule>& all() { return all_; }
  [[nodiscard]] Granule& at(std::int64_t granule) {
    return all_[static_cast<std::size_t>(granule)];
  }
  [[nodiscard]] std::int64_t first_of(std::int32_t page) const { return page * page_ / granule_; }
  [[nodiscard]] std::int64_t last_of(std::int32_t page) const {
    return ((page + 1) * page_ - 1) / granule_;
  }
  // Free, and in no granule that is empty or is to be: filling it costs no granule.
  [[nodiscard]] bool is_destination(std::int32_t page) const {
    if (view_.place(page) != Place::free) return false;
    for (std::int64_t g = first_of(page); g <= last_of(page); ++g) {
      if (!all_[static_cast<std::size_t>(g)].stays()) return false;
    }
    return true;
  }
  [[nodiscard]] std::int32_t destinations_in(std::int64_t granule) const {
    std::int32_t count = 0;
    for (std::int32_t page = low(granule); page <= high(granule); ++page) {
      count += is_destination(page) ? 1 : 0;
    }
    return count;
  }
  // First and last page that touch the granule.
  [[nodiscard]] std::int32_t low(std::int64_t granule) const {
    return static_cast<std::int32_t>(granule * granule_ / page_);
  }
  [[nodiscard]] std::int32_t high(std::int64_t granule) const {
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(((granule + 1) * granule_ - 1) / page_, view_.pages() - 1));
  }

 private:
  void count(Granule& granule, std::int32_t page) const {
    switch (view_.place(page)) {
      case Place::live:
      case Place::shared:
        granule.live += 1;
        break;
      case Place::wall:
        granule.fixed = true;
        break;
      case Place::free:
      case Place::coming:
        break;
    }
  }
  const PlanView& view_;
  std::int64_t granule_;
  std::int64_t page_;
  std::vector<Granule> all_;
};

std::int32_t most_live(const std::vector<Granule>& granules) {
  std::int32_t most = 0;
  for (const Granule& each : granules) most = std::max(most, each.live);
  return most;
}

// Granules that have something live, by live pages ascending and then by address (a counting sort).
std::vector<std::int64_t> by_live(const std::vector<Granule>& granules) {
  std::vector<std::size_t> starts(static_cast<std::size_t>(most_live(granules)) + 2, 0);
  for (const Granule& each : granules) starts[static_cast<std::size_t>(each.live) + 1] += 1;
  for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  std::vector<std::int64_t> sorted(granules.size());
  for (std::size_t i = 0; i < granules.size(); ++i) {
    sorted[starts[static_cast<std::size_t>(granules[i].live)]++] = static_cast<std::int64_t>(i);
  }
  return sorted;
}

}  // namespace

PlanReason plan_granules(PlanView& view, PlanGate& gate, Outlook& outlook, PageCount& emptied) {
  // A page that fills granules alone gives them back when it is free, wherever it lies.
  if (view.options().granule_bytes <= view.options().granule_page_bytes) return PlanReason::packed;
  Granules granules(view);
  std::vector<Granule>& all = granules.all();
  const std::vector<std::int64_t> order = by_live(all);
  const std::int64_t in_use = std::ranges::count_if(all, &Granule::stays);
  PageCount room = 0;
  for (std::int32_t page = 1; page < view.pages(); ++page) {
    room += granules.is_destination(page) ? 1 : 0;
  }
  std::vector<std::int64_t> victims;
  bool blocked = false;
  for (const std::int64_t g : order) {
    Granule& granule = granules.at(g);
    if (granule.live == 0) continue;
    const std::int32_t taken = granule.live + granules.destinations_in(g);
    if (taken > room) continue;
    if (granule.fixed) {
      blocked = blocked || g > granules.last_of(0);
      continue;
    }
    room -= taken;
    granule.victim = true;
    victims.push_back(g);
    outlook.lower_bound += granule.live;
  }
  if (victims.empty() || in_use == 0) return blocked ? PlanReason::blocked : PlanReason::packed;
  outlook.fragmentation_permille =
      (static_cast<std::int64_t>(victims.size()) * 1000 + in_use - 1) / in_use;
  if (!gate.open(outlook.fragmentation_permille)) return PlanReason::below_threshold;
  if (view.left() == 0) return view.limit();

  // Destinations: the fullest granules first.
  auto target = order.rbegin();
  std::int32_t next = 0;
  std::int32_t end = -1;
  const auto destination = [&]() -> std::int32_t {
    for (;; ++next) {
      while (next > end) {
        while (target != order.rend() && !granules.at(*target).stays()) ++target;
        if (target == order.rend()) return -1;
        next = granules.low(*target);
        end = granules.high(*target);
        ++target;
      }
      if (granules.is_destination(next)) return next++;
    }
  };
  for (const std::int64_t g : victims) {
    bool whole = true;
    for (std::int32_t page = granules.low(g); page <= granules.high(g); ++page) {
      if (!view.movable(page)) continue;
      const std::int32_t to = view.left() > 0 ? destination() : -1;
      if (to < 0) {
        whole = false;
        break;
      }
      view.move(page, to);
    }
    if (!whole) break;
    emptied += 1;
  }
  return view.moves().empty() ? PlanReason::no_room : PlanReason::planned;
}

}  // namespace packstone::detail
