// SPDX-License-Identifier: Apache-2.0
// How fast the card reads rows by how they lie: row size, bytes of a run, bytes over which the runs
// are spread. Writes the table that the simulator's `modelled` figures come from.
//
//   bench_cost_curve --out sim/cost_curve.csv       7 times each; median, least and most
//   PACKSTONE_BENCH_SMOKE=1 bench_cost_curve        small sizes: that it runs
#include "bench/device_bench.cuh"

#include <packstone/cuda/transfer.hpp>

#include <CLI/CLI.hpp>
#include <sim/cuda/probe_pool.hpp>
#include <sim/cuda/read_rows.hpp>

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace packstone::bench {
namespace {

using sim::uploaded;

/// A bijection of [0, count) without a table: a Feistel network over the next even power of two,
/// walked until it lands inside.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count) {
  unsigned half = 1;
  while ((std::uint64_t{1} << (2 * half)) < count) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 1; round <= 4; ++round) {
      std::uint64_t mixed = (right + round) * 0x9e3779b97f4a7c15ULL;
      mixed ^= mixed >> 29U;
      mixed *= 0xbf58476d1ce4e5b9ULL;
      mixed ^= mixed >> 32U;
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

struct Curve {
  std::ostringstream csv;
  double ceiling{0};
  int repeats{7};
  sim::ColdTimer timer;
  Stream stream;

  sim::Spread rate(double bytes, const std::function<void()>& work) {
    std::vector<double> gbps;
    work();
    for (int i = 0; i < repeats; ++i) gbps.push_back(bytes / timer.once(stream.get(), work) * 1e-3);
    return sim::spread_of(std::move(gbps));
  }
  void add(const char* kind, Bytes row, Bytes run, Bytes pool, const sim::Spread& gbps,
           double limit) {
    char line[200];
    (void)std::snprintf(line, sizeof line, "%s,%lld,%lld,%lld,%.5g,%.5g,%.5g,%.5g\n", kind,
                        static_cast<long long>(row), static_cast<long long>(run),
                        static_cast<long long>(pool), gbps.median, gbps.min, gbps.max, limit);
    csv << line;
  }
};

/// Runs of `run` rows at random places of the first `pool` bytes; run 0: one stretch.
void read_point(Curve& curve, const DeviceMemory& memory, Bytes row, std::int32_t run, Bytes pool,
                Bytes read) {
  const std::int32_t page_size = run > 0 ? run : 64;
  const Bytes page = row * page_size;
  const auto pages = static_cast<std::uint64_t>(pool / page);
  const auto count = static_cast<std::int64_t>(
      std::min<std::uint64_t>(pages, static_cast<std::uint64_t>(read / page)));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(run > 0 ? permuted(i, pages) : i);
  const DeviceMemory list = uploaded<std::int32_t>(ids);
  const DeviceMemory sink(4);
  const Bytes bytes = count * page;
  const sim::Spread gbps = curve.rate(static_cast<double>(bytes), [&] {
    sim::read_rows({.base = memory.data(),
                    .row_bytes = row,
                    .pages = list.as<std::int32_t>(),
                    .page_count = count,
                    .page_size = page_size,
                    .sink = sink.as<std::uint32_t>()},
                   curve.stream.get());
  });
  curve.add("read", row, run > 0 ? page : bytes, pool, gbps, curve.ceiling);
}

/// Rows of 1,152 bytes to pinned memory, `run` of them together; run 0: all together.
void host_point(Curve& curve, const DeviceMemory& memory, const PinnedMemory& host,
                std::int64_t run, TransferMethod method, double limit) {
  constexpr Bytes kRow = 1152;
  const Bytes pool_bytes = memory.bytes() / kRow * kRow;
  const PageCount rows = std::min<PageCount>(pool_bytes / kRow, 100'000'000);
  const DevicePool pool({.page_size = 1, .buffers = {{"rows", {kRow}, 1}}}, rows,
                        std::array{WrappedPlane{memory.data(), kRow}});
  const std::int64_t count = run > 0 ? host.bytes() / kRow / run * run : host.bytes() / kRow;
  const std::int64_t length = run > 0 ? run : count;
  const auto places = static_cast<std::uint64_t>((rows - 1) / (length + 1));
  std::vector<PageId> pages;
  for (std::int64_t i = 0; i < count / length; ++i) {
    const auto at = static_cast<std::int64_t>(permuted(static_cast<std::uint64_t>(i), places));
    for (std::int64_t k = 0; k < length; ++k)
      pages.push_back(PageId{static_cast<std::int32_t>(1 + at * (length + 1) + k)});
  }
  Transfer transfer(pool, {.pages_max = std::max<std::int64_t>(count, 1)});
  const sim::Spread gbps = curve.rate(static_cast<double>(count * kRow), [&] {
    while (!transfer.gather(pages, host.data(), method, curve.stream.get())) {
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(curve.stream.get()));
    }
  });
  curve.add(method == TransferMethod::batched ? "to_host_batched" : "to_host_kernel", kRow,
            length * kRow, rows * kRow, gbps, limit);
}

std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "unknown";
}

std::string provenance() {
  cudaDeviceProp device{};
  int runtime = 0;
  PACKSTONE_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  PACKSTONE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  const std::time_t now = std::time(nullptr);
  char date[16];
  (void)std::strftime(date, sizeof date, "%F", std::gmtime(&now));
  return "# " + std::string(device.name) + ", driver " + driver_version() + ", CUDA " +
         std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10) +
         "; bench_cost_curve --out sim/cost_curve.csv; " + date + "\n";
}

int main_of(int argc, char** argv) {
  std::string out;
  CLI::App app("Bandwidth against row size, run length and pool span");
  app.add_option("--out", out, "File for the table; standard output without");
  CLI11_PARSE(app, argc, argv);
  std::size_t free = 0;
  std::size_t total = 0;
  PACKSTONE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  constexpr Bytes kGiB = Bytes{1} << 30;
  const Bytes read = smoke() ? kGiB / 64 : 2 * kGiB;
  const Bytes most = smoke() ? kGiB / 16 : (static_cast<Bytes>(free) - 4 * kGiB) / kGiB * kGiB;
  const DeviceMemory memory(most);
  randomise_words<<<4096, 256>>>(memory.as<std::uint64_t>(), most / 8);
  PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
  Curve curve;
  if (smoke()) curve.repeats = 1;
  const Bytes copied = std::min<Bytes>(kGiB, most / 2);
  curve.ceiling = 2.0 * static_cast<double>(copied) * 1e-9 /
                  copy_seconds(memory.data() + most / 2, memory.data(), copied,
                               cudaMemcpyDeviceToDevice, curve.repeats);
  std::vector<Bytes> pools;
  for (const Bytes pool : {kGiB, 4 * kGiB, 32 * kGiB})
    if (pool < most) pools.push_back(pool);
  pools.push_back(most);
  for (const Bytes row : {1152, 656, 576, 256, 128}) {
    for (const Bytes pool : pools) {
      for (const std::int32_t run : {1, 4, 16, 64, 256, 0})
        read_point(curve, memory, row, run, pool, read);
    }
  }
  const PinnedMemory host(smoke() ? kGiB / 256 : kGiB / 8);
  const double limit =
      static_cast<double>(host.bytes()) * 1e-9 /
      copy_seconds(host.data(), memory.data(), host.bytes(), cudaMemcpyDeviceToHost, curve.repeats);
  for (const std::int64_t run : {1, 16, 64, 1024, 0}) {
    host_point(curve, memory, host, run, TransferMethod::direct, limit);
    host_point(curve, memory, host, run, TransferMethod::batched, limit);
  }
  const std::string table =
      provenance() + "kind,row_bytes,run_bytes,pool_bytes,gbps,gbps_min,gbps_max,ceiling_gbps\n" +
      curve.csv.str();
  if (out.empty()) {
    std::fputs(table.c_str(), stdout);
    return 0;
  }
  std::ofstream file(out, std::ios::binary);
  file << table;
  file.close();
  if (!file) {
    std::fprintf(stderr, "%s cannot be written\n", out.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace packstone::bench

int main(int argc, char** argv) {
  return packstone::bench::run_on_device(argc, argv, packstone::bench::main_of);
}
