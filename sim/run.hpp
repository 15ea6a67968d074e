// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One replay (a policy at a page size) with its samples, and many of them on threads.
///
/// Everything in a RunResult but `timing` depends on the requests and the options alone.

#include <sim/bandwidth.hpp>
#include <sim/defrag.hpp>
#include <sim/drafting.hpp>
#include <sim/metrics.hpp>
#include <sim/oracle.hpp>
#include <sim/request.hpp>
#include <sim/reuse.hpp>
#include <sim/scheduler.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace packstone::sim {

struct RunOptions {
  std::string policy{"run"};
  std::int64_t page_size{1};
  std::int64_t pool_tokens{262'144};  ///< slots of the pool, page 0 not counted
  SchedulerOptions scheduler{};
  CostModel cost{};
  bool prefix_cache{false};
  DraftingOptions drafting{};  ///< mode none: off
  DefragOptions defrag{};      ///< no objective: off
  int samples{128};            ///< evenly over the tokens of the trace; more in the first turnover
  int map_columns{240};        ///< cells of the pool map
  bool keep_requests{true};    ///< fill RunResult::requests
  bool check{false};           ///< KvManager::check() at every sample and at the end
};

/// Samples in which the pool is full and churned: see RunResult::steady.
struct Sample {
  std::int64_t step{0};
  std::int64_t now_ns{0};
  std::int64_t tokens_written{0};
  double turnovers{0.0};  ///< tokens written / slots of the pool
  std::int64_t retired{0};
  std::int64_t preemptions{0};
  Metrics metrics{};
  double oracle_run_mean{0.0};
  std::array<double, 3> oracle_tok_in_runs{};  ///< 16, 64, 128
  bool steady{false};
};

/// How a request lay when it ended, and what became of it.
struct RequestRow {
  Retired what{};
  LayoutTotals layout{};
};

/// Wall-clock figures: the only ones that differ between two equal runs.
struct Timing {
  double replay_s{0.0};  ///< scheduler and manager, without the samples
  double sampling_s{0.0};
  double events_per_s{0.0};  ///< slots written and released, over replay_s
  double step_ns_p50{0.0};   ///< wall time of a step over the slots it wrote and released
  double step_ns_p99{0.0};
};

struct RunResult {
  std::string policy;
  std::int64_t page_size{1};
  PageCount pool_pages{0};  ///< usable ones
  SchedulerCounters counters{};
  std::int64_t now_ns{0};  ///< simulated time at the end
  std::vector<Sample> samples;
  std::vector<RequestRow> requests;  ///< in the order in which they ended

  /// Mean of each metric over the steady samples: those of the second half of the tokens, after at
  /// least one pool turnover, and before the last waiting request was admitted (from there on the
  /// pool only drains). When there are none (a short run), over all samples with live sequences.
  Metrics steady{};
  int steady_samples{0};
  double steady_oracle_run_mean{0.0};
  std::array<double, 3> steady_oracle_tok_in_runs{};
  double steady_moves_min{0.0};

  /// Of the steady samples: tokens by run bin (see run_bin), as shares; the oracle's beside.
  std::vector<double> run_shares;
  std::vector<double> oracle_run_shares;
  /// By order j, S = 2^j pages, means over the steady samples; NaN where undefined.
  std::vector<double> free_F;
  std::vector<double> ufsi;
  std::vector<double> extfrag;

  PageCount peak_live{0};               ///< pages, over the samples
  PageCount peak_frontier{0};           ///< pages
  [[nodiscard]] double blowup() const;  ///< peak_frontier / peak_live; the oracle's is 1

  std::optional<ReuseCounters> reuse;
  std::optional<DraftingCounters> drafting;
  std::optional<DefragReport> defrag;
  std::vector<ProbeResult> probes;  ///< what reading its pool costs; see bandwidth_study.hpp
  std::vector<std::string> notes;   ///< shapes that were left out, and why

  /// [samples][2 x map_columns], see Meter::map.
  std::vector<std::vector<std::uint8_t>> map;
  std::uint64_t digest{0};  ///< of the manager's command stream
  Timing timing{};
};

/// Tokens of all runs written so far, for a progress display; never read by a run.
struct ProgressCounters {
  std::atomic<std::int64_t> tokens{0};
  std::atomic<std::int64_t> runs_done{0};
};

/// Slots that a replay writes when nothing is preempted or shared.
[[nodiscard]] std::int64_t total_tokens(const RequestList& list);

/// Replays the list. Throws InvalidArgument for bad options (among them a pool of less than one
/// page) and InvariantError when a check fails.
[[nodiscard]] RunResult run(const RequestList& list, const RunOptions& options,
                            ProgressCounters* progress = nullptr);

/// Replays the list again up to the end of its step number `step` (counted from 1, as in Sample)
/// and hands over the pool as it is then: the manager, its cache or nullptr, the running sequences
/// in order of admission. Throws InvalidArgument when the replay ends before.
void replay_until(const RequestList& list, const RunOptions& options, std::int64_t step,
                  const std::function<void(KvManager&, PrefixCache*, std::vector<SeqId>)>& visit);

/// Runs all on `threads` threads; results in the order of `options`. The first error, in that
/// order, is thrown once all have ended.
[[nodiscard]] std::vector<RunResult> run_all(const RequestList& list,
                                             const std::vector<RunOptions>& options, int threads,
                                             ProgressCounters* progress = nullptr);

}  // namespace packstone::sim
