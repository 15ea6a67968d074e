// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"
#include "handles.hpp"

#include <packstone/move_plan.hpp>

using namespace packstone;
using namespace packstone::c_api;

struct packstone_plan {
  MovePlan plan;
};

namespace {

PlanObjective objective_of(int32_t value) {
  if (value < PACKSTONE_FRONTIER || value > PACKSTONE_GRANULES) {
    throw InvalidArgument("objective = " + std::to_string(value));
  }
  return static_cast<PlanObjective>(value);
}

/// Leaves the default where the caller has zero.
template <typename T>
void set(T& to, T value) {
  if (value != 0) to = value;
}

}  // namespace

packstone_status packstone_manager_plan(const packstone_manager* manager,
                                        const packstone_plan_options* options,
                                        packstone_plan** out) {
  return guarded([&] {
    const packstone_plan_options given = read_struct(options, "options");
    std::vector<ReadWeight> weights;
    for (const auto& each : array(given.weights, given.weight_count, "options->weights")) {
      weights.push_back({.seq = seq_of(each.seq), .weight = each.weight});
    }
    PlanOptions made;
    made.objective = objective_of(given.objective);
    set(made.moves_max, given.moves_max);
    set(made.bytes_max, given.bytes_max);
    set(made.bytes_per_page, given.bytes_per_page);
    set(made.keep_free, given.keep_free);
    set(made.run_target, given.run_target);
    set(made.granule_bytes, given.granule_bytes);
    set(made.granule_page_bytes, given.granule_page_bytes);
    made.held = page_ids(given.held, given.held_count, "options->held");
    made.weights = weights;
    made.costs = {.page_copy_ps = given.page_copy_ps,
                  .break_read_ps = given.break_read_ps,
                  .steps_left = given.steps_left};
    made.hysteresis = {.start_permille = given.start_permille,
                       .stop_permille = given.stop_permille,
                       .running = given.running != 0};
    packstone_plan*& result = required(out, "out");
    result = new packstone_plan{plan_moves(required(manager, "manager").manager.snapshot(), made)};
    return PACKSTONE_OK;
  });
}

void packstone_plan_destroy(packstone_plan* plan) {
  delete plan;
}

packstone_status packstone_plan_summarize(const packstone_plan* plan, packstone_plan_summary* out) {
  return guarded([&] {
    const MovePlan& p = required(plan, "plan").plan;
    packstone_plan_summary summary{};
    summary.moves = std::ssize(p.moves);
    summary.patches = std::ssize(p.patches);
    summary.runs_before = p.forecast.runs_before;
    summary.runs_after = p.forecast.runs_after;
    summary.frontier_before = p.forecast.frontier_before;
    summary.frontier_after = p.forecast.frontier_after;
    summary.granules_emptied = p.forecast.granules_emptied;
    summary.bytes = p.forecast.bytes;
    summary.cost_ps = p.forecast.cost_ps;
    summary.gain_ps = p.forecast.gain_ps;
    summary.break_even_steps = p.forecast.break_even_steps;
    summary.lower_bound = p.lower_bound;
    summary.fragmentation_permille = p.fragmentation_permille;
    summary.running = p.running ? 1 : 0;
    summary.reason = to_string(p.reason);
    write_struct(summary, out, "out");
    return PACKSTONE_OK;
  });
}

packstone_status packstone_plan_moves(const packstone_plan* plan, packstone_page_move* moves,
                                      size_t capacity, size_t* count) {
  return guarded([&] {
    const std::vector<PageMove>& found = required(plan, "plan").plan.moves;
    return give(
        found.size(),
        [&](std::size_t i) {
          return packstone_page_move{index_of(found[i].from), index_of(found[i].to)};
        },
        moves, capacity, count);
  });
}

packstone_status packstone_plan_patches(const packstone_plan* plan, packstone_table_patch* patches,
                                        size_t capacity, size_t* count) {
  return guarded([&] {
    const std::vector<TablePatch>& found = required(plan, "plan").plan.patches;
    return give(
        found.size(),
        [&](std::size_t i) {
          const TablePatch& patch = found[i];
          return packstone_table_patch{
              seq_of(patch.seq), patch.index, {index_of(patch.move.from), index_of(patch.move.to)}};
        },
        patches, capacity, count);
  });
}

packstone_status packstone_manager_apply_plan(packstone_manager* manager,
                                              const packstone_plan* plan, uint64_t epoch) {
  return guarded([&] {
    require_copies_taken(manager);
    const MovePlan& p = required(plan, "plan").plan;
    manager->manager.apply(p.moves, p.patches, epoch);
    return PACKSTONE_OK;
  });
}
