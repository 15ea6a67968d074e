// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The planner: which pages of a pool to move, and which table entries change with them.
///
/// `plan_moves` is a pure function. Snapshot and options go in, a plan comes out: no clock, no
/// pointer and no hash order in any decision, integers only, so every rank of a model that saw the
/// same commands makes the same plan. The plan goes to `KvManager::apply` as it is; whoever holds
/// pages outside the tables (a PrefixCache) is told of `moves` itself.
///
/// Three objectives:
///
/// - **frontier**: every movable live page at or below the mark. The mark is the lowest for which
///   the free pages at or below it take every movable live page above it; the moves are exactly
///   those pages, which is the minimum (two-finger compaction, Saunders 1974, with sources and
///   destinations paired in ascending order so that runs survive where they can).
/// - **straighten**: fewer and longer runs, the best ratio of breaks removed to pages moved first,
///   weighted by how much a sequence will be read. Pages are moved to continue a run in place, or
///   into a free run that takes a whole stretch of short runs. When no free run is long enough, the
///   cheapest window is evacuated, for a later plan to fill once its pages have been reclaimed (the
///   cleaning of a log-structured store, Rosenblum and Ousterhout 1992).
/// - **granules**: whole regions of `granule_bytes` emptied, the emptiest ones into the fullest, so
///   that the memory behind them can go back.
///
/// What every plan keeps to: destinations are *free* pages and distinct (not reserved ones: that
/// room has been promised, forfeit it first); sources are live, distinct and neither pinned nor
/// held; no page is both; a page that several tables share moves once, with a patch for each table.
/// In straightening, a shared page is moved only on behalf of the first table that names it.
/// Applying a plan and planning again with nothing else changed ends, after finitely many plans, in
/// an empty one; for `frontier` and `granules` with enough budget already the second is empty.
///
/// Take pending copies on write (`KvManager::take_copies`) before the snapshot: a page that such a
/// copy still reads may be free, and `apply` refuses a plan that moves into it.

#include <packstone/kv_manager.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace packstone {

enum class PlanObjective : std::uint8_t { frontier, straighten, granules };
const char* to_string(PlanObjective objective);

/// How much a sequence will be read, relative to others, >= 0; 0 keeps straightening off it.
struct ReadWeight {
  SeqId seq;
  std::int64_t weight{1};
};

/// What moves cost and breaks cost, in picoseconds (integers, so that ranks agree). With all three
/// positive a straightening is planned only where it pays: pages x page_copy < steps_left x breaks
/// removed x break_read. Zeros: unknown, everything is taken to pay.
struct PlanCosts {
  std::int64_t page_copy_ps{0};   ///< one page moved, all buffers, read and write
  std::int64_t break_read_ps{0};  ///< what one break adds to a step that reads the sequence
  std::int64_t steps_left{0};     ///< steps over which that is saved
};

/// Keeps a pool near its threshold from being moved about for ever: idle planning starts at
/// `start_permille` of fragmentation and, once running, goes on down to `stop_permille`. The plan
/// says what to pass as `running` next time. Zeros: always run.
struct PlanHysteresis {
  std::int64_t start_permille{0};
  std::int64_t stop_permille{0};
  bool running{false};
};

struct PlanOptions {
  PlanObjective objective{PlanObjective::straighten};
  PageCount moves_max{256};                            ///< pages moved by this plan, >= 0
  Bytes bytes_max{std::numeric_limits<Bytes>::max()};  ///< bytes copied by this plan, >= 0
  Bytes bytes_per_page{0};  ///< of a page in all buffers; 0: unknown, bytes_max does not bind
  /// Pages that work in flight uses beside the stream order: neither moved nor moved to.
  std::span<const PageId> held{};
  PageCount keep_free{0};  ///< free pages that must be left until the sources come back, >= 0
  /// straighten: a run of so many pages is long enough to stay where it is; >= 2.
  PageCount run_target{64};
  /// straighten: a sequence without a weight counts as its length in tokens.
  std::span<const ReadWeight> weights{};
  Bytes granule_bytes{Bytes{2} << 20U};  ///< granules: the unit of memory that can go back, >= 1
  Bytes granule_page_bytes{0};           ///< granules: bytes of a page in *one* buffer, >= 1 there
  PlanCosts costs{};
  PlanHysteresis hysteresis{};
};

/// Why a plan has no moves.
enum class PlanReason : std::uint8_t {
  planned,          ///< it has moves
  packed,           ///< nothing would be better for it
  below_threshold,  ///< hysteresis
  no_budget,        ///< moves_max or bytes_max allow not one page
  no_free_pages,    ///< no free page that keep_free does not want
  does_not_pay,     ///< the costs say so
  no_room,          ///< no free run, and no window worth the evacuation
  blocked,          ///< pins, held pages or reserved room are in the way
};
const char* to_string(PlanReason reason);

struct PlanForecast {
  std::int64_t runs_before{0};  ///< of all tables, shared pages counted in each
  std::int64_t runs_after{0};
  PageCount frontier_before{0};  ///< highest live page id
  PageCount frontier_after{0};
  PageCount granules_emptied{0};  ///< granules only
  Bytes bytes{0};                 ///< moved: moves x bytes_per_page
  std::int64_t cost_ps{0};        ///< moves x page_copy
  std::int64_t gain_ps{0};        ///< a step: breaks removed x break_read; negative for a loss
  /// Steps after which the plan has paid: ceil(cost / gain); the largest integer when it never
  /// does.
  std::int64_t break_even_steps{std::numeric_limits<std::int64_t>::max()};
};

struct MovePlan {
  std::vector<PageMove> moves;      ///< ascending by source
  std::vector<TablePatch> patches;  ///< ascending by table and index
  PlanForecast forecast;
  /// Moves that the whole objective takes at least, without a budget: frontier: exactly those that
  /// are left; straighten: half the breaks, since a move mends two at most; granules: the live
  /// pages of the granules that can be emptied.
  PageCount lower_bound{0};
  /// Fragmentation in the terms of the objective: frontier: lower_bound / live; straighten:
  /// breaks / entries that could have one; granules: granules to empty / granules in use.
  std::int64_t fragmentation_permille{0};
  PlanReason reason{PlanReason::packed};
  bool running{false};  ///< pass on as hysteresis.running
};

/// O(pages + table entries). Throws InvalidArgument for options outside their range, a snapshot
/// whose arrays differ in size, a table that names a page outside the pool; InvariantError for a
/// table that names a page that is not live, or a page named by more tables than it has references:
/// such a snapshot is of a broken pool, and nothing of it is moved.
[[nodiscard]] MovePlan plan_moves(const PoolSnapshot& snapshot, const PlanOptions& options);

}  // namespace packstone
