// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <packstone/move_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace packstone::detail {

/// What a plan may do with a page.
enum class Place : std::uint8_t {
  wall,    ///< nothing: page 0, reserved, pinned, held, or already part of this plan
  coming,  ///< retired: free once its readers are done
  free,    ///< a destination
  live,    ///< a source
  shared,  ///< a source that more than one table may name
};

/// The pool as the objectives see it, and the moves that they have chosen so far.
class PlanView {
 public:
  PlanView(const PoolSnapshot& snapshot, const PlanOptions& options);

  [[nodiscard]] const PoolSnapshot& snapshot() const { return snapshot_; }
  [[nodiscard]] const PlanOptions& options() const { return options_; }
  [[nodiscard]] std::int32_t pages() const { return static_cast<std::int32_t>(places_.size()); }
  [[nodiscard]] Place place(std::int32_t page) const {
    return places_[static_cast<std::size_t>(page)];
  }
  [[nodiscard]] bool movable(std::int32_t page) const { return place(page) >= Place::live; }
  void wall_off(std::int32_t page) { places_[static_cast<std::size_t>(page)] = Place::wall; }
  /// Undoes wall_off of a free page.
  void free_again(std::int32_t page) { places_[static_cast<std::size_t>(page)] = Place::free; }
  /// Moves that budget, bytes and free pages still allow.
  [[nodiscard]] PageCount left() const { return left_; }
  /// Live pages, pinned and held ones too.
  [[nodiscard]] PageCount live() const { return live_; }
  /// Highest live page, 0 when there is none.
  [[nodiscard]] std::int32_t frontier() const { return frontier_; }
  /// Why not one move is allowed; `planned` when one is.
  [[nodiscard]] PlanReason limit() const { return limit_; }

  void move(std::int32_t from, std::int32_t to);
  [[nodiscard]] std::vector<PageMove>& moves() { return moves_; }

 private:
  const PoolSnapshot& snapshot_;
  const PlanOptions& options_;
  std::vector<Place> places_;
  std::vector<PageMove> moves_;
  PageCount left_{0};
  PageCount live_{0};
  std::int32_t frontier_{0};
  PlanReason limit_{PlanReason::planned};
};

/// What an objective found before it made moves.
struct Outlook {
  PageCount lower_bound{0};
  std::int64_t fragmentation_permille{0};
};

/// Each looks first, returns the outlook, and makes moves only when `go` agrees to it.
class PlanGate {
 public:
  explicit PlanGate(const PlanHysteresis& hysteresis) : hysteresis_(hysteresis) {}
  /// Decides whether fragmentation is worth a move, and remembers the answer.
  bool open(std::int64_t permille) {
    const std::int64_t bound =
        hysteresis_.running ? hysteresis_.stop_permille : hysteresis_.start_permille;
    open_ = permille > 0 && permille >= bound;
    return open_;
  }
  [[nodiscard]] bool is_open() const { return open_; }

 private:
  PlanHysteresis hysteresis_;
  bool open_{false};
};

PlanReason plan_frontier(PlanView& view, PlanGate& gate, Outlook& outlook);
PlanReason plan_straighten(PlanView& view, PlanGate& gate, Outlook& outlook);
PlanReason plan_granules(PlanView& view, PlanGate& gate, Outlook& outlook, PageCount& emptied);

/// Free runs by length, shortest that fits first, lowest address first among equals.
///
/// Pages may leave the free state behind its back; a run is looked at again when it is taken.
class FreeRuns {
 public:
  explicit FreeRuns(const PlanView& view);
  /// A free run of at least `count` pages: its first page; the rest stays listed. -1: none.
  [[nodiscard]] std::int32_t take(std::int32_t count);
  /// Length of the longest free run.
  [[nodiscard]] std::int32_t longest();

 private:
  static constexpr std::int32_t kShort = 64;
  void put(PageRun run);
  /// The shortest listed run of at least `count` pages, taken off the lists.
  [[nodiscard]] PageRun pop(std::int32_t count);
  /// Lists what of the run is still free; true when that is all of it, which is then not listed.
  [[nodiscard]] bool settle(PageRun run);

  const PlanView& view_;
  std::array<std::vector<std::int32_t>, kShort> short_;   // first pages, the next one at the back
  std::set<std::pair<std::int32_t, std::int32_t>> long_;  // length and first page
};

}  // namespace packstone::detail
