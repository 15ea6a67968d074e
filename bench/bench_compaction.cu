// SPDX-License-Identifier: Apache-2.0
// What moving pages costs. Each rate stands beside the copy ceiling of the same process: the
// counter `ratio` is bytes read plus written a second over those of cudaMemcpyAsync device to
// device.
//
//   bench_compaction --benchmark_format=console
//   PACKSTONE_BENCH_TUNE=1 bench_compaction --benchmark_filter=tune   every shape of the move
//   kernel PACKSTONE_BENCH_SMOKE=1 bench_compaction                          small sizes: that it
//   runs
#include "bench/device_bench.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/draft_commit.hpp>
#include <packstone/cuda/page_table.hpp>
#include <packstone/cuda/transfer.hpp>
#include <packstone/move_plan.hpp>

#include <cub/device/device_memcpy.cuh>

#include <array>
#include <chrono>
#include <memory>
#include <string>

namespace packstone::bench {
namespace {

/// One plane of `bytes`-byte pages over the whole arena.
DevicePool plane_pool(Bytes bytes) {
  const PoolLayout layout{.page_size = 1, .buffers = {{"plane", {bytes}, 1}}};
  return DevicePool(layout, arena().bytes() / bytes,
                    std::array{WrappedPlane{arena().data(), bytes}});
}

Bytes moved_bytes() {
  return smoke() ? Bytes{4} << 20 : Bytes{1} << 30;
}

void report_rate(benchmark::State& state, Bytes bytes_each_way) {
  const double seconds = state.counters["median_us"] * 1e-6;
  const double rate = 2.0 * static_cast<double>(bytes_each_way) / seconds;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["ceiling_GB/s"] = copy_ceiling() * 1e-9;
  state.counters["ratio"] = rate / copy_ceiling();
  state.SetBytesProcessed(state.iterations() * 2 * bytes_each_way);
}

/// Where the pages of a plan lie.
enum class Pattern {
  random,      ///< random pages to random pages, in random order: the worst case
  packing,     ///< random pages to consecutive ones, as a planner that packs gives them
  contiguous,  ///< consecutive pages to consecutive pages: what the kernel does without the places
  spreading,   ///< consecutive pages to random ones: what scattered writes cost, without the reads
  ordered,     ///< as random, but in the order of the destinations
  planned,     ///< the planner's own, straightening a churned pool; fewer where it has fewer
};

const char* to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::random:
      return "random";
    case Pattern::packing:
      return "packing";
    case Pattern::contiguous:
      return "contiguous";
    case Pattern::spreading:
      return "spreading";
    case Pattern::ordered:
      return "ordered";
    case Pattern::planned:
      return "planned";
  }
  return "unknown";
}

/// Three quarters of a pool given out from a churned free list, straightened by one plan.
std::vector<PageMove> planned_moves(PageCount pages, std::int64_t count) {
  const std::vector<PageId> churned = churned_pages(std::min<PageCount>(pages - 1, 2'000'000), 1);
  PoolSnapshot snapshot;
  snapshot.states.assign(churned.size() + 1, PageState::free);
  snapshot.references.assign(churned.size() + 1, 0);
  snapshot.states[0] = PageState::live;
  snapshot.references[0] = 1;
  const std::size_t table = std::min<std::size_t>(4096, churned.size() / 8);
  for (std::size_t at = 0; at + table <= churned.size() * 3 / 4; at += table) {
    const auto first = churned.begin() + static_cast<std::ptrdiff_t>(at);
    snapshot.tables.push_back({SeqId{static_cast<std::uint32_t>(at / table), 0},
                               static_cast<TokenCount>(table),
                               {first, first + static_cast<std::ptrdiff_t>(table)}});
    for (const PageId page : snapshot.tables.back().pages) {
      snapshot.states[static_cast<std::size_t>(index_of(page))] = PageState::live;
      snapshot.references[static_cast<std::size_t>(index_of(page))] = 1;
    }
  }
  return plan_moves(snapshot, {.objective = PlanObjective::straighten,
                               .moves_max = std::max<std::int64_t>(count, 1),
                               .run_target = 256})
      .moves;
}

std::vector<PageMove> moves_of(Pattern pattern, PageCount pages, std::int64_t count) {
  if (pattern == Pattern::planned) return planned_moves(pages, count);
  std::vector<PageMove> moves;
  if (pattern == Pattern::random || pattern == Pattern::ordered) {
    moves = random_moves(pages, count);
    if (pattern == Pattern::ordered) std::ranges::sort(moves, {}, &PageMove::to);
    return moves;
  }
  const auto first = static_cast<std::int32_t>(pages - count);
  const std::vector<PageId> scattered = random_pages(first, count, 2);
  for (std::int32_t i = 0; i < count; ++i) {
    const PageId near{1 + i};
    const PageId far{first + i};
    const PageId any = scattered[static_cast<std::size_t>(i)];
    if (pattern == Pattern::packing) moves.push_back({any, far});
    if (pattern == Pattern::contiguous) moves.push_back({near, far});
    if (pattern == Pattern::spreading) moves.push_back({far, any});
  }
  return moves;
}

void move_planes(benchmark::State& state, Bytes bytes, const MoverTuning& tuning, Pattern pattern) {
  const DevicePool pool = plane_pool(bytes);
  const PageMover mover(std::array{&pool}, tuning);
  const std::int64_t count = moved_bytes() / bytes;
  const DeviceMoves list(moves_of(pattern, pool.pages(), count));
  if (list.size() == 0) return state.SkipWithError("the plan has no moves");
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t s) {
    mover.copy({list.moves(), list.count(), list.size()}, s);
  });
  report_rate(state, list.size() * bytes);
}

/// The same copies by cub::DeviceMemcpy::Batched, which takes any addresses and sizes.
void move_by_cub(benchmark::State& state, Bytes bytes, Pattern pattern) {
  const DevicePool pool = plane_pool(bytes);
  const std::int64_t count = moved_bytes() / bytes;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const PageMove& move : moves_of(pattern, pool.pages(), count)) {
    from.push_back(arena().data() + static_cast<std::int32_t>(move.from) * bytes);
    to.push_back(arena().data() + static_cast<std::int32_t>(move.to) * bytes);
  }
  const std::vector<Bytes> sizes(from.size(), bytes);
  const DeviceMemory sources = on_device(from);
  const DeviceMemory destinations = on_device(to);
  const DeviceMemory lengths = on_device(sizes);
  const auto copy = [&](void* scratch, std::size_t& scratch_bytes, cudaStream_t s) {
    PACKSTONE_CUDA_CHECK(cub::DeviceMemcpy::Batched(
        scratch, scratch_bytes, sources.as<const void*>(), destinations.as<void*>(),
        lengths.as<Bytes>(), static_cast<std::int64_t>(from.size()), s));
  };
  std::size_t scratch_bytes = 0;
  copy(nullptr, scratch_bytes, nullptr);
  const DeviceMemory scratch(static_cast<Bytes>(scratch_bytes));
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t s) { copy(scratch.data(), scratch_bytes, s); });
  report_rate(state, static_cast<std::int64_t>(from.size()) * bytes);
}

/// All layers of a model in one launch: 61 layers of MLA, pages of 16 tokens.
void move_layers(benchmark::State& state, PoolOrder order, KvType type) {
  const PoolLayout layout =
      mla_layout({.layers = smoke() ? 2 : 61, .page_size = 16, .order = order, .type = type});
  const PageCount pages = smoke() ? 200 : 16'000;
  const DevicePool pool(layout, {.pages = pages});
  const PageMover mover(std::array{&pool}, {});
  const std::int64_t count = std::min<std::int64_t>(pages / 4, moved_bytes() / pool.page_bytes());
  const DeviceMoves list(random_moves(pages, count));
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t s) {
    mover.copy({list.moves(), list.count(), list.size()}, s);
  });
  report_rate(state, count * pool.page_bytes());
}

/// Reads `words` 16-byte words; each block a stretch of its own, as the splits of a decode step.
__global__ void stand_in(const uint4* words, std::int64_t per_block, unsigned* sink) {
  const uint4* mine = words + blockIdx.x * per_block;
  unsigned sum = 0;
  for (std::int64_t i = threadIdx.x; i < per_block; i += blockDim.x * 4) {
    uint4 v[4] = {};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const std::int64_t at = i + u * static_cast<std::int64_t>(blockDim.x);
      if (at < per_block) v[u] = mine[at];
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (sum == 0x12345678U) *sink = sum;
}

/// Steps of a bandwidth-bound reader, alone and beside a step of 256 MiB on `multiprocessors`.
void overlap(benchmark::State& state) {
  const auto multiprocessors = static_cast<std::int32_t>(state.range(0));
  // Attention's step: half of the arena; the pages that move are in the other half.
  const Bytes half = arena().bytes() / 2;
  const Bytes read = state.range(1) * (half / 16);
  const PoolLayout layout{.page_size = 16, .buffers = {{"mla", {1152}, 16}}};
  const Bytes page = 16 * 1152;
  std::vector<WrappedPlane> planes;
  const PageCount pages = half / 16 / page;
  for (int layer = 0; layer < 16; ++layer) {
    planes.push_back({arena().data() + half + layer * (half / 16), page});
  }
  const DevicePool pool(layout, pages, planes);
  DevicePageTable table({.rows = 64, .columns = 4096, .page_size = 16, .pages = pages});
  const std::int64_t count = (smoke() ? Bytes{4} << 20 : Bytes{256} << 20) / pool.page_bytes();
  Compactor compactor(std::array{&pool},
                      std::array{PatchedArray{.entries = table.data(), .count = table.entries()}},
                      {.moves_max = count, .tuning = {.multiprocessors = multiprocessors}});
  const DeviceMemory sink(4);
  Stream attention;
  Stream moves(true);
  constexpr Bytes kBlockBytes = Bytes{2} << 20;
  const auto step = [&] {
    stand_in<<<static_cast<unsigned>(read / kBlockBytes), 512, 0, attention.get()>>>(
        arena().as<uint4>(), kBlockBytes / 16, sink.as<unsigned>());
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
  };
  Timer timer;
  Timer beside;
  std::vector<double> alone;
  std::vector<double> together;
  std::vector<double> of_moves;
  std::vector<double> host_us;
  for (auto _ : state) {
    timer.start(attention.get());
    step();
    timer.stop(attention.get());
    alone.push_back(timer.seconds());
    const std::vector<PageMove> plan = random_moves(pages, count, alone.size());
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    beside.start(moves.get());
    const auto begin = std::chrono::steady_clock::now();
    const bool queued = compactor.compact(plan, moves.get());
    host_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
    beside.stop(moves.get());
    timer.start(attention.get());
    step();
    timer.stop(attention.get());
    together.push_back(timer.seconds());
    of_moves.push_back(beside.seconds());
    state.SetIterationTime(together.back());
    if (!queued) state.SkipWithError("no staging block was free");
  }
  if (alone.empty()) return;
  const double base = percentile(alone, 0.5);
  state.counters["SMs"] = multiprocessors;
  state.counters["step_GiB"] = static_cast<double>(read) / (1 << 30);
  state.counters["alone_us"] = base * 1e6;
  state.counters["alone_p99_us"] = percentile(alone, 0.99) * 1e6;
  state.counters["slowdown_%"] = (percentile(together, 0.5) / base - 1) * 100;
  state.counters["pause_p50_us"] = (percentile(together, 0.5) - base) * 1e6;
  state.counters["pause_p99_us"] = (percentile(together, 0.99) - base) * 1e6;
  state.counters["pause_max_us"] = (percentile(together, 1) - base) * 1e6;
  state.counters["move_us"] = percentile(of_moves, 0.5) * 1e6;
  state.counters["host_call_us"] = percentile(host_us, 0.5);
  // What moving the bytes must cost a reader that is bound by memory, however it is done.
  state.counters["floor_%"] =
      2.0 * static_cast<double>(count * pool.page_bytes()) / copy_ceiling() / base * 100;
}

/// The patch alone: a table that names many pages, of which few have moved.
void patch(benchmark::State& state) {
  const std::int64_t columns = smoke() ? 64 : 12'000;
  const DevicePool pool({.page_size = 16, .buffers = {{"k", {16}, 1}}}, {.pages = 1 << 20});
  DevicePageTable table({.rows = 256, .columns = columns, .page_size = 16, .pages = 1 << 20});
  for (std::int64_t row = 0; row < 256; ++row) {
    table.set(row, 0,
              random_pages(1 << 15, std::min<std::int64_t>(columns, 1 << 14),
                           static_cast<std::uint64_t>(row)));
    if (row % 4 == 3) {
      while (!table.flush(nullptr)) {
      }
    }
  }
  PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
  Compactor compactor(std::array{&pool},
                      std::array{PatchedArray{.entries = table.data(), .count = table.entries()}},
                      {});
  const std::vector<PageMove> moves = random_moves(1 << 20, state.range(0));
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t s) {
    while (!compactor.compact(moves, s)) {
    }
  });
  state.counters["entries"] = static_cast<double>(table.entries());
}

/// Commit of `range(0)` sequences of 65 nodes, 6 accepted, in 61 layers.
void commit(benchmark::State& state) {
  const auto batch = static_cast<std::int32_t>(state.range(0));
  const PoolLayout layout = mla_layout({.layers = 61, .page_size = state.range(1)});
  const std::int64_t columns = 128 / layout.page_size + 2;
  const PageCount pages = batch * columns + 2;
  const DevicePool pool(layout, {.pages = pages});
  DevicePageTable table(
      {.rows = batch, .columns = columns, .page_size = layout.page_size, .pages = pages});
  const std::vector<PageId> ids = random_pages(pages, batch * columns, 3);
  for (std::int32_t b = 0; b < batch; ++b) {
    table.set(b, 0,
              std::span(ids).subspan(static_cast<std::size_t>(b * columns),
                                     static_cast<std::size_t>(columns)));
  }
  if (!table.flush(nullptr)) state.SkipWithError("no staging block was free");
  const DraftCommit draft(pool, {.batch_max = batch, .nodes_max = 65});
  std::vector<std::int32_t> words(static_cast<std::size_t>(batch * 67), 0);
  const std::array<std::int32_t, 6> path{1, 4, 9, 20, 33, 50};
  for (std::int32_t b = 0; b < batch; ++b) {
    words[static_cast<std::size_t>(b)] = 30;
    words[static_cast<std::size_t>(batch + b)] = 6;
    std::ranges::copy(path, words.begin() + 2 * batch + 65 * b);
  }
  const DeviceMemory memory(static_cast<Bytes>(words.size() * 4));
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(memory.data(), words.data(), words.size() * 4, cudaMemcpyHostToDevice));
  const auto* at = memory.as<std::int32_t>();
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t s) {
    draft.commit({.table = table.view(),
                  .batch = batch,
                  .lengths = at,
                  .counts = at + batch,
                  .path = at + 2 * batch,
                  .path_stride = 65},
                 s);
  });
  state.counters["rows"] = 6.0 * batch * 61;
}

void add(const std::string& name, int iterations, auto work) {
  benchmark::RegisterBenchmark(name.c_str(), [work](benchmark::State& state) { work(state); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(smoke() ? 2 : iterations);
}

void register_all() {
  add("copy_ceiling", 1, [](benchmark::State& state) {
    for (auto _ : state) state.SetIterationTime(1);
    state.counters["GB/s"] = copy_ceiling() * 1e-9;
  });
  constexpr std::array<Bytes, 6> kSizes{656, 1152, 10'496, 18'432, 73'728, 1'124'352};
  for (const Bytes bytes : kSizes) {
    const std::string size = std::to_string(bytes);
    using enum Pattern;
    for (const Pattern pattern : {random, ordered, packing, spreading, contiguous, planned}) {
      // One plan of small pages is too short to say anything of bandwidth.
      if (pattern == planned && bytes < 18'432) continue;
      add("move/" + size + "/" + to_string(pattern), 15,
          [=](benchmark::State& state) { move_planes(state, bytes, {}, pattern); });
    }
    add("move_by_cub/" + size + "/random", 15,
        [=](benchmark::State& state) { move_by_cub(state, bytes, random); });
    add("move_registers/" + size + "/random", 15, [=](benchmark::State& state) {
      move_planes(state, bytes, {.bulk = false}, Pattern::random);
    });
  }
  for (const KvType type : {KvType::bf16, KvType::e4m3_tile}) {
    for (const PoolOrder order : {PoolOrder::layer_major, PoolOrder::page_major}) {
      add(std::string("move_61_layers/") + to_string(type) +
              (order == PoolOrder::layer_major ? "/layer_major" : "/page_major"),
          15, [=](benchmark::State& state) { move_layers(state, order, type); });
    }
  }
  for (const std::int64_t sms : {4, 8, 16, 32, 132}) {
    benchmark::RegisterBenchmark("overlap_256MiB", overlap)
        ->Args({sms, 16})
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(smoke() ? 2 : 100);
  }
  benchmark::RegisterBenchmark("upload_move_patch_3M_entries", patch)
      ->Arg(1)
      ->Arg(4096)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(smoke() ? 2 : 15);
  benchmark::RegisterBenchmark("commit_61_layers", commit)
      ->Args({1, 1})
      ->Args({1, 64})
      ->Args({64, 64})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(smoke() ? 2 : 15);
  if (std::getenv("PACKSTONE_BENCH_TUNE") == nullptr) return;
  struct Shape {
    std::int32_t blocks, warps, stages, stage, claim;
  };
  constexpr std::array kShapes{Shape{1, 8, 2, 4608, 2}, Shape{1, 8, 2, 4608, 4},
                               Shape{1, 8, 2, 4608, 8}, Shape{1, 8, 2, 2304, 8},
                               Shape{1, 8, 4, 2304, 8}, Shape{1, 8, 4, 4608, 4},
                               Shape{1, 8, 2, 9216, 2}, Shape{1, 8, 2, 9216, 4},
                               Shape{2, 8, 2, 4608, 4}, Shape{1, 4, 2, 18'432, 1}};
  for (const Bytes bytes : {Bytes{1152}, Bytes{18'432}}) {
    for (const Shape& shape : kShapes) {
      for (const Pattern pattern : {Pattern::random, Pattern::contiguous}) {
        const std::string name = std::to_string(shape.blocks) + "x" + std::to_string(shape.warps) +
                                 "x" + std::to_string(shape.stages) + "x" +
                                 std::to_string(shape.stage) + "x" + std::to_string(shape.claim);
        add("tune/" + std::to_string(bytes) + "/" + name + "/" + to_string(pattern), 9,
            [=](benchmark::State& state) {
              move_planes(state, bytes,
                          {.warps = shape.warps,
                           .stages = shape.stages,
                           .stage_bytes = shape.stage,
                           .blocks_per_multiprocessor = shape.blocks,
                           .claim_tiles = shape.claim},
                          pattern);
            });
      }
    }
  }
}

}  // namespace
}  // namespace packstone::bench

int main(int argc, char** argv) {
  return packstone::bench::run_benchmarks(argc, argv, packstone::bench::register_all);
}
