// SPDX-License-Identifier: Apache-2.0
// The pool beside its moves: pages to and from the host, memory given back to the driver, pages
// taken and released inside a graph.
//
//   bench_pool --benchmark_format=console
//   PACKSTONE_BENCH_SMOKE=1 bench_pool          small sizes: that it runs
#include "bench/device_bench.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_free_list.hpp>
#include <packstone/cuda/transfer.hpp>
#include <packstone/kv_manager.hpp>
#include <packstone/move_plan.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

namespace packstone::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// ---- transfers ----

const PinnedMemory& host_memory() {
  static const PinnedMemory memory(smoke() ? Bytes{8} << 20 : Bytes{512} << 20);
  return memory;
}

/// Bytes a second of one contiguous copy of all of host_memory(), in this process.
double contiguous_rate(bool to_host) {
  const auto measure_one = [](bool out) {
    const Bytes bytes = host_memory().bytes();
    const double seconds =
        out ? copy_seconds(host_memory().data(), arena().data(), bytes, cudaMemcpyDeviceToHost, 5)
            : copy_seconds(arena().data(), host_memory().data(), bytes, cudaMemcpyHostToDevice, 5);
    return static_cast<double>(bytes) / seconds;
  };
  static const double out = measure_one(true);
  static const double in = measure_one(false);
  return to_host ? out : in;
}

/// Pages of `page` bytes in runs of `run` pages, spread over the arena at random.
void transfer(benchmark::State& state, Bytes page, std::int64_t run, TransferMethod method,
              bool to_host, std::int32_t multiprocessors) {
  const PageCount pages = std::min<Bytes>(arena().bytes() / page, 12'000'000);
  const DevicePool pool({.page_size = 1, .buffers = {{"plane", {page}, 1}}}, pages,
                        std::array{WrappedPlane{arena().data(), page}});
  const std::int64_t count = host_memory().bytes() / page / run * run;
  if (count == 0) return state.SkipWithError("a run exceeds the smoke size");
  std::vector<PageId> list;
  // A gap of one page between runs, so that neighbours do not merge.
  for (const PageId slot : random_pages((pages - 1) / (run + 1), count / run, 5)) {
    for (std::int64_t i = 0; i < run; ++i) {
      list.push_back(PageId{static_cast<std::int32_t>((index_of(slot) - 1) * (run + 1) + 1 + i)});
    }
  }
  Transfer object(
      pool,
      {.pages_max = count,
       .tuning = {
           .multiprocessors = multiprocessors, .warps = 4, .stages = 4, .stage_bytes = 9216}});
  Stream stream;
  bool done = true;
  measure(state, stream.get(), [&](cudaStream_t s) {
    done = done && (to_host ? object.gather(list, host_memory().data(), method, s)
                            : object.scatter(list, host_memory().data(), method, s));
  });
  if (!done) return state.SkipWithError("no staging block was free");
  const double rate = static_cast<double>(count * page) / (state.counters["median_us"] * 1e-6);
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["contiguous_GB/s"] = contiguous_rate(to_host) * 1e-9;
  state.counters["ratio"] = rate / contiguous_rate(to_host);
  state.counters["piece_KiB"] = static_cast<double>(page * run) / 1024;
}

// ---- memory given back ----

/// A pool churned by `fifo`; then steps of the planner's `granules` objective, executed, and the
/// emptied granules released.
void reclaim(benchmark::State& state, const PoolLayout& layout, PageCount pages) {
  const Bytes buffer_page = page_bytes(layout.buffers.front(), layout.page_size);
  DevicePool pool(layout, {.pages = pages, .virtual_memory = true});
  KvManager manager({.pages = pages, .page_size = layout.page_size, .policy = "fifo"});
  std::mt19937_64 random(29);
  std::vector<SeqId> live;
  const auto finish_one = [&] {
    const std::size_t victim = random() % live.size();
    manager.finish(live[victim]);
    live[victim] = live.back();
    live.pop_back();
  };
  for (int request = 0; request < 3000; ++request) {
    const double u = static_cast<double>(random() % 1000) / 1000;
    const auto tokens = layout.page_size * 6 * static_cast<std::int64_t>(std::exp(3 * u));
    SeqId seq;
    if (manager.create(seq) != Status::ok) continue;
    while (manager.append(seq, tokens) != Status::ok) finish_one();
    live.push_back(seq);
  }
  while (manager.available_pages() < pages * 6 / 10) finish_one();

  const auto liveness = [&] {
    std::vector<std::uint8_t> needed(static_cast<std::size_t>(pages), 0);
    const PoolSnapshot snapshot = manager.snapshot();
    for (std::size_t p = 0; p < needed.size(); ++p) {
      needed[p] = snapshot.states[p] == PageState::free ? 0 : 1;
    }
    return needed;
  };
  EventFence fence;
  const Bytes free_bytes = manager.available_pages() * pool.page_bytes();
  const Bytes before = pool.release_unused(liveness(), fence).value_or(-1);
  Compactor compactor(std::array{static_cast<const DevicePool*>(&pool)}, {}, {});
  Stream stream;
  Bytes moved = 0;
  std::int64_t steps = 0;
  for (auto _ : state) {
    const auto begin = Clock::now();
    for (; steps < 200; ++steps) {
      const MovePlan plan = plan_moves(manager.snapshot(), {.objective = PlanObjective::granules,
                                                            .moves_max = 512,
                                                            .bytes_per_page = pool.page_bytes(),
                                                            .granule_page_bytes = buffer_page});
      if (plan.moves.empty()) break;
      // Destinations in released granules are backed again before they are written.
      std::vector<PageId> destinations;
      for (const PageMove& move : plan.moves) destinations.push_back(move.to);
      pool.commit(destinations);
      manager.apply(plan.moves, plan.patches, fence.next());
      if (!compactor.compact(plan.moves, stream.get())) break;
      fence.record(stream.get());
      moved += plan.forecast.bytes;
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
      manager.reclaim(fence.completed());
    }
    state.SetIterationTime(microseconds(begin) * 1e-6);
  }
  const auto begin = Clock::now();
  const Bytes after = pool.release_unused(liveness(), fence).value_or(-1);
  state.counters["release_ms"] = microseconds(begin) * 1e-3;
  constexpr double kMiB = 1 << 20;
  state.counters["pool_MiB"] = static_cast<double>(pool.memory().reserved) / kMiB;
  state.counters["free_MiB"] = static_cast<double>(free_bytes) / kMiB;
  state.counters["given_back_before_MiB"] = static_cast<double>(before) / kMiB;
  state.counters["given_back_after_MiB"] = static_cast<double>(before + after) / kMiB;
  // Committed now against what the live pages need: the true measure, whatever was re-backed.
  state.counters["uncommitted_MiB"] =
      static_cast<double>(pool.memory().reserved - pool.memory().committed) / kMiB;
  state.counters["moved_MiB"] = static_cast<double>(moved) / kMiB;
  state.counters["steps"] = static_cast<double>(steps);
}

// ---- the resident free list ----

/// One allocation and one release of `range(0)` pages inside a graph of 20 such pairs.
void free_list_graph(benchmark::State& state) {
  const auto pages = static_cast<std::int32_t>(state.range(0));
  constexpr int kPairs = 20;
  DeviceFreeList list({.pages = 1'000'000, .requests_max = 64});
  std::vector<std::int32_t> words(65, 0);
  words[0] = pages;
  words[64] = 1;
  const DeviceMemory asked(65 * 4);
  const DeviceMemory ids(Bytes{65'536} * 4);
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(asked.data(), words.data(), words.size() * 4, cudaMemcpyHostToDevice));
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PACKSTONE_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  for (int pair = 0; pair < kPairs; ++pair) {
    list.allocate(asked.as<std::int32_t>(), asked.as<std::int32_t>() + 64, ids.as<std::int32_t>(),
                  65'536, stream.get());
    list.release(ids.as<std::int32_t>(), &list.status()->taken, 65'536, stream.get());
  }
  PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  measure(state, stream.get(),
          [&](cudaStream_t s) { PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, s)); });
  state.counters["pair_us"] = state.counters["median_us"] / kPairs;
  PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
  PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
}

/// The same on the host: the twin, and the ids' way to the device through pinned memory.
void free_list_host(benchmark::State& state) {
  const auto pages = static_cast<std::int32_t>(state.range(0));
  LowestFreeList list(1'000'000);
  const PinnedMemory pinned(Bytes{65'536} * 4);
  const DeviceMemory ids(Bytes{65'536} * 4);
  Stream stream;
  std::vector<PageId> taken;
  std::vector<double> times;
  for (auto _ : state) {
    const auto begin = Clock::now();
    taken.clear();
    if (list.allocate(std::array{pages}, taken) != Status::ok) state.SkipWithError("shortage");
    std::memcpy(pinned.data(), taken.data(), taken.size() * 4);
    PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(ids.data(), pinned.data(), taken.size() * 4,
                                         cudaMemcpyHostToDevice, stream.get()));
    list.release(taken);
    times.push_back(microseconds(begin));
    state.SetIterationTime(times.back() * 1e-6);
    PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  }
  if (!times.empty()) state.counters["pair_us"] = percentile(times, 0.5);
}

const char* name_of(TransferMethod method) {
  switch (method) {
    case TransferMethod::staged:
      return "staged";
    case TransferMethod::direct:
      return "direct";
    case TransferMethod::batched:
      return "batched";
    case TransferMethod::automatic:
      break;
  }
  return "automatic";
}

void register_all() {
  const auto add = [](const std::string& name, int iterations, auto work) {
    return benchmark::RegisterBenchmark(name.c_str(), [work](benchmark::State& s) { work(s); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(smoke() ? 2 : iterations);
  };
  using Method = TransferMethod;
  for (const bool to_host : {true, false}) {
    const std::string way = to_host ? "to_host/" : "to_pool/";
    // 1,152-byte rows at page size 1 in runs of 1 to 4,096, and 72 KiB pages one by one.
    for (const std::int64_t run : {1, 16, 256, 4096}) {
      for (const Method method : {Method::staged, Method::direct, Method::automatic}) {
        add(way + name_of(method) + "/1152B/run:" + std::to_string(run), 5,
            [=](benchmark::State& s) { transfer(s, 1152, run, method, to_host, 16); });
      }
    }
    add(way + "batched/1152B/run:4096", 5,
        [=](benchmark::State& s) { transfer(s, 1152, 4096, Method::batched, to_host, 16); });
    for (const Method method : {Method::staged, Method::direct, Method::batched}) {
      add(way + name_of(method) + "/73728B/run:1", 5,
          [=](benchmark::State& s) { transfer(s, 73'728, 1, method, to_host, 16); });
    }
  }
  for (const std::int32_t multiprocessors : {4, 8, 32}) {
    for (const Method method : {Method::staged, Method::direct}) {
      add("to_host/" + std::string(name_of(method)) +
              "/1152B/run:1/SMs:" + std::to_string(multiprocessors),
          5, [=](benchmark::State& s) { transfer(s, 1152, 1, method, true, multiprocessors); });
    }
  }
  const std::int32_t layers = smoke() ? 2 : 27;
  const PageCount pages = smoke() ? 600 : 6000;
  add("reclaim_after_fifo_churn/mla_28_pages_a_granule", 1, [=](benchmark::State& s) {
    reclaim(s, mla_layout({.layers = layers, .page_size = 64}), pages);
  });
  add("reclaim_after_fifo_churn/gqa_64_pages_a_granule", 1, [=](benchmark::State& s) {
    reclaim(s, gqa_layout({.layers = layers, .page_size = 16}), pages);
  });
  for (const std::int64_t pages : {1, 64, 1024, 16'384, 65'536}) {
    add("free_list/graph/" + std::to_string(pages), 10, free_list_graph)->Arg(pages);
    add("free_list/host/" + std::to_string(pages), 10, free_list_host)->Arg(pages);
  }
}

}  // namespace
}  // namespace packstone::bench

int main(int argc, char** argv) {
  return packstone::bench::run_benchmarks(argc, argv, packstone::bench::register_all);
}
