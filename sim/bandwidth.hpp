// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What fragmentation costs those who read the pool: cases (the same sequences under several
/// placements, and the plans that straighten them), the seam through which a device measures them,
/// and the figures that come back.
///
/// Every figure says how it was got: `measured-gpu` on a device by the real kernels, `measured-cpu`
/// by a gather of this machine's processors, `modelled` from the cost curve. GB/s count the KV
/// bytes of the sequences once.

#include <packstone/units.hpp>

#include <sim/cpu_gather.hpp>
#include <sim/kv_model.hpp>
#include <sim/table_layouts.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace packstone::sim {

enum class How : std::uint8_t { measured_gpu, measured_cpu, modelled };
[[nodiscard]] const char* to_string(How how);

/// What is read: `batch` sequences of `length` tokens of prefix, each with q_len query tokens that
/// are its last tokens in the pool. batch 0: the live sequences of the replay as they are.
struct ProbeShape {
  std::int32_t batch{0};
  std::int32_t heads{8};  ///< query heads on this GPU
  std::int32_t q_len{1};
  std::int32_t length{0};
  [[nodiscard]] bool live() const { return batch == 0; }
  [[nodiscard]] std::string text() const;  ///< "1,8,65,65536" or "live,8,1"
  friend bool operator==(const ProbeShape&, const ProbeShape&) = default;
};

struct ProbeSpec {
  KvModel model;
  ProbeShape shape;
};

/// Some plans of the planner, in order, and how the sequences lie after them.
struct DefragStage {
  std::vector<std::vector<PageMove>> plans{};
  TableSet tables{};
};

/// The plan that the planner makes first when it may move so many pages.
struct BudgetPlan {
  PageCount budget{0};
  std::vector<PageMove> moves{};
};

/// Emptying whole granules once half of the live sequences have gone.
struct ReclaimPlan {
  std::vector<std::vector<PageMove>> plans{};
  std::int64_t regions_before{0};  ///< empty 2 MiB regions of one layer's buffer
  std::int64_t regions_after{0};
};

struct ProbeCase {
  ProbeSpec spec{};
  TableSet churned{};  ///< tables of prefix and query tokens together; lengths likewise
  std::vector<DefragStage> stages{};
  bool straight{false};  ///< the last plan was empty: nothing left to do with the room there is
  std::vector<BudgetPlan> budgets{};
  std::optional<ReclaimPlan> reclaim{};
  PageCount retired{0};  ///< sequences of the replay that made room

  [[nodiscard]] Bytes pool_bytes() const;  ///< of one buffer of one layer
  /// KV bytes that one layer's attention reads: prefixes only.
  [[nodiscard]] double read_bytes() const;
};

/// The placements of a case by name: identity, churned, stride, random, and defrag 1 ..; the last
/// one is called defragmented.
struct Placement {
  std::string name;
  TableSet tables;
};
[[nodiscard]] std::vector<Placement> placements_of(const ProbeCase& probe, std::uint64_t seed);

/// Runs of consecutive pages in all tables of a set.
struct TableRuns {
  std::int64_t runs{0};
  double mean_slots{0};
};
[[nodiscard]] TableRuns runs_of(const TableSet& set);

struct Spread {
  double median{0};
  double min{0};
  double max{0};
};
/// Of at least one value.
[[nodiscard]] Spread spread_of(std::vector<double> values);

struct BandwidthFigure {
  std::string placement{};
  std::string kernel{};  ///< verify, decode, read (rows by a plain kernel), cpu-gather
  Spread gbps{};         ///< over the runs
  double ceiling_gbps{0};
  double layer_us{0};  ///< median time of one layer
  How how{How::modelled};
  int runs{1};
  double run_mean{0};  ///< slots
};

struct TransferFigure {
  std::string placement{};
  std::string
      method;  ///< to_host_kernel, to_host_staged, to_host_batched, peer_kernel, peer_copies
  Bytes bytes{0};
  std::int64_t descriptors{0};  ///< runs x buffers x layers
  Spread gbps{};
  double ceiling_gbps{0};  ///< one contiguous copy the same way
  How how{How::modelled};
};

/// One plan of so many pages, carried out in all layers.
struct StepCost {
  PageCount budget{0};
  PageCount moves{0};
  double us{0};
};

constexpr double kNever = std::numeric_limits<double>::infinity();

struct DefragFigure {
  PageCount moves{0};
  std::int64_t plans{0};
  bool straight{false};
  Bytes bytes_moved{0};
  double move_us{0};       ///< all plans, all layers
  double step_gain_us{0};  ///< attention of all layers, churned less defragmented; may be negative
  double noise_us{0};      ///< half the spread of the two: a gain below it is none
  std::vector<StepCost> budgets{};
  std::optional<bool> outputs_identical{};  ///< attention before and after, bit for bit
  double attention_steps{kNever};  ///< steps after which attention alone has paid for the moves
  double transfers{kNever};  ///< whole transfers of the sequences by batched copy that pay for it
  double kernel_transfers{kNever};  ///< the same by a kernel
  Bytes returned_bytes{0};          ///< memory that emptied granules give back, all layers
  Bytes returned_moved_bytes{0};
  double returned_us{0};          ///< moves for it
  double returned_steps{kNever};  ///< decode steps whose attention takes as long
  How how{How::modelled};
};

struct ProbeResult {
  ProbeSpec spec{};
  std::int64_t page_size{1};
  Bytes pool_bytes{0};   ///< of one buffer of one layer
  TokenCount tokens{0};  ///< read, of all sequences
  std::int32_t sequences{0};
  std::int32_t layers{0};  ///< in the pool; fewer than the model has where they do not fit
  std::vector<BandwidthFigure> bandwidth{};
  std::vector<TransferFigure> transfers{};
  std::optional<DefragFigure> defrag{};
  std::string note{};  ///< what was left out and why; empty: nothing
  /// The pool with these sequences alone, churned and straightened, as Meter::map; may be empty.
  std::vector<std::uint8_t> map_before{};
  std::vector<std::uint8_t> map_after{};
};

/// A device that measures cases. Implementations keep nothing of a case after the call.
class BandwidthProbe {
 public:
  virtual ~BandwidthProbe() = default;
  BandwidthProbe(const BandwidthProbe&) = delete;
  BandwidthProbe& operator=(const BandwidthProbe&) = delete;
  /// Card, driver and toolkit, in one line.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Bandwidth, transfers and defrag of the case; break-evens are left to `settle`. Throws
  /// packstone::Error when the device fails.
  [[nodiscard]] virtual ProbeResult measure(const ProbeCase& probe) = 0;

 protected:
  BandwidthProbe() = default;
};

/// Runs of a measurement: each placement in turn, so many times.
inline constexpr int kProbeRuns = 3;

/// Largest pool, one buffer of one layer, that the processors gather from.
inline constexpr Bytes kCpuPoolBytesMax = Bytes{2} << 30;

/// The case on this machine's processors, on so many threads (0: one a processor), where its pool
/// fits `memory`, else nothing.
[[nodiscard]] std::vector<BandwidthFigure> measure_on_cpu(const ProbeCase& probe,
                                                          const GatherMemory& memory, int threads);

/// The case from the cost curve and `copy_gbps` (page moves, read + write).
[[nodiscard]] ProbeResult model_case(const ProbeCase& probe, double copy_gbps);

/// Fills gains and break-evens of `result.defrag` from its figures and from the move times.
void settle(ProbeResult& result);

/// One plain sentence: what the defrag cost and when it has paid, or that it never does.
[[nodiscard]] std::string verdict(const ProbeResult& result);

}  // namespace packstone::sim
