// SPDX-License-Identifier: Apache-2.0
// Tree-verify attention: prefix over the paged pool, masked tree tail, schedule and merge included.
// Each iteration calls it on several disjoint sets of slots in turn, of more bytes than the L2, so
// that KV rows come from memory. Bytes count the prefix's KV rows once, flops the prefix only; the
// card's own limits are measured in the same process.
//
//   bench_verify                                    the 14 shapes of docs/performance.md, MLA, bf16
//   bench_verify --shape 1,8,65,65536 --dtype e4m3 --page 16 --placement fresh
//   bench_verify --kind gqa --kv-heads 8 --head-dim 128 --shape 64,64,1,16384
//   bench_verify --placement churned                as a first-in-first-out free list gives them
//   bench_verify --placement tables.txt             page ids, one a line, used in that order
//   PACKSTONE_BENCH_SMOKE=1 bench_verify            a small size: that it runs
#include "bench/device_bench.cuh"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/stream.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

namespace packstone::bench {
namespace {

struct Shape {
  std::int32_t batch;
  std::int32_t heads;
  std::int32_t q_len;
  std::int32_t length;
};

constexpr Shape kShapes[] = {
    {1, 8, 65, 4096},   {1, 8, 65, 65536},  {1, 8, 65, 189440}, {8, 8, 65, 16384},
    {1, 8, 9, 65536},   {1, 8, 9, 189440},  {8, 8, 9, 16384},   {1, 8, 1, 189440},
    {1, 16, 33, 65536}, {1, 64, 17, 65536}, {8, 64, 17, 16384}, {1, 128, 4, 65536},
    {32, 16, 1, 16384}, {64, 128, 1, 8192},
};
constexpr Shape kSmokeShape{2, 8, 9, 512};

struct Settings {
  std::vector<Shape> shapes;
  AttentionKind kind{AttentionKind::mla};
  std::int32_t kv_heads{8};
  std::int32_t head_dim{128};
  KvType type{KvType::bf16};
  std::int32_t page_size{1};
  std::string placement{"random"};
  bool prefix_only{false};
  bool batch_invariant{false};
  ScheduleUse schedule{ScheduleUse::make};
};

/// Random values of about 0.05 in the 16-bit formats and in e4m3, whose scales (in rows that have
/// them) become ordinary numbers too.
__global__ void fill_values(std::uint32_t* words, std::int64_t count, KvType type) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    auto x = static_cast<std::uint32_t>(i) * 2654435761U;
    x = (x ^ (x >> 15U)) * 0x2C1B3C6DU;
    x ^= x >> 13U;
    const std::int64_t word = i % (kMlaTileRowBytes / 4);
    const bool tile_row = type == KvType::e4m3_tile;
    if (tile_row && word >= kMlaTileScaleOffset / 4 && word < kMlaTileRopeOffset / 4) {
      words[i] = 0x3F000000U;  // 0.5F
    } else if (type == KvType::e4m3 || (tile_row && word < kMlaTileScaleOffset / 4)) {
      words[i] = (x & 0x80808080U) | ((x & 0x07070707U) + 0x18181818U);
    } else if (type == KvType::fp16) {
      words[i] = (x & 0x83FF83FFU) | 0x28002800U;
    } else {
      words[i] = (x & 0x807F807FU) | 0x3D003D00U;
    }
  }
}

DeviceMemory values(Bytes bytes, KvType type) {
  DeviceMemory memory(bytes);
  fill_values<<<4096, 256>>>(memory.as<std::uint32_t>(), bytes / 4, type);
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  return memory;
}

/// Page ids of `count` pages by placement, of a pool of count + 1; a file may name others.
std::vector<std::int32_t> placed_pages(const std::string& placement, std::int64_t count) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 1);
  if (placement == "fresh") return pages;
  if (placement == "random") {
    std::mt19937_64 random(1);
    std::ranges::shuffle(pages, random);
  } else if (placement == "stride") {
    // Neighbours lie a fixed odd distance apart, so that no two are adjacent.
    for (std::int64_t i = 0; i < count; ++i)
      pages[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 4099 % count) + 1;
    if (std::gcd(std::int64_t{4099}, count) != 1) return placed_pages("random", count);
  } else if (placement == "churned") {
    std::ranges::transform(churned_pages(count, 1), pages.begin(), index_of);
  } else {
    std::ifstream file(placement);
    for (auto& page : pages) {
      if (!(file >> page) || page < 1)
        throw std::runtime_error(placement + ": fewer than " + std::to_string(count) +
                                 " page ids from 1 up");
    }
  }
  return pages;
}

/// One case with everything it needs on the device.
class Case {
 public:
  Case(const Settings& settings, const Shape& shape) : shape_(shape) {
    const bool mla = settings.kind == AttentionKind::mla;
    const std::int64_t row =
        mla ? mla_row_bytes(settings.type)
            : value_bytes(settings.type, settings.head_dim) * settings.kv_heads;
    row_bytes_ = mla ? row : 2 * row;
    const std::int64_t tail = settings.prefix_only ? 0 : shape.q_len;
    const std::int64_t pages_each = pages_for(shape.length + tail, settings.page_size);
    const std::int64_t set_bytes = shape.batch * pages_each * settings.page_size * row_bytes_;
    sets_ = std::clamp<std::int64_t>((Bytes{300} << 20) / set_bytes + 1, 2, 8);
    const auto pages = placed_pages(settings.placement, sets_ * shape.batch * pages_each);
    const std::int64_t slots =
        (std::int64_t{*std::ranges::max_element(pages)} + 1) * settings.page_size;
    keys_ = values(slots * row, settings.type);
    if (!mla) values_ = values(slots * row, settings.type);
    table_ = on_device(pages);
    set_entries_ = shape.batch * pages_each;
    std::vector<std::int32_t> lengths(static_cast<std::size_t>(shape.batch), shape.length);
    std::vector<std::int32_t> offsets;
    std::vector<std::int32_t> parents;
    std::mt19937_64 random(2);
    for (std::int32_t b = 0; b <= shape.batch; ++b) offsets.push_back(b * shape.q_len);
    for (std::int32_t i = 0; i < shape.batch * shape.q_len; ++i) {
      const std::int32_t node = i % shape.q_len;
      parents.push_back(
          node == 0 ? -1 : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(node)));
    }
    lengths_ = on_device(lengths);
    offsets_ = on_device(offsets);
    parents_ = on_device(parents);
    set_params(settings, row, pages_each);
    VerifyPlanOptions options;
    options.bounds = {shape.batch, params_.tokens, shape.q_len,
                      static_cast<std::int32_t>(shape.length + tail)};
    options.batch_invariant = settings.batch_invariant;
    schedule_ = settings.schedule;
    verify_ = std::make_unique<TreeVerify>(options);
    workspace_ = DeviceMemory(verify_->workspace_bytes(params_));
  }

  [[nodiscard]] std::int64_t sets() const { return sets_; }
  void run(std::int64_t set, cudaStream_t stream) {
    params_.table.entries = table_.as<std::int32_t>() + set % sets_ * set_entries_;
    // All sets have the same lengths and trees, so they can share a schedule as layers do.
    const ScheduleUse use = has_run_ ? schedule_ : ScheduleUse::make;
    verify_->run(params_, workspace_.data(), workspace_.bytes(), stream, {}, use);
    has_run_ = true;
  }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(shape_.batch) * shape_.length * static_cast<double>(row_bytes_);
  }
  [[nodiscard]] double flops() const {
    return 2.0 * shape_.batch * shape_.q_len * shape_.heads * static_cast<double>(shape_.length) *
           (params_.head_dim_k + params_.head_dim_v);
  }

 private:
  void set_params(const Settings& settings, std::int64_t row, std::int64_t pages_each) {
    const bool mla = settings.kind == AttentionKind::mla;
    VerifyParams& p = params_;
    p.kind = settings.kind;
    p.heads = shape_.heads;
    p.kv_heads = mla ? 1 : settings.kv_heads;
    p.head_dim_k = mla ? kMlaKeyDim : settings.head_dim;
    p.head_dim_v = mla ? kMlaLatentDim : settings.head_dim;
    p.rope_dim = mla ? kMlaRopeDim : 0;
    p.batch = shape_.batch;
    p.tokens = shape_.batch * shape_.q_len;
    p.prefix_lens = lengths_.as<std::int32_t>();
    p.q_indptr = offsets_.as<std::int32_t>();
    const FloatType q_type = settings.type == KvType::fp16 ? FloatType::fp16 : FloatType::bf16;
    const std::int64_t q_head = std::int64_t{2} * p.head_dim_k;
    const std::int64_t out_head = std::int64_t{2} * p.head_dim_v;
    q_ = values(p.tokens * p.heads * q_head,
                q_type == FloatType::fp16 ? KvType::fp16 : KvType::bf16);
    out_ = DeviceMemory(p.tokens * p.heads * out_head);
    lse_ = DeviceMemory(std::int64_t{4} * p.tokens * p.heads);
    p.q = {q_.data(), q_type, p.heads * q_head, q_head};
    p.kv_type = settings.type;
    p.pool.k = keys_.data();
    p.pool.k_stride_row = row;
    p.pool.rows = keys_.bytes() / row;
    if (!mla) {
      p.pool.v = values_.data();
      p.pool.v_stride_row = row;
      p.pool.k_stride_head = p.pool.v_stride_head = row / settings.kv_heads;
    }
    p.table = {table_.data(), IndexType::int32, settings.page_size, pages_each, nullptr};
    p.tail_place = settings.prefix_only ? TailPlace::none : TailPlace::pool;
    p.mask.kind = shape_.q_len > 1 ? MaskKind::parents : MaskKind::causal;
    p.mask.parents = parents_.as<std::int32_t>();
    p.scale = mla ? 0.0722F : 0.0884F;
    p.output = {out_.data(),      FloatType::bf16,           p.heads * out_head, out_head,
                lse_.as<float>(), std::int64_t{4} * p.heads, LseBase::natural};
  }

  Shape shape_;
  std::int64_t row_bytes_;
  std::int64_t sets_;
  std::int64_t set_entries_;
  ScheduleUse schedule_{ScheduleUse::make};
  bool has_run_{false};
  VerifyParams params_;
  DeviceMemory keys_, values_, table_, lengths_, offsets_, parents_, q_, out_, lse_, workspace_;
  std::unique_ptr<TreeVerify> verify_;
};

void verify(benchmark::State& state, const Settings& settings, const Shape& shape) {
  Case work(settings, shape);
  Stream stream;
  Timer timer;
  const std::int64_t calls = std::max<std::int64_t>(work.sets(), 8);
  for (std::int64_t i = 0; i < calls; ++i) work.run(i, stream.get());
  std::vector<double> times;
  for (auto _ : state) {
    timer.start(stream.get());
    for (std::int64_t i = 0; i < calls; ++i) work.run(i, stream.get());
    timer.stop(stream.get());
    times.push_back(timer.seconds() / static_cast<double>(calls));
    state.SetIterationTime(times.back());
  }
  if (times.empty()) return;
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  state.counters["median_us"] = median * 1e6;
  state.counters["GB/s"] = work.bytes() / median * 1e-9;
  state.counters["TFLOP/s"] = work.flops() / median * 1e-12;
  state.counters["ceiling_GB/s"] = copy_ceiling() * 1e-9;
  state.counters["fraction"] = work.bytes() / median / copy_ceiling();
}

// ---- limits of the card ----

/// Reads rows of 1,152 bytes at given places, a warp a row, and keeps a sum so that nothing is left
/// out.
__global__ void gather_rows(const uint4* rows, const std::int32_t* places, std::int64_t count,
                            std::uint32_t* sink) {
  constexpr int kPieces = 72;
  const unsigned lane = threadIdx.x & 31U;
  std::uint32_t sum = 0;
  const std::int64_t warps = std::int64_t{gridDim.x} * blockDim.x / 32;
  for (std::int64_t i = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32; i < count;
       i += warps) {
    const uint4* row = rows + std::int64_t{places[i]} * kPieces;
#pragma unroll
    for (int piece = 0; piece < kPieces; piece += 32) {
      if (piece + static_cast<int>(lane) >= kPieces) continue;
      const uint4 x = row[piece + static_cast<int>(lane)];
      sum += x.x ^ x.y ^ x.z ^ x.w;
    }
  }
  if (sum == 0x12345678U) *sink = sum;
}

void gather_ceiling(benchmark::State& state) {
  constexpr Bytes kRow = 1152;
  const std::int64_t rows = smoke() ? 10'000 : 4'000'000;
  const DeviceMemory memory = values(rows * kRow, KvType::bf16);
  const DeviceMemory places = on_device(placed_pages("random", rows - 1));
  const DeviceMemory sink(4);
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t on) {
    gather_rows<<<2048, 512, 0, on>>>(memory.as<uint4>(), places.as<std::int32_t>(), rows - 1,
                                      sink.as<std::uint32_t>());
  });
  state.counters["GB/s"] =
      static_cast<double>((rows - 1) * kRow) / state.counters["median_us"] * 1e-3;
}

constexpr int kProducts = 16;

/// mma.sync m16n8k16 in bf16 on registers, eight independent sums a warp.
__global__ void __launch_bounds__(256) multiply_registers(float* sink, int repeats) {
#if __CUDA_ARCH__ >= 800
  float c[kProducts][4] = {};
  std::uint32_t a[4];
  for (unsigned i = 0; i < 4; ++i) a[i] = 0x3F803F80U + threadIdx.x + i;
  for (int r = 0; r < repeats; ++r) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[1]), "r"(a[3]));
    }
  }
  float sum = 0.0F;
  for (int i = 0; i < kProducts; ++i) sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = sum;
#endif
}

void product_ceiling(benchmark::State& state) {
  const int blocks = current_device_limits().multiprocessors;
  const int repeats = smoke() ? 100 : 20'000;
  const DeviceMemory sink(Bytes{4} * blocks * 256);
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t on) {
    multiply_registers<<<static_cast<unsigned>(blocks), 256, 0, on>>>(sink.as<float>(), repeats);
  });
  state.counters["TFLOP/s"] = 8.0 * blocks * kProducts * static_cast<double>(repeats) * 4096.0 /
                              state.counters["median_us"] * 1e-6;
}

void copy_limit(benchmark::State& state) {
  const Bytes bytes = smoke() ? Bytes{16} << 20 : Bytes{1} << 30;
  const DeviceMemory from = values(bytes, KvType::bf16);
  const DeviceMemory to(bytes);
  Stream stream;
  measure(state, stream.get(), [&](cudaStream_t on) {
    PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(bytes),
                                         cudaMemcpyDeviceToDevice, on));
  });
  state.counters["GB/s"] = 2.0 * static_cast<double>(bytes) / state.counters["median_us"] * 1e-3;
}

std::string name_of(const Settings& settings, const Shape& shape) {
  std::string name = settings.kind == AttentionKind::mla ? "mla/" : "gqa/";
  name += std::string(to_string(settings.type)) + "/page:" + std::to_string(settings.page_size) +
          "/" + (settings.placement.find('/') == std::string::npos ? settings.placement : "file") +
          (settings.prefix_only ? "/prefix_only" : "") +
          (settings.schedule == ScheduleUse::reuse ? "/reused_schedule" : "");
  return name + "/" + std::to_string(shape.batch) + "," + std::to_string(shape.heads) + "," +
         std::to_string(shape.q_len) + "," + std::to_string(shape.length);
}

void register_all(const Settings& settings) {
  const auto add = [](const std::string& name, auto&& body) {
    benchmark::RegisterBenchmark(name.c_str(), body)
        ->UseManualTime()
        ->Iterations(smoke() ? 1 : 7)
        ->Unit(benchmark::kMicrosecond);
  };
  add("limit/copy", copy_limit);
  add("limit/gather_1152", gather_ceiling);
  add("limit/mma_bf16", product_ceiling);
  for (const Shape& shape : settings.shapes) {
    add(name_of(settings, shape),
        [settings, shape](benchmark::State& state) { verify(state, settings, shape); });
  }
}

int main_of(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> shapes;
  CLI::App app("Tree-verify attention");
  app.add_option("--shape", shapes, "batch,heads,q_len,length; may be repeated");
  app.add_option("--kind", settings.kind, "mla or gqa")
      ->transform(CLI::CheckedTransformer(std::map<std::string, AttentionKind>{
          {"mla", AttentionKind::mla}, {"gqa", AttentionKind::gqa}}));
  app.add_option("--kv-heads", settings.kv_heads, "gqa only");
  app.add_option("--head-dim", settings.head_dim, "gqa only: 64, 128 or 256");
  app.add_option("--dtype", settings.type, "of KV rows")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, KvType>{{"bf16", KvType::bf16},
                                                                {"fp16", KvType::fp16},
                                                                {"e4m3", KvType::e4m3},
                                                                {"e4m3_tile", KvType::e4m3_tile}}));
  app.add_option("--page", settings.page_size, "tokens a page")->check(CLI::PositiveNumber);
  app.add_option("--placement", settings.placement,
                 "fresh, churned, random, stride, or a file of page ids");
  app.add_flag("--prefix-only", settings.prefix_only, "no tail and no mask");
  app.add_flag_callback(
      "--reuse-schedule", [&] { settings.schedule = ScheduleUse::reuse; },
      "as in the layers of a model after the first");
  app.add_flag("--batch-invariant", settings.batch_invariant, "cut at fixed multiples of tokens");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& text : shapes) {
    Shape shape{};
    if (std::sscanf(text.c_str(), "%d,%d,%d,%d", &shape.batch, &shape.heads, &shape.q_len,
                    &shape.length) != 4) {
      std::fprintf(stderr, "--shape %s: not batch,heads,q_len,length\n", text.c_str());
      return 1;
    }
    settings.shapes.push_back(shape);
  }
  if (settings.shapes.empty()) {
    settings.shapes.assign(std::begin(kShapes), std::end(kShapes));
    if (smoke()) settings.shapes = {kSmokeShape};
  }
  register_all(settings);
  return run_registered();
}

}  // namespace
}  // namespace packstone::bench

int main(int argc, char** argv) {
  return packstone::bench::run_on_device(argc, argv, packstone::bench::main_of);
}
