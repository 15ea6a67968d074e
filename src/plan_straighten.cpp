// SPDX-License-Identifier: Apache-2.0
// Straightening in three steps: continue runs in place, gather stretches of short runs into free
// runs, and make room for those that found none.
#include "plan_straighten.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace packstone::detail {

namespace {

constexpr std::int64_t kScoreUnit = 1024;

std::int64_t weighted_score(std::int64_t weight, std::int64_t gain, std::int64_t pages) {
  std::int64_t score = 0;
  const std::int64_t ratio = gain * kScoreUnit / pages;
  if (__builtin_mul_overflow(weight, ratio, &score))
    return std::numeric_limits<std::int64_t>::max();
  return score;
}

// One table's runs, and how they split into stretches of short ones between anchors.
class TableScan {
 public:
  TableScan(const PlanView& view, std::vector<bool>& linked, std::int32_t anchor)
      : view_(view), linked_(linked), anchor_(anchor) {}

  // Appends the stretches of the table; adds its breaks that moves could mend.
  void stretches(std::int32_t table, std::int64_t weight, std::vector<Stretch>& out,
                 std::int64_t& breaks) {
    table_ = table;
    weight_ = weight;
    const std::vector<PageId>& pages =
        view_.snapshot().tables[static_cast<std::size_t>(table)].pages;
    runs_.clear();
    std::int32_t previous = -1;
    bool last_fixed = false;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(pages.size()); ++i) {
      const std::int32_t page = index_of(pages[static_cast<std::size_t>(i)]);
      if (page < 0 || page >= view_.pages()) require_in_pool(table, page);
      const bool fixed = view_.place(page) != Place::live && !claimed(table, page);
      if (page != previous + 1 || i == 0) {
        if (i > 0 && !(fixed && last_fixed)) breaks += 1;
        runs_.push_back({.first = i, .pages = 0, .anchor = false});
      } else {
        linked_[static_cast<std::size_t>(previous)] = true;
      }
      last_fixed = fixed;
      previous = page;
      Run& run = runs_.back();
      run.pages += 1;
      run.anchor = run.anchor || fixed || run.pages >= anchor_;
    }
    if (runs_.size() < 2 || weight == 0) return;
    for (std::size_t i = 0; i < runs_.size();) {
      const std::size_t begin = i;
      while (i < runs_.size() && !runs_[i].anchor) ++i;
      if (i > begin) split(begin, i, out);
      while (i < runs_.size() && runs_[i].anchor) ++i;
    }
  }

 private:
  struct Run {
    std::int32_t first;
    std::int32_t pages;
    bool anchor;
  };

  // The first table that names a shared page moves it; to the others it is fixed.
  bool claimed(std::int32_t table, std::int32_t page) {
    if (view_.place(page) != Place::shared) return false;
    if (claims_.empty()) claims_.assign(static_cast<std::size_t>(view_.pages()), -1);
    std::int32_t& claim = claims_[static_cast<std::size_t>(page)];
    if (claim < 0) claim = table;
    return claim == table;
  }

  [[noreturn]] void require_in_pool(std::int32_t table, std::int32_t page) const {
    const SeqId seq = view_.snapshot().tables[static_cast<std::size_t>(table)].seq;
    throw InvalidArgument("table of sequence " + std::to_string(seq.index) + " names page " +
                          std::to_string(page) + ", outside the pool");
  }

  // A run that is half of its stretch stays, and the stretch falls into what is beside it.
  void split(std::size_t begin, std::size_t end, std::vector<Stretch>& out) {
    while (end - begin > 1) {
      std::int32_t total = 0;
      std::size_t longest = begin;
      for (std::size_t i = begin; i < end; ++i) {
        total += runs_[i].pages;
        if (runs_[i].pages > runs_[longest].pages) longest = i;
      }
      if (runs_[longest].pages < 2 || runs_[longest].pages * std::int64_t{2} < total) break;
      runs_[longest].anchor = true;
      // The longer side is split further; the other one has less than half, and runs to match.
      if (longest - begin > end - longest - 1) {
        if (longest + 1 < end) add(longest + 1, end, out);
        end = longest;
      } else {
        if (longest > begin) add(begin, longest, out);
        begin = longest + 1;
      }
    }
    if (begin < end) add(begin, end, out);
  }

  void add(std::size_t begin, std::size_t end, std::vector<Stretch>& out) {
    const bool left = begin > 0;
    const bool right = end < runs_.size();
    const auto runs = static_cast<std::int32_t>(end - begin);
    const std::int32_t first = runs_[begin].first;
    const std::int32_t pages = runs_[end - 1].first + runs_[end - 1].pages - first;
    const std::int64_t gain = runs - 1 + (left || right ? 1 : 0);
    if (gain == 0) return;
    const std::int64_t score = weighted_score(weight_, gain, pages);
    if (score == 0) return;
    out.push_back({.score = score,
                   .table = table_,
                   .first = first,
                   .pages = pages,
                   .runs = runs,
                   .left = left,
                   .right = right});
  }

  const PlanView& view_;
  std::vector<bool>& linked_;
  std::vector<std::int32_t> claims_;  // table by page; empty while no page is shared
  std::int32_t anchor_;
  std::int32_t table_{0};
  std::int64_t weight_{0};
  std::vector<Run> runs_;
};

}  // namespace

Straightener::Straightener(PlanView& view)
    : view_(view),
      linked_(static_cast<std::size_t>(view.pages()), false),
      anchor_(static_cast<std::int32_t>(
          std::clamp<PageCount>(std::min(view.options().run_target, view.options().moves_max / 2),
                                2, std::numeric_limits<std::int32_t>::max()))),
      piece_(std::min(anchor_, kPieceMin)),
      budget_(view.left()) {}

void Straightener::look(Outlook& outlook) {
  const std::vector<PoolSnapshot::Table>& tables = view_.snapshot().tables;
  std::vector<ReadWeight> weights(view_.options().weights.begin(), view_.options().weights.end());
  std::ranges::sort(weights, {}, &ReadWeight::seq);
  std::int64_t breaks = 0;
  std::int64_t joints = 0;
  TableScan scan(view_, linked_, anchor_);
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const std::vector<PageId>& pages = tables[t].pages;
    std::int64_t weight = std::max<std::int64_t>(tables[t].length, 1);
    const auto given = std::ranges::lower_bound(weights, tables[t].seq, {}, &ReadWeight::seq);
    if (given != weights.end() && given->seq == tables[t].seq) weight = given->weight;
    scan.stretches(static_cast<std::int32_t>(t), weight, stretches_, breaks);
    joints += pages.empty() ? 0 : static_cast<std::int64_t>(pages.size()) - 1;
  }
  outlook.lower_bound = (breaks + 1) / 2;
  outlook.fragmentation_permille = joints == 0 ? 0 : (breaks * 1000 + joints - 1) / joints;
}

bool Straightener::pays(std::int64_t gain, std::int64_t pages) const {
  const PlanCosts& costs = view_.options().costs;
  if (costs.page_copy_ps == 0 || costs.break_read_ps == 0 || costs.steps_left == 0) return true;
  std::int64_t saved = 0;
  std::int64_t spent = 0;
  if (__builtin_mul_overflow(gain, costs.break_read_ps, &saved) ||
      __builtin_mul_overflow(saved, costs.steps_left, &saved)) {
    return true;
  }
  return !__builtin_mul_overflow(pages, costs.page_copy_ps, &spent) && spent < saved;
}

namespace {

// Scores in steps of an eighth, so that the best few of many are found by counting.
std::size_t score_class(std::int64_t score) {
  const auto value = static_cast<std::uint64_t>(score);
  const auto width = static_cast<int>(std::bit_width(value));
  if (width <= 4) return static_cast<std::size_t>(value);
  return static_cast<std::size_t>(width - 4) * 8 + static_cast<std::size_t>(value >> (width - 4));
}

}  // namespace

// The best by an eighth, the earliest among equals: more than a plan can move are never looked at.
void Straightener::select() {
  std::array<std::int64_t, 512> counts{};
  for (const Stretch& each : stretches_) counts[score_class(each.score)] += 1;
  std::int64_t wanted = 4 * view_.left() + 64;
  std::size_t lowest = counts.size();
  while (lowest > 0 && wanted > 0) wanted -= counts[--lowest];
  std::int64_t of_lowest = counts[lowest] + std::min<std::int64_t>(wanted, 0);
  std::erase_if(stretches_, [&](const Stretch& each) {
    const std::size_t score = score_class(each.score);
    return score < lowest || (score == lowest && of_lowest-- <= 0);
  });
  std::ranges::stable_sort(stretches_, std::greater{}, &Stretch::score);
}

std::int32_t Straightener::page(const Stretch& stretch, std::int32_t index) const {
  const auto& table = view_.snapshot().tables[static_cast<std::size_t>(stretch.table)];
  return index_of(table.pages[static_cast<std::size_t>(index)]);
}

bool Straightener::run_begins(const Stretch& stretch, std::int32_t index) const {
  return index == stretch.first || page(stretch, index) != page(stretch, index - 1) + 1;
}

// Continues the run before the stretch with as many whole runs as find their places free.
void Straightener::attach_left(Stretch& stretch) {
  const std::int32_t start = page(stretch, stretch.first - 1) + 1;
  std::int32_t taken = 0;
  std::int32_t gain = 0;
  std::int32_t cost = 0;
  std::int32_t taken_cost = 0;
  for (std::int32_t i = 0; i < stretch.pages; ++i) {
    const std::int32_t to = start + i;
    if (to >= view_.pages()) break;
    if (page(stretch, stretch.first + i) != to) {
      if (view_.place(to) != Place::free || cost == view_.left()) break;
      cost += 1;
    }
    if (i + 1 == stretch.pages || run_begins(stretch, stretch.first + i + 1)) {
      taken = i + 1;
      taken_cost = cost;
      gain += 1;
    }
  }
  if (gain == 0 || !pays(gain, taken_cost)) return refused(gain);
  for (std::int32_t i = 0; i < taken; ++i) {
    const std::int32_t from = page(stretch, stretch.first + i);
    if (from != start + i) view_.move(from, start + i);
  }
  stretch.first += taken;
  stretch.pages -= taken;
  stretch.runs -= gain;
}

void Straightener::attach_right(Stretch& stretch) {
  const std::int32_t last = stretch.first + stretch.pages - 1;
  const std::int32_t start = page(stretch, last + 1) - 1;
  std::int32_t taken = 0;
  std::int32_t gain = 0;
  std::int32_t cost = 0;
  std::int32_t taken_cost = 0;
  for (std::int32_t i = 0; i < stretch.pages; ++i) {
    const std::int32_t to = start - i;
    if (to < 1) break;
    if (page(stretch, last - i) != to) {
      if (view_.place(to) != Place::free || cost == view_.left()) break;
      cost += 1;
    }
    if (run_begins(stretch, last - i)) {
      taken = i + 1;
      taken_cost = cost;
      gain += 1;
    }
  }
  if (gain == 0 || !pays(gain, taken_cost)) return refused(gain);
  for (std::int32_t i = 0; i < taken; ++i) {
    const std::int32_t from = page(stretch, last - i);
    if (from != start - i) view_.move(from, start - i);
  }
  stretch.pages -= taken;
  stretch.runs -= gain;
}

// The part of a stretch with the most whole runs in at most `cap` pages; the first of equals.
Stretch Straightener::best_part(const Stretch& stretch, std::int64_t cap) const {
  if (stretch.pages <= cap) return stretch;
  Stretch best = stretch;
  best.runs = 0;
  const std::int32_t end = stretch.first + stretch.pages;
  std::int32_t begin = stretch.first;
  std::int32_t runs = 0;
  for (std::int32_t i = stretch.first; i < end; ++i) {
    if (i + 1 < end && !run_begins(stretch, i + 1)) continue;
    runs += 1;
    while (i + 1 - begin > cap) {
      do ++begin;
      while (begin <= i && !run_begins(stretch, begin));
      runs -= 1;
    }
    if (runs <= best.runs) continue;
    best.runs = runs;
    best.first = begin;
    best.pages = i + 1 - begin;
    if (runs == cap) break;  // every run is one page: no part has more
  }
  return best;
}

// Moves the stretch, or a piece of it that is long enough, to a free run. False when it lacks one
// that a plan could fill.
bool Straightener::gather(Stretch& stretch, FreeRuns& free) {
  const Stretch most = best_part(stretch, budget_);
  if (!worth_placing(most, stretch)) return true;
  if (free.longest() < std::min(stretch.pages, piece_)) {
    stretch = most;
    return false;
  }
  Stretch part = best_part(most, view_.left());
  if (!worth_placing(part, stretch)) return true;
  if (free.longest() < part.pages) part = best_part(part, free.longest());
  if (!worth_placing(part, stretch)) {
    stretch = most;
    return false;
  }
  const std::int32_t to = free.take(part.pages);
  PACKSTONE_ASSERT(to > 0);
  if (!pays(part.runs - 1, part.pages)) {
    refused(1);
    return true;
  }
  for (std::int32_t i = 0; i < part.pages; ++i) view_.move(page(part, part.first + i), to + i);
  return true;
}

PlanReason Straightener::run(PlanGate& gate, const Outlook& outlook) {
  if (stretches_.empty()) return outlook.lower_bound > 0 ? PlanReason::blocked : PlanReason::packed;
  if (!gate.open(outlook.fragmentation_permille)) return PlanReason::below_threshold;
  if (view_.left() == 0) return view_.limit();
  select();
  for (Stretch& stretch : stretches_) {
    if (stretch.left && view_.left() > 0) attach_left(stretch);
    if (stretch.right && stretch.pages > 0 && view_.left() > 0) attach_right(stretch);
  }
  std::erase_if(stretches_, [](const Stretch& each) { return each.runs < 2; });
  FreeRuns free(view_);
  std::vector<Stretch> unplaced;
  for (Stretch& stretch : stretches_) {
    if (view_.left() == 0) break;
    if (!gather(stretch, free)) unplaced.push_back(stretch);
  }
  if (view_.left() > 0 && !unplaced.empty()) make_room(unplaced, free);
  if (!view_.moves().empty()) return PlanReason::planned;
  return refused_ ? PlanReason::does_not_pay : PlanReason::no_room;
}

PlanReason plan_straighten(PlanView& view, PlanGate& gate, Outlook& outlook) {
  Straightener straightener(view);
  straightener.look(outlook);
  return straightener.run(gate, outlook);
}

}  // namespace packstone::detail
