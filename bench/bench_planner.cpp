// SPDX-License-Identifier: Apache-2.0
// Time of one plan (measured-cpu), and what straightening does to a pool that fifo has churned.
#include "tests/mean_run.hpp"

#include <packstone/move_plan.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

namespace packstone {
namespace {

/// Independent of the standard library's distributions, so that a seed means the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::int64_t below(std::int64_t bound) {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
    return static_cast<std::int64_t>((x ^ (x >> 31U)) % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_;
};

/// `running` sequences of prompts 200..2,200 tokens that decode 50..450 more, replaced as they end:
/// about the shape of a chat service.
class Churn {
 public:
  Churn(PageCount pages, std::int64_t page_size, std::int64_t running, std::uint64_t seed)
      : manager_({.pages = pages, .page_size = page_size, .policy = "fifo"}),
        random_(seed),
        running_(running) {}
  KvManager& manager() { return manager_; }
  void step() {
    while (static_cast<std::int64_t>(live_.size()) < running_) {
      Live next;
      const TokenCount prompt = 200 + random_.below(2000);
      if (manager_.available_pages() < pages_for(prompt + 512, manager_.page_size()) ||
          manager_.create(next.seq) != Status::ok) {
        break;
      }
      if (manager_.append(next.seq, prompt) != Status::ok) std::abort();
      next.left = 50 + random_.below(400);
      live_.push_back(next);
    }
    std::vector<SeqId> batch;
    for (const Live& each : live_) batch.push_back(each.seq);
    while (manager_.decode(batch) != Status::ok) {
      manager_.finish(live_.back().seq);
      live_.pop_back();
      batch.pop_back();
    }
    for (std::size_t i = 0; i < live_.size();) {
      if (--live_[i].left > 0) {
        ++i;
        continue;
      }
      manager_.finish(live_[i].seq);
      live_[i] = live_.back();
      live_.pop_back();
    }
  }

 private:
  struct Live {
    SeqId seq;
    std::int64_t left{0};
  };
  KvManager manager_;
  Random random_;
  std::int64_t running_;
  std::vector<Live> live_;
};

// A million pages, 70 % live, in sequences of `length` pages that lie anywhere.
PoolSnapshot scattered(std::int32_t pages, std::int64_t length) {
  Random random(1);
  PoolSnapshot snapshot;
  snapshot.states.assign(static_cast<std::size_t>(pages), PageState::free);
  snapshot.references.assign(static_cast<std::size_t>(pages), 0);
  snapshot.states[0] = PageState::reserved;
  std::vector<PageId> order;
  for (std::int32_t i = 1; i < pages; ++i) order.push_back(PageId{i});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
  const auto live = static_cast<std::int64_t>(order.size()) * 7 / 10;
  for (std::int64_t i = 0; i < live; ++i) {
    if (i % length == 0) {
      const auto index = static_cast<std::uint32_t>(snapshot.tables.size());
      snapshot.tables.push_back({.seq = {index, index + 1}, .length = length, .pages = {}});
    }
    const PageId page = order[static_cast<std::size_t>(i)];
    snapshot.tables.back().pages.push_back(page);
    snapshot.states[static_cast<std::size_t>(index_of(page))] = PageState::live;
    snapshot.references[static_cast<std::size_t>(index_of(page))] = 1;
  }
  return snapshot;
}

void plan(benchmark::State& state, PlanObjective objective) {
  const PoolSnapshot snapshot = scattered(1 << 20, state.range(0));
  const PlanOptions options{
      .objective = objective, .moves_max = 4096, .granule_page_bytes = 16 * 1152};
  std::size_t moves = 0;
  for (auto _ : state) {
    const MovePlan result = plan_moves(snapshot, options);
    moves = result.moves.size();
    benchmark::DoNotOptimize(moves);
  }
  state.counters["moves"] = static_cast<double>(moves);
}
BENCHMARK_CAPTURE(plan, frontier, PlanObjective::frontier)
    ->Arg(4)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, straighten, PlanObjective::straighten)
    ->Arg(4)
    ->Arg(64)
    ->Arg(1000)
    ->Arg(100000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(plan, granules, PlanObjective::granules)
    ->Arg(4)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond);

// Churns until fifo has scattered everything, then plans 256 moves a step beside running decode.
void straighten_beside_decode(benchmark::State& state) {
  for (auto _ : state) {
    Churn churn(1 << 16, state.range(0), 32 * state.range(0), 7);
    for (int i = 0; i < 12000; ++i) churn.step();
    KvManager& manager = churn.manager();
    state.counters["run_before"] = test::mean_run(manager);
    state.counters["occupancy"] =
        1.0 - static_cast<double>(manager.available_pages()) / static_cast<double>(1 << 16);
    std::int64_t moved = 0;
    std::int64_t mended = 0;
    for (std::int64_t i = 1; i <= 4000; ++i) {
      churn.step();
      (void)manager.take_copies();
      const MovePlan result = plan_moves(manager.snapshot(), {.moves_max = 256});
      manager.apply(result.moves, result.patches, static_cast<Epoch>(i));
      moved += static_cast<std::int64_t>(result.moves.size());
      mended += result.forecast.runs_before - result.forecast.runs_after;
      manager.reclaim(static_cast<Epoch>(i) - 1);
      if (i == 100 || i == 250 || i == 500 || i == 1000 || i == 2000 || i == 4000) {
        state.counters["run_" + std::to_string(i)] = test::mean_run(manager);
      }
    }
    state.counters["mended_per_move"] = static_cast<double>(mended) / static_cast<double>(moved);
    state.counters["moved"] = static_cast<double>(moved);
    state.counters["sequences"] = static_cast<double>(manager.sequences());
  }
}
BENCHMARK(straighten_beside_decode)->Arg(1)->Arg(16)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace packstone

BENCHMARK_MAIN();
