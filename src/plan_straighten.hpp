// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "move_plan_view.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace packstone::detail {

/// Consecutive short runs of one table: what is worth moving. The run before it and the run behind
/// it, where there are any, stay where they are and may be continued.
struct Stretch {
  std::int64_t score{0};
  std::int32_t table{0};
  std::int32_t first{0};  ///< index in the table
  std::int32_t pages{0};
  std::int32_t runs{0};
  bool left{false};   ///< a run stands before it
  bool right{false};  ///< a run stands behind it
};

class Straightener {
 public:
  explicit Straightener(PlanView& view);
  /// Finds the stretches.
  void look(Outlook& outlook);
  PlanReason run(PlanGate& gate, const Outlook& outlook);

 private:
  /// A piece of a stretch that is shorter than this would have to be moved again soon.
  static constexpr std::int32_t kPieceMin = 16;

  void select();
  void attach_left(Stretch& stretch);
  void attach_right(Stretch& stretch);
  /// Whether the part is all of the stretch, or long enough not to be moved again soon.
  [[nodiscard]] bool worth_placing(const Stretch& part, const Stretch& stretch) const {
    return part.runs >= 2 && (part.pages == stretch.pages || part.pages >= piece_);
  }
  [[nodiscard]] Stretch best_part(const Stretch& stretch, std::int64_t cap) const;
  bool gather(Stretch& stretch, FreeRuns& free);

  struct Window {
    std::int32_t first{0};
    std::int32_t pages{0};
    std::int64_t cost{0};
  };
  void make_room(const std::vector<Stretch>& unplaced, FreeRuns& free);
  [[nodiscard]] Window cheapest_window(std::int32_t wanted, std::int64_t cost_max) const;
  /// Shrinks a window so that no run crosses its edge.
  void keep_runs_whole(Window& window) const;
  /// Whether one of the stretches has a piece for a free run of so many pages.
  [[nodiscard]] bool useful(const std::vector<Stretch>& unplaced, std::int32_t pages) const;
  /// What leaves a window: whole runs, each to a free run.
  struct Exit {
    std::int32_t from{0};
    std::int32_t to{0};
    std::int32_t pages{0};
  };
  /// Finds a place for every run of the window, which is cut off before the first that has none.
  [[nodiscard]] std::vector<Exit> exits_of(Window& window, FreeRuns& free);
  /// Whether page + 1 holds what comes after `page` in a table.
  [[nodiscard]] bool linked(std::int32_t page) const {
    return linked_[static_cast<std::size_t>(page)];
  }
  /// Where the pages of a window stand in the tables, by page of the window.
  struct Named {
    std::int32_t table{-1};
    std::int32_t index{0};
  };
  [[nodiscard]] std::vector<Named> names_in(const Window& window) const;
  /// The place that would continue the neighbours of an entry, when it is free; -1 when not.
  [[nodiscard]] std::int32_t joining_place(const Named& named) const;

  [[nodiscard]] std::int32_t page(const Stretch& stretch, std::int32_t index) const;
  [[nodiscard]] bool run_begins(const Stretch& stretch, std::int32_t index) const;
  [[nodiscard]] bool pays(std::int64_t gain, std::int64_t pages) const;
  void refused(std::int64_t gain) { refused_ = refused_ || gain > 0; }

  PlanView& view_;
  std::vector<bool> linked_;
  std::vector<Stretch> stretches_;
  std::int32_t anchor_;  // a run of so many pages stays
  std::int32_t piece_;
  PageCount budget_;  // of the whole plan
  bool refused_{false};
};

}  // namespace packstone::detail
