// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Online defragmentation in the replay: after a step, plan within the budget and apply; the
/// sources become free after the next step, when its readers are done.

#include <packstone/kv_manager.hpp>
#include <packstone/move_plan.hpp>
#include <packstone/prefix_cache.hpp>

#include <sim/metrics.hpp>
#include <sim/oracle.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace packstone::sim {

struct DefragOptions {
  std::optional<PlanObjective> objective;  ///< none: off
  PageCount pages_per_step{256};           ///< most moves of one plan, >= 1
  std::int64_t every{1};                   ///< plan after each so many steps, >= 1
  double after_turnovers{0.0};             ///< begin when the pool has turned over so often
};

struct DefragCounters {
  std::int64_t plans{0};
  std::int64_t plans_with_moves{0};
  std::int64_t moves{0};
  PageCount first_lower_bound{0};  ///< moves that the objective took at least, at the first plan
  std::int64_t moves_to_first_empty{-1};  ///< made until a plan had none; -1 when none was empty
  std::int64_t runs_removed{0};           ///< forecasts, added up
  std::vector<std::int32_t> pauses;       ///< moves of each plan that had any
};

/// What a defrag cost and gave; every time is modelled from bytes, CostModel and the cost curve.
struct DefragReport {
  std::string objective;
  DefragCounters counters;
  double run_mean_before{0.0};  ///< when it began
  double run_mean_after{0.0};   ///< mean of the steady samples
  double descriptors_before{0.0};
  double descriptors_after{0.0};
  double contig_before{0.0};
  double contig_after{0.0};
  double moves_left{0.0};  ///< frontier only: moves to the bound, mean of the steady samples
  double bytes_moved{0.0};
  double moves_per_alloc{0.0};
  double pause_us_p50{0.0}, pause_us_p99{0.0}, pause_us_max{0.0};
  double step_gain_us{0.0};      ///< less attention time a step, see read_loss
  double step_cost_us{0.0};      ///< copy time a step, mean over all steps since it began
  double break_even_steps{0.0};  ///< steps of that gain that pay for one step's moves
};

class Defrag {
 public:
  /// @param cache  told of moves; may be nullptr. The others must outlive this object.
  Defrag(const DefragOptions& options, const CostModel& cost, KvManager& kv, PrefixCache* cache);

  /// Call after each step.
  void step();
  /// Frees what is still retired.
  void end();
  [[nodiscard]] const DefragCounters& counters() const { return counters_; }
  /// @param before  when it began. @param after  in the steady state. @param steps  since it began.
  [[nodiscard]] DefragReport report(const Metrics& before, const Metrics& after,
                                    std::int64_t steps) const;

 private:
  DefragOptions options_;
  CostModel cost_;
  KvManager& kv_;
  PrefixCache* cache_;
  Epoch epoch_{0};
  std::int64_t steps_{0};
  DefragCounters counters_;
};

/// Share by which reading pages one by one in a pool of so many bytes is slower than reading them
/// in one stretch, from the cost curve.
[[nodiscard]] double read_loss(Bytes row_bytes, std::int64_t page_size, Bytes pool_bytes);

}  // namespace packstone::sim
