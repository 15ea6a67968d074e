// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the GPU benchmarks share: `main`, manual time from events with L2 flushed before each
/// iteration, the copy ceiling of the same process, and random pages.

#include <packstone/cuda/memory.hpp>
#include <packstone/kv_manager.hpp>
#include <packstone/units.hpp>

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace packstone::bench {

using namespace packstone::cuda;

/// Small sizes for ctest: that everything runs, not how fast.
inline bool smoke() {
  return std::getenv("PACKSTONE_BENCH_SMOKE") != nullptr;
}

inline bool device_present() {
  int devices = 0;
  const bool found = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  (void)cudaGetLastError();
  return found;
}

/// Runs `run(argc, argv)`, which sees the arguments that Google Benchmark does not know, and gives
/// its result; on a machine without a device says so, which its caller takes for a skip.
template <typename Run>
int run_on_device(int argc, char** argv, Run&& run) {
  if (!device_present()) {
    std::puts("no CUDA device");
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  return run(argc, argv);
}

/// Runs what was registered.
inline int run_registered() {
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// Runs what `add` registers; there are no arguments but Google Benchmark's.
template <typename Register>
int run_benchmarks(int argc, char** argv, Register&& add) {
  return run_on_device(argc, argv, [&](int count, char** left) {
    if (benchmark::ReportUnrecognizedArguments(count, left)) return 1;
    add();
    return run_registered();
  });
}

class Timer {
 public:
  Timer() {
    PACKSTONE_CUDA_CHECK(cudaEventCreate(&start_));
    PACKSTONE_CUDA_CHECK(cudaEventCreate(&stop_));
  }
  ~Timer() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void start(cudaStream_t stream) { PACKSTONE_CUDA_CHECK(cudaEventRecord(start_, stream)); }
  void stop(cudaStream_t stream) { PACKSTONE_CUDA_CHECK(cudaEventRecord(stop_, stream)); }
  /// Waits for the stop.
  [[nodiscard]] double seconds() const {
    float ms = 0;
    PACKSTONE_CUDA_CHECK(cudaEventSynchronize(stop_));
    PACKSTONE_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, stop_));
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t start_{};
  cudaEvent_t stop_{};
};

/// Writes over twice the L2, so that nothing of the last iteration is left in it.
inline void flush_l2(cudaStream_t stream) {
  static const DeviceMemory memory([] {
    int device = 0;
    int bytes = 0;
    PACKSTONE_CUDA_CHECK(cudaGetDevice(&device));
    PACKSTONE_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    return Bytes{2} * bytes;
  }());
  PACKSTONE_CUDA_CHECK(
      cudaMemsetAsync(memory.data(), 0x5A, static_cast<std::size_t>(memory.bytes()), stream));
}

/// Runs `work(stream)` each iteration between events, L2 flushed before.
template <typename Work>
void measure(benchmark::State& state, cudaStream_t stream, Work&& work) {
  Timer timer;
  work(stream);  // warm: modules loaded, clocks up
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<double> times;
  for (auto _ : state) {
    flush_l2(stream);
    timer.start(stream);
    work(stream);
    timer.stop(stream);
    times.push_back(timer.seconds());
    state.SetIterationTime(times.back());
  }
  if (times.empty()) return;
  std::ranges::sort(times);
  state.counters["median_us"] = times[times.size() / 2] * 1e6;
}

/// Median seconds of a copy, L2 flushed before each.
inline double copy_seconds(void* to, const void* from, Bytes bytes, cudaMemcpyKind kind,
                           int repeats) {
  Stream stream;
  Timer timer;
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    flush_l2(stream.get());
    timer.start(stream.get());
    PACKSTONE_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream.get()));
    timer.stop(stream.get());
    if (i >= 2) times.push_back(timer.seconds());
    PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

static __global__ void randomise_words(std::uint64_t* words, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t x = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    words[i] = x ^ (x >> 31);
  }
}

template <typename T>
DeviceMemory on_device(const std::vector<T>& from) {
  DeviceMemory memory(static_cast<Bytes>(from.size() * sizeof(T)));
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(memory.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

/// Device memory of random bytes, shared by the benchmarks that only need room.
inline const DeviceMemory& arena() {
  static const DeviceMemory memory = [] {
    // Another size through PACKSTONE_BENCH_ARENA_GIB: how far apart pages lie is part of the cost.
    const char* const given = std::getenv("PACKSTONE_BENCH_ARENA_GIB");
    const Bytes usual = Bytes{given == nullptr ? 32 : std::atoi(given)} << 30;
    DeviceMemory result(smoke() ? Bytes{64} << 20 : usual);
    randomise_words<<<4096, 256>>>(result.as<std::uint64_t>(), result.bytes() / 8);
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    return result;
  }();
  return memory;
}

/// Bytes read plus written a second by cudaMemcpyAsync, device to device, in this process.
inline double copy_ceiling() {
  static const double rate = [] {
    const Bytes bytes = smoke() ? Bytes{16} << 20 : Bytes{1} << 30;
    return 2.0 * static_cast<double>(bytes) /
           copy_seconds(arena().data() + arena().bytes() / 2, arena().data(), bytes,
                        cudaMemcpyDeviceToDevice, 15);
  }();
  return rate;
}

/// `count` distinct pages of 1 .. pages - 1, in random order.
inline std::vector<PageId> random_pages(PageCount pages, std::int64_t count, std::uint64_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(pages - 1));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) + 1;
  std::mt19937_64 random(seed);
  std::vector<PageId> result;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::swap(ids[i], ids[i + random() % (ids.size() - i)]);
    result.push_back(PageId{ids[i]});
  }
  return result;
}

/// Random pages to random pages.
inline std::vector<PageMove> random_moves(PageCount pages, std::int64_t count,
                                          std::uint64_t seed = 1) {
  const std::vector<PageId> ids = random_pages(pages, 2 * count, seed);
  std::vector<PageMove> moves;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    moves.push_back({ids[2 * i], ids[2 * i + 1]});
  }
  return moves;
}

/// The pages of `count` that a first-in-first-out free list gives out once sequences of random
/// lengths have turned a pool of count + 1 pages over sixteen times, in its order.
inline std::vector<PageId> churned_pages(std::int64_t count, std::uint64_t seed) {
  KvManager manager({.pages = count + 1, .page_size = 1, .policy = "fifo"});
  std::mt19937_64 random(seed);
  std::vector<SeqId> live;
  const auto longest = static_cast<std::uint64_t>(std::max<std::int64_t>(count / 32, 1));
  for (std::int64_t turned = 0; turned < 16 * count;) {
    const auto pages = static_cast<std::int64_t>(1 + random() % longest);
    SeqId seq;
    if (manager.create(seq) != Status::ok) break;
    while (manager.append(seq, pages) != Status::ok) {
      std::swap(live[random() % live.size()], live.back());
      manager.finish(live.back());
      live.pop_back();
    }
    live.push_back(seq);
    turned += pages;
  }
  std::ranges::shuffle(live, random);
  for (const SeqId seq : live) manager.finish(seq);
  SeqId all;
  if (manager.create(all) != Status::ok || manager.append(all, count) != Status::ok) return {};
  const std::span<const PageId> pages = manager.pages(all);
  return {pages.begin(), pages.end()};
}

/// A list of moves in device memory.
class DeviceMoves {
 public:
  explicit DeviceMoves(const std::vector<PageMove>& moves)
      : memory_(static_cast<Bytes>(16 + moves.size() * sizeof(PageMove))),
        count_(static_cast<std::int32_t>(moves.size())) {
    PACKSTONE_CUDA_CHECK(cudaMemcpy(memory_.data(), &count_, 4, cudaMemcpyHostToDevice));
    PACKSTONE_CUDA_CHECK(cudaMemcpy(memory_.data() + 16, moves.data(),
                                    moves.size() * sizeof(PageMove), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] const PageMove* moves() const {
    return reinterpret_cast<const PageMove*>(memory_.data() + 16);
  }
  [[nodiscard]] const std::int32_t* count() const { return memory_.as<std::int32_t>(); }
  [[nodiscard]] std::int32_t size() const { return count_; }

 private:
  DeviceMemory memory_;
  std::int32_t count_;
};

inline double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(p * last + 0.5)];
}

}  // namespace packstone::bench
