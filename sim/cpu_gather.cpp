// SPDX-License-Identifier: Apache-2.0
#include <sim/cpu_gather.hpp>
#include <sim/prng.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace packstone::sim {

namespace {

// Folds a row into a sum that the caller keeps, so that the reads cannot be dropped.
std::uint64_t fold(const std::byte* row, Bytes bytes) {
  std::uint64_t sum[4] = {};
  std::uint64_t word[4];
  Bytes i = 0;
  for (; i + 32 <= bytes; i += 32) {
    std::memcpy(word, row + i, sizeof word);
    for (int k = 0; k < 4; ++k) sum[k] += word[k];
  }
  for (; i < bytes; i += 8) {
    std::memcpy(word, row + i, 8);
    sum[0] += word[0];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

// Runs `part(begin, end)` over [0, n) on `threads` threads and returns the seconds it took.
double timed(std::size_t n, int threads,
             const std::function<std::uint64_t(std::size_t, std::size_t)>& part) {
  std::atomic<std::uint64_t> sink{0};
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::jthread> workers;
  const auto count = static_cast<std::size_t>(threads);
  for (std::size_t t = 0; t < count; ++t) {
    workers.emplace_back([&, t] { sink += part(n * t / count, n * (t + 1) / count); });
  }
  workers.clear();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<double> rates(int repeats, double bytes, const std::function<double()>& pass) {
  (void)pass();  // touches every page of memory once before the clock counts
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(repeats));
  for (int i = 0; i < repeats; ++i) result.push_back(bytes / pass() * 1e-9);
  std::ranges::sort(result);
  return result;
}

/// Bytes of the set's pool; what the options or the set may not be is thrown.
Bytes checked_pool_bytes(const TableSet& set, const CpuGatherOptions& options) {
  if (options.row_bytes < 8 || options.row_bytes % 8 != 0 || options.repeats < 1 ||
      options.threads < 0) {
    throw InvalidArgument("cpu gather: row_bytes = " + std::to_string(options.row_bytes) +
                          ", repeats = " + std::to_string(options.repeats) +
                          ", threads = " + std::to_string(options.threads));
  }
  const SlotId slots_total = set.pool_pages * set.page_size;
  if (set.tokens() == 0 || slots_total > options.pool_bytes_max / options.row_bytes) {
    throw InvalidArgument("cpu gather: " + std::to_string(set.tokens()) + " tokens in a pool of " +
                          std::to_string(slots_total) + " rows of " +
                          std::to_string(options.row_bytes) + " bytes");
  }
  return slots_total * options.row_bytes;
}

}  // namespace

GatherMemory::GatherMemory(Bytes bytes) : words_(static_cast<std::size_t>(bytes / 8)) {
  Prng prng(1);
  for (std::uint64_t& word : words_) word = prng.next();
}

CpuGatherResult measure_cpu_gather(const TableSet& set, const CpuGatherOptions& options) {
  return measure_cpu_gather(GatherMemory(checked_pool_bytes(set, options)), set, options);
}

CpuGatherResult measure_cpu_gather(const GatherMemory& memory, const TableSet& set,
                                   const CpuGatherOptions& options) {
  if (const Bytes needed = checked_pool_bytes(set, options); needed > memory.bytes()) {
    throw InvalidArgument("cpu gather: a pool of " + std::to_string(needed) + " bytes in " +
                          std::to_string(memory.bytes()) + " bytes of memory");
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::byte* const pool = memory.data();
  const std::vector<SlotId> slots = slots_of(set);
  const double bytes = static_cast<double>(slots.size()) * static_cast<double>(options.row_bytes);

  const std::vector<double> gathered = rates(options.repeats, bytes, [&] {
    return timed(slots.size(), threads, [&](std::size_t begin, std::size_t end) {
      std::uint64_t sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        sum += fold(pool + slots[i] * options.row_bytes, options.row_bytes);
      }
      return sum;
    });
  });
  // Once: who measures many placements takes the best of their ceilings. Tables that share pages
  // may have more tokens than the pool has rows.
  const std::size_t rows =
      std::min(slots.size(), static_cast<std::size_t>(set.pool_pages * set.page_size));
  const double ceiling =
      rates(1, static_cast<double>(rows) * static_cast<double>(options.row_bytes), [&] {
        return timed(rows, threads, [&](std::size_t begin, std::size_t end) {
          return fold(pool + static_cast<Bytes>(begin) * options.row_bytes,
                      static_cast<Bytes>(end - begin) * options.row_bytes);
        });
      }).front();
  return {.gbps = gathered[gathered.size() / 2],
          .gbps_min = gathered.front(),
          .gbps_max = gathered.back(),
          .ceiling_gbps = ceiling,
          .threads = threads};
}

}  // namespace packstone::sim
