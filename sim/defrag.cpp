// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/cost_curve.hpp>
#include <sim/defrag.hpp>

#include <algorithm>
#include <cmath>

namespace packstone::sim {

Defrag::Defrag(const DefragOptions& options, const CostModel& cost, KvManager& kv,
               PrefixCache* cache)
    : options_(options), cost_(cost), kv_(kv), cache_(cache) {
  if (options.pages_per_step < 1 || options.every < 1) {
    throw InvalidArgument("a defrag of " + std::to_string(options.pages_per_step) +
                          " pages every " + std::to_string(options.every) + " steps");
  }
}

void Defrag::step() {
  // The step that has just ended was the last that could read what the plan before it moved.
  kv_.reclaim(epoch_);
  if (steps_++ % options_.every != 0) return;
  PACKSTONE_ASSERT(kv_.take_copies().empty());  // the replay forks nothing
  const Bytes row = kv_.page_size() * cost_.slot_bytes;
  const MovePlan plan =
      plan_moves(kv_.snapshot(), {.objective = *options_.objective,
                                  .moves_max = options_.pages_per_step,
                                  .bytes_per_page = row * cost_.layers,
                                  .keep_free = std::min<PageCount>(kv_.sequences() * 2, 4096),
                                  .run_target = std::max<PageCount>(2, 256 / kv_.page_size()),
                                  .granule_page_bytes = row});
  if (counters_.plans == 0) counters_.first_lower_bound = plan.lower_bound;
  counters_.plans += 1;
  if (plan.moves.empty()) {
    if (counters_.moves_to_first_empty < 0) counters_.moves_to_first_empty = counters_.moves;
    return;
  }
  kv_.apply(plan.moves, plan.patches, ++epoch_);
  if (cache_ != nullptr) cache_->remap(plan.moves);
  counters_.plans_with_moves += 1;
  counters_.moves += static_cast<std::int64_t>(plan.moves.size());
  counters_.runs_removed += plan.forecast.runs_before - plan.forecast.runs_after;
  counters_.pauses.push_back(static_cast<std::int32_t>(plan.moves.size()));
}

void Defrag::end() {
  kv_.reclaim(epoch_);
}

DefragReport Defrag::report(const Metrics& before, const Metrics& after, std::int64_t steps) const {
  DefragReport report;
  report.objective = to_string(*options_.objective);
  report.counters = counters_;
  report.run_mean_before = before.run_mean;
  report.run_mean_after = after.run_mean;
  report.descriptors_before = before.descriptors;
  report.descriptors_after = after.descriptors;
  report.contig_before = before.contig_all;
  report.contig_after = after.contig_all;
  report.moves_left = after.frontier_moves_min;
  const auto moves = static_cast<double>(counters_.moves);
  const std::int64_t page_size = kv_.page_size();
  const double move_us = 1e6 * copy_seconds(cost_, 1, page_size);
  report.bytes_moved = moves * static_cast<double>(page_size * cost_.layers * cost_.slot_bytes);
  report.moves_per_alloc = moves / static_cast<double>(kv_.counters().pages_allocated);
  std::vector<std::int32_t> pauses = counters_.pauses;
  std::ranges::sort(pauses);
  if (!pauses.empty()) {
    report.pause_us_p50 = move_us * pauses[pauses.size() / 2];
    report.pause_us_p99 = move_us * pauses[(pauses.size() - 1) * 99 / 100];
    report.pause_us_max = move_us * pauses.back();
  }
  const double tokens = std::isnan(after.live_tokens) ? 0.0 : after.live_tokens;
  report.step_gain_us = 1e6 * attention_floor_seconds(cost_, static_cast<TokenCount>(tokens)) *
                        read_loss(cost_.slot_bytes, page_size,
                                  kv_.allocator().set().pages() * page_size * cost_.slot_bytes) *
                        (report.contig_after - report.contig_before);
  report.step_cost_us = moves * move_us / static_cast<double>(std::max<std::int64_t>(steps, 1));
  report.break_even_steps =
      break_even_steps(report.step_cost_us, std::max(report.step_gain_us, 0.0), 0.0);
  return report;
}

double read_loss(Bytes row_bytes, std::int64_t page_size, Bytes pool_bytes) {
  const CostCurve& curve = CostCurve::built_in();
  constexpr auto kRead = CostCurve::Kind::read;
  const double one_by_one = curve.gbps(kRead, row_bytes, row_bytes * page_size, pool_bytes);
  return std::max(0.0, 1.0 - one_by_one / curve.contiguous_gbps(kRead, row_bytes, pool_bytes));
}

}  // namespace packstone::sim
