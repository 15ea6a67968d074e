// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A range of device addresses whose memory comes and goes granule by granule.

#include <packstone/units.hpp>

#include <cstdint>
#include <vector>

namespace packstone::cuda {

/// Map and unmap are host calls: not ordered on any stream, not capturable, and a kernel that
/// touches an unmapped granule faults. The caller commits before use and decommits only what no
/// kernel in flight can reach. Not thread-safe.
class VirtualArena {
 public:
  /// Reserves addresses for `bytes` (rounded up to whole granules) on the current device; backs
  /// none. Throws UnsupportedDevice when the device or driver has no virtual memory management,
  /// CudaError when the range cannot be had.
  /// @param cached_granules_max  decommitted granules kept for reuse; creating one costs the most.
  VirtualArena(Bytes bytes, std::int64_t cached_granules_max);
  ~VirtualArena();
  VirtualArena(const VirtualArena&) = delete;
  VirtualArena& operator=(const VirtualArena&) = delete;

  [[nodiscard]] std::uint64_t base() const { return base_; }
  [[nodiscard]] Bytes granule_bytes() const { return granule_bytes_; }
  [[nodiscard]] std::int64_t granules() const { return static_cast<std::int64_t>(handles_.size()); }
  [[nodiscard]] Bytes reserved() const { return granules() * granule_bytes_; }
  [[nodiscard]] Bytes committed() const { return committed_ * granule_bytes_; }
  [[nodiscard]] Bytes cached() const { return static_cast<Bytes>(cache_.size()) * granule_bytes_; }
  [[nodiscard]] bool backed(std::int64_t granule) const {
    return handles_[static_cast<std::size_t>(granule)] != 0;
  }

  /// Backs granules [first, last); those backed already stay. Throws CudaError (out of memory)
  /// after which the granules before the failing one are backed.
  void commit(std::int64_t first, std::int64_t last);
  /// Takes the memory of granules [first, last) away; returns the bytes unmapped.
  Bytes decommit(std::int64_t first, std::int64_t last);

 private:
  void release_all() noexcept;
  std::uint64_t base_{0};
  Bytes granule_bytes_{0};
  int device_{0};
  std::int64_t cached_max_{0};
  std::int64_t committed_{0};
  std::vector<std::uint64_t> handles_;  // [granules] driver handle, or 0
  std::vector<std::uint64_t> cache_;
};

}  // namespace packstone::cuda
