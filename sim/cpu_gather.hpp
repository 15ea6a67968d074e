// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How fast the processor of this machine reads the rows of a set of tables: the stand-in for
/// attention where there is no GPU. Figures are labelled `measured-cpu`; they say what placement
/// does to this machine's memory system, not to a GPU's.

#include <sim/table_layouts.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace packstone::sim {

/// Memory filled with random bytes, for any number of gathers: filling takes longer than they do.
class GatherMemory {
 public:
  explicit GatherMemory(Bytes bytes);
  [[nodiscard]] const std::byte* data() const {
    return reinterpret_cast<const std::byte*>(words_.data());
  }
  [[nodiscard]] Bytes bytes() const { return static_cast<Bytes>(words_.size()) * 8; }

 private:
  std::vector<std::uint64_t> words_;
};

struct CpuGatherOptions {
  Bytes row_bytes{1152};
  int threads{0};                        ///< 0: one a processor
  int repeats{5};                        ///< timed passes; the median counts
  Bytes pool_bytes_max{Bytes{2} << 30};  ///< a larger pool is refused
};

struct CpuGatherResult {
  double gbps{0};  ///< median over the passes, row bytes read once
  double gbps_min{0};
  double gbps_max{0};
  double ceiling_gbps{
      0};  ///< the same threads reading as many bytes in one piece, at most the pool, same call
  int threads{1};
};

/// Reads every row of every table from the front of `memory`. Throws InvalidArgument for a pool
/// past the limit or the memory, no tokens, or row_bytes that is not a positive multiple of 8.
[[nodiscard]] CpuGatherResult measure_cpu_gather(const GatherMemory& memory, const TableSet& set,
                                                 const CpuGatherOptions& options = {});
/// The same from memory of its own.
[[nodiscard]] CpuGatherResult measure_cpu_gather(const TableSet& set,
                                                 const CpuGatherOptions& options = {});

}  // namespace packstone::sim
