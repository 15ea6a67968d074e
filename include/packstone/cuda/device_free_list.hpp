// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A free list that lives on the device, so that pages are taken and given back inside a captured
/// graph, with no read-back.
///
/// A bitmap, lowest free ids first: the rule of LowestFreeList, its host twin, which gives the same
/// ids for the same commands. Sizes are read on the device. A shortage sets a flag and takes
/// nothing; a bad release sets a fault and changes nothing. The host learns of the state late,
/// through `snapshot` and `reconcile`, and never waits for it.

#include <packstone/cuda/memory.hpp>
#include <packstone/lowest_free_list.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

namespace packstone::cuda {

/// Why a release changed nothing. When several entries are at fault, the largest of their kinds.
enum class FreeFault : std::int32_t {
  none = 0,
  bad_count = 1,     ///< below 0, or above the bound of the call
  no_such_page = 2,  ///< page 0, or an id outside the pool
  not_live = 3,      ///< free already
  duplicate = 4,     ///< named twice in the call
};

struct DeviceFreeListOptions {
  PageCount pages{0};            ///< the reserved page 0 included, 1 .. kPagesMax - 63
  std::int32_t requests_max{0};  ///< of one allocation, >= 1
};

/// What the device says about itself; words of their own in device memory.
struct DeviceFreeListStatus {
  std::int32_t shortage;     ///< 1: the last allocation took nothing
  std::int32_t fault;        ///< FreeFault of the last release
  std::int32_t fault_entry;  ///< one entry at fault, for FreeFault no_such_page and above
  std::int32_t taken;        ///< pages that the last allocation took
  std::int64_t free;         ///< pages free
  std::uint64_t commands;    ///< allocations and releases executed
  std::uint64_t shortages;   ///< allocations that took nothing
  std::uint64_t faults;      ///< releases that changed nothing
};

/// Not thread-safe. Calls on one list must be ordered among themselves on the device.
class DeviceFreeList {
 public:
  /// All pages but page 0 are free (synchronises once).
  explicit DeviceFreeList(const DeviceFreeListOptions& options);

  /// Three launches in order of `stream`; capturable; does not synchronise. Request r takes
  /// counts[r] pages, written to ids in request order; offsets() then holds where each begins.
  /// @param counts    [requests_max] in device memory; negative ones count as 0
  /// @param requests  how many of them hold, in device memory, 0 .. requests_max
  /// @param ids       [ids_max] in device memory; not written on shortage
  /// @param ids_max   a sum above it is a shortage
  /// A shortage sets status()->shortage and takes nothing.
  void allocate(const std::int32_t* counts, const std::int32_t* requests, std::int32_t* ids,
                std::int32_t ids_max, cudaStream_t stream);
  /// Three launches in order of `stream`; capturable; does not synchronise.
  /// @param ids    [ids_max] in device memory, of which *count hold
  /// A fault sets status()->fault and changes nothing.
  void release(const std::int32_t* ids, const std::int32_t* count, std::int32_t ids_max,
               cudaStream_t stream);
  /// Ids of the free pages, ascending, and their number.
  /// @param ids    [pages] in device memory
  /// @param found  one word in device memory
  void list(std::int32_t* ids, std::int32_t* found, cudaStream_t stream);

  /// [requests_max + 1] in device memory: first entry of each request in the last allocation's ids.
  [[nodiscard]] const std::int32_t* offsets() const { return offsets_.as<std::int32_t>(); }
  /// In device memory.
  [[nodiscard]] const DeviceFreeListStatus* status() const {
    return status_.as<DeviceFreeListStatus>();
  }

  /// Queues a copy of the state to the host. Not under capture. Returns false, with nothing done,
  /// while an earlier one is under way.
  [[nodiscard]] bool snapshot(cudaStream_t stream);
  /// The status as of the last snapshot once its copy has been reached, after which `mirror`
  /// equals the device as of then; nothing while it is under way or when there is none. Polls,
  /// never blocks.
  std::optional<DeviceFreeListStatus> reconcile(LowestFreeList& mirror);

 private:
  DeviceFreeListOptions options_;
  std::int64_t words_;
  int device_;
  DeviceMemory bits_;
  DeviceMemory claims_;
  DeviceMemory prefix_;
  DeviceMemory offsets_;
  DeviceMemory status_;
  DeviceMemory scratch_;
  PinnedMemory mirror_;
  Event copied_;
  bool under_way_{false};
};

}  // namespace packstone::cuda
