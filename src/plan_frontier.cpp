// SPDX-License-Identifier: Apache-2.0
#include "move_plan_view.hpp"

#include <algorithm>

namespace packstone::detail {

PlanReason plan_frontier(PlanView& view, PlanGate& gate, Outlook& outlook) {
  // Two fingers: holes from the bottom, pages from the top, until they meet. The page under the
  // upper finger at the end is the mark.
  std::vector<std::int32_t> holes;
  std::vector<std::int32_t> sources;
  PageCount movable = 0;
  std::int32_t low = 0;
  std::int32_t high = view.pages();
  while (true) {
    do ++low;
    while (low < high && view.place(low) != Place::free);
    do --high;
    while (high > low && !view.movable(high));
    if (low >= high) break;
    movable += 1;
    if (movable <= view.left()) {
      holes.push_back(low);
      sources.push_back(high);
    }
  }
  outlook.lower_bound = movable;
  outlook.fragmentation_permille =
      view.live() == 0 ? 0 : (movable * 1000 + view.live() - 1) / view.live();
  if (movable == 0) return PlanReason::packed;
  if (!gate.open(outlook.fragmentation_permille)) return PlanReason::below_threshold;
  if (sources.empty()) return view.limit();
  std::ranges::reverse(sources);
  for (std::size_t i = 0; i < sources.size(); ++i) view.move(sources[i], holes[i]);
  return PlanReason::planned;
}

}  // namespace packstone::detail
