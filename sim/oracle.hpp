// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What no policy can beat, and what a perfect layout of the same sequences would cost and give:
/// the limits that are printed beside the metrics.
///
/// The oracle lays every live sequence in one extent and packs the extents from page 1 up. Which
/// sequences live when does not depend on the placement (admission counts pages, not places), so
/// every policy of a page size is compared with the same oracle.

#include <packstone/units.hpp>

#include <sim/metrics.hpp>

#include <cstdint>

namespace packstone::sim {

/// The buffers of the pool, and the speeds that turn bytes into modelled time.
struct CostModel {
  std::int64_t slot_bytes{1152};  ///< of one slot in one buffer: an MLA bf16 row
  std::int64_t layers{61};        ///< buffers moved together
  /// Page moves, read + write: random pages of 1,152 bytes on one H200, docs/compaction.md.
  double copy_gbps{3641.0};
  double read_gbps{4653.0};  ///< contiguous rows, sim/cost_curve.csv; measured on one H200
};

/// The oracle's metrics for the sequences of one sample.
class Oracle {
 public:
  void begin();
  void add(TokenCount length);

  [[nodiscard]] double run_mean() const;  ///< mean length: one run a sequence
  [[nodiscard]] double tok_in_runs(std::int64_t slots) const { return runs_.share_at_least(slots); }
  [[nodiscard]] double run_p50w() const { return static_cast<double>(runs_.weighted_median()); }
  [[nodiscard]] const RunLengths& run_lengths() const { return runs_; }

 private:
  RunLengths runs_;
  std::int64_t sequences_{0};
};

/// Seconds to copy `pages` pages of all layers, counting each byte read and written.
[[nodiscard]] double copy_seconds(const CostModel& model, PageCount pages, std::int64_t page_size);
/// Seconds to read `tokens` tokens of all layers once: no attention step can be faster.
[[nodiscard]] double attention_floor_seconds(const CostModel& model, TokenCount tokens);
/// Decode steps after which a defrag has paid for itself: cost / (slow - fast); infinity when the
/// step does not get faster.
[[nodiscard]] double break_even_steps(double cost_s, double step_slow_s, double step_fast_s);

}  // namespace packstone::sim
