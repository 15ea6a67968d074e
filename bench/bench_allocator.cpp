// SPDX-License-Identifier: Apache-2.0
// What a page costs, measured on the CPU: allocation and release in a pool of 1,000,000 pages, half
// full, fresh and churned, under every policy, and a batched decode. Beside it, in the same
// process, the free list of the tensor allocators: slice the head, concatenate what is freed.
//
// Every figure is "a pair": one page allocated and one released. `fraction` is the time of a bare
// stack of ids, in the same process, over it.
//
//   bench_allocator --benchmark_out=allocator.json --benchmark_out_format=json
#include <packstone/kv_manager.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace packstone {
namespace {

constexpr PageCount kPages = 1'000'000;

void require(bool holds, benchmark::State& state, const char* what) {
  if (!holds) state.SkipWithError(what);
}

/// A pool of kPages, half of it in extents of `extent` pages: fresh, or after two turnovers of
/// churn by extents of random length, so that the free order and the free runs are those of a used
/// pool.
class Pool {
 public:
  Pool(const std::string& policy, std::size_t extent, bool churned)
      : allocator_({.pages = kPages, .placement = {.policy = policy}}),
        random_(1),
        extent_(extent) {
    if (churned) churn();
    const PageCount extents =
        (allocator_.available() - kPages / 2) / static_cast<PageCount>(extent);
    live_.resize(extent * static_cast<std::size_t>(extents));
    for (std::size_t i = 0; i < live_.size(); i += extent_) {
      if (allocator_.allocate({.owner = 1}, std::span(live_).subspan(i, extent)) != Status::ok) {
        throw Error("the pool ran short while it was filled");
      }
    }
    order_.resize(kOrder);
    for (std::size_t& each : order_) {
      each = random_() % static_cast<std::size_t>(extents) * extent;
    }
  }

  /// Releases an extent chosen at random and allocates another in its place.
  bool pair() {
    // The caller's table is his own affair: its miss is kept out of the figure, those of the
    // allocator on a page chosen at random are in it.
    // (DoNotOptimize on a variable in memory reads nothing.)
    __builtin_prefetch(&live_[order_[(next_ + 8) % kOrder]], 1);
    const auto extent = std::span(live_).subspan(order_[next_++ % kOrder], extent_);
    allocator_.release(extent);
    return allocator_.allocate({.owner = 1}, extent) == Status::ok;
  }

  void check() const { allocator_.check(); }

 private:
  static constexpr std::size_t kOrder = 1U << 16U;

  void churn() {
    std::vector<std::vector<PageId>> extents;
    for (PageCount turned = 0; turned < 3 * kPages;) {
      std::vector<PageId> pages(1 + random_() % 64);
      if (allocator_.available() > kPages / 4 &&
          allocator_.allocate({.owner = 1}, pages) == Status::ok) {
        turned += std::ssize(pages);
        extents.push_back(std::move(pages));
        continue;
      }
      for (std::size_t i = 0; i < 64; ++i) {
        std::swap(extents[random_() % extents.size()], extents.back());
        allocator_.release(extents.back());
        extents.pop_back();
      }
    }
    // A quarter of them stay for good, as holes between what follows.
    while (allocator_.available() < kPages - kPages / 8) {
      allocator_.release(extents.back());
      extents.pop_back();
    }
  }

  PageAllocator allocator_;
  std::mt19937_64 random_;
  std::size_t extent_;
  std::vector<PageId> live_;        // extent after extent
  std::vector<std::size_t> order_;  // where the extents to replace begin
  std::size_t next_{0};
};

void count_pages(benchmark::State& state, std::int64_t pages_each) {
  state.SetItemsProcessed(state.iterations() * pages_each);
  state.counters["seconds_per_page"] =
      benchmark::Counter(static_cast<double>(state.iterations() * pages_each),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// Of this process, whoever else has the machine.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// Seconds of a pair through a bare stack of ids, nothing checked and nothing known of the pages:
/// the ids are copied off its top and others back onto it. What no allocator can be below.
double floor_seconds(std::size_t extent) {
  std::vector<PageId> stack(kPages / 2);
  std::vector<PageId> taken(extent);
  const auto pairs = static_cast<int>(std::max<std::size_t>(20'000'000 / extent, 20'000));
  const double start = processor_seconds();
  for (int i = 0; i < pairs; ++i) {
    std::copy(stack.end() - static_cast<std::ptrdiff_t>(extent), stack.end(), taken.begin());
    stack.resize(stack.size() - extent);
    benchmark::DoNotOptimize(taken.data());
    stack.insert(stack.end(), taken.begin(), taken.end());
    benchmark::DoNotOptimize(stack.data());
    benchmark::ClobberMemory();
  }
  return (processor_seconds() - start) / pairs;
}

/// Bounded, so that g++ 13 does not think of copies past the address space.
std::size_t pages_of(const benchmark::State& state) {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(state.range(0), 1, kPages));
}

void extent_pair(benchmark::State& state, const std::string& policy, bool churned) {
  Pool pool(policy, pages_of(state), churned);
  const double start = processor_seconds();
  for (auto _ : state) require(pool.pair(), state, "out of pages");
  const double pair = (processor_seconds() - start) / static_cast<double>(state.iterations());
  pool.check();
  count_pages(state, state.range(0));
  const double floor = floor_seconds(pages_of(state));
  state.counters["floor_seconds"] = floor;
  state.counters["fraction"] = floor / pair;
}

/// The tensor allocators' list on the host: the head is a view, a release copies the whole list.
void concatenating_list_pair(benchmark::State& state) {
  const auto extent = pages_of(state);
  std::mt19937_64 random(1);
  std::vector<std::int64_t> list(kPages / 2);
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int64_t>(2 * i + 1);
  std::shuffle(list.begin(), list.end(), random);
  std::vector<std::vector<std::int64_t>> live(256);
  std::size_t head = 0;
  std::size_t next = 0;
  const auto allocate = [&](std::vector<std::int64_t>& out) {
    const auto first = list.begin() + static_cast<std::ptrdiff_t>(head);
    out.assign(first, first + static_cast<std::ptrdiff_t>(extent));
    head += extent;
  };
  for (auto& each : live) {
    if (list.size() - head < extent) break;
    allocate(each);
  }
  for (auto _ : state) {
    std::vector<std::int64_t>& victim = live[next++ % live.size()];
    std::vector<std::int64_t> joined;
    joined.reserve(list.size() - head + victim.size());
    joined.insert(joined.end(), list.begin() + static_cast<std::ptrdiff_t>(head), list.end());
    joined.insert(joined.end(), victim.begin(), victim.end());
    list = std::move(joined);
    head = 0;
    allocate(victim);
    benchmark::DoNotOptimize(victim.data());
  }
  count_pages(state, state.range(0));
}

/// One token for every sequence of a batch, page size 1; a sequence that has come to 2,048 tokens
/// starts anew.
void decode(benchmark::State& state, const std::string& policy) {
  constexpr TokenCount kLongest = 2048;
  KvManager manager({.pages = kPages, .page_size = 1, .policy = policy});
  std::vector<SeqId> batch(static_cast<std::size_t>(state.range(0)));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    require(manager.create(batch[i]) == Status::ok, state, "out of sequences");
    require(manager.append(batch[i], static_cast<TokenCount>(i) * kLongest / state.range(0)) ==
                Status::ok,
            state, "out of pages");
  }
  std::vector<SlotId> slots(batch.size());
  for (auto _ : state) {
    for (const SeqId seq : batch) {
      if (manager.length(seq) >= kLongest) manager.truncate(seq, 0);
    }
    require(manager.decode(batch, slots) == Status::ok, state, "out of pages");
    benchmark::DoNotOptimize(slots.data());
  }
  manager.check();
  count_pages(state, state.range(0));
}

void register_all() {
  for (const std::string_view each : placement_names()) {
    const std::string policy(each);
    for (const bool churned : {false, true}) {
      const std::string name = "extent_pair/" + policy + (churned ? "/churned" : "/fresh");
      benchmark::RegisterBenchmark(name.c_str(), extent_pair, policy, churned)
          ->Arg(1)
          ->Arg(16)
          ->Arg(1024);
    }
    benchmark::RegisterBenchmark(("decode/" + policy).c_str(), decode, policy)->Arg(128)->Arg(256);
  }
  benchmark::RegisterBenchmark("extent_pair/concatenating_list", concatenating_list_pair)
      ->Arg(1)
      ->Arg(16)
      ->Arg(1024);
}

}  // namespace
}  // namespace packstone

int main(int argc, char** argv) {
  packstone::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
