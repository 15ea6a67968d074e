// SPDX-License-Identifier: Apache-2.0
// Four bytes make the options, then three a command build a pool; plans are applied until one is
// empty, which must come. A KvManager refuses any move that does not fit, so every exception is a
// finding.
#include <packstone/move_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

using namespace packstone;

constexpr PageCount kPages = 48;

void require(bool holds) {
  if (!holds) std::abort();
}

void build(KvManager& manager, const std::uint8_t* data, std::size_t size) {
  std::vector<SeqId> live;
  for (std::size_t i = 0; i + 3 <= size; i += 3) {
    const std::uint8_t op = data[i] % 6;
    SeqId seq;
    if (op == 0 || live.empty()) {
      require(manager.create(seq) == Status::ok);
      live.push_back(seq);
      (void)manager.append(seq, data[i + 2] % 12);
      continue;
    }
    const std::size_t at = data[i + 1] % live.size();
    switch (op) {
      case 1:
      case 2:
        (void)manager.append(live[at], data[i + 2] % 6);
        break;
      case 3:
        if (live.size() > 12) break;
        require(manager.fork(live[at], data[i + 2] % (manager.length(live[at]) + 1), seq) ==
                Status::ok);
        live.push_back(seq);
        break;
      case 4:
        manager.finish(live[at]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        if (!manager.pages(live[at]).empty() && data[i + 2] % 4 == 0) manager.pin(live[at], 0, 1);
        break;
    }
    (void)manager.take_copies();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  KvManager manager(
      {.pages = kPages, .page_size = 2, .policy = (data[0] & 1U) != 0 ? "fifo" : "run"});
  build(manager, data + 4, size - 4);
  const PageId held[] = {PageId{data[3] % static_cast<std::int32_t>(kPages)}};
  PlanOptions options{.objective = static_cast<PlanObjective>(data[0] / 2 % 3),
                      .moves_max = data[1] % 32,
                      .keep_free = data[2] % 4,
                      .run_target = 2 + data[2] / 4 % 16,
                      .granule_bytes = 100 + data[3] * Bytes{3},
                      .granule_page_bytes = 100};
  if ((data[1] & 128U) != 0) options.held = held;
  PageCount bound = -1;
  PageCount moved = 0;
  for (Epoch epoch = 1;; ++epoch) {
    require(epoch < 500);
    const MovePlan plan = plan_moves(manager.snapshot(), options);
    require(static_cast<PageCount>(plan.moves.size()) <= options.moves_max);
    require(plan.moves.empty() == (plan.reason != PlanReason::planned));
    if (bound < 0) bound = plan.lower_bound;
    if (plan.moves.empty()) {
      const bool room = options.moves_max > 0 && plan.reason != PlanReason::no_free_pages;
      if (options.objective == PlanObjective::frontier && room) require(moved == bound);
      return 0;
    }
    moved += static_cast<PageCount>(plan.moves.size());
    manager.apply(plan.moves, plan.patches, epoch);
    manager.check();
    manager.reclaim(epoch);
  }
}
