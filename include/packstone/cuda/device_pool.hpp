// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The KV pool in device memory: where every page of every buffer and layer lies, and who owns it.
///
/// Three backings: one allocation of the pool's own; pointers of the caller, wrapped; or a reserved
/// range of addresses backed granule by granule (2 MiB on current devices), of which the pages'
/// empty parts can be given back to the driver. Addresses never change in any of them, so captured
/// graphs stay valid.

#include <packstone/cuda/memory.hpp>
#include <packstone/cuda/virtual_arena.hpp>
#include <packstone/pool_layout.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace packstone::cuda {

struct DevicePoolOptions {
  PageCount pages{0};  ///< the reserved page 0 included, 1 .. kPagesMax
  /// Back the pool by mapped granules instead of one allocation; all are mapped at first.
  bool virtual_memory{false};
  /// Released granules kept for the next commit instead of going back to the driver.
  std::int64_t cached_granules_max{0};
};

/// One buffer of one layer that the caller owns.
struct WrappedPlane {
  void* data{nullptr};  ///< page 0; device memory that outlives the pool; never null
  Bytes stride{0};      ///< between pages, >= the buffer's bytes a page
};

/// A committed part of the pool, for reports.
struct PoolMemory {
  Bytes reserved{0};   ///< addresses
  Bytes committed{0};  ///< backed by memory
  Bytes cached{0};     ///< kept, backing nothing
};

class DevicePool {
 public:
  /// Owns its memory on the current device. Page 0 is zeroed in every buffer (synchronises once);
  /// other contents are undefined. Throws InvalidArgument for a bad layout or page count, CudaError
  /// when memory is lacking, UnsupportedDevice when virtual memory is asked for and not there.
  DevicePool(const PoolLayout& layout, const DevicePoolOptions& options);
  /// Wraps the caller's memory: planes ordered by buffer, then layer. Nothing is written. Any
  /// alignment is accepted; copies are fastest where addresses, strides and bytes are multiples of
  /// 16. Throws InvalidArgument naming the plane for a wrong number of planes, a null pointer or a
  /// stride below the bytes of a page.
  DevicePool(const PoolLayout& layout, PageCount pages, std::span<const WrappedPlane> planes);

  [[nodiscard]] const PoolLayout& layout() const { return layout_; }
  [[nodiscard]] PageCount pages() const { return pages_; }
  [[nodiscard]] std::int64_t page_size() const { return layout_.page_size; }
  [[nodiscard]] int device() const { return device_; }
  /// Bytes of one page in all buffers and layers, without padding.
  [[nodiscard]] Bytes page_bytes() const { return packstone::page_bytes(layout_); }

  /// Device addresses; merged where neighbours, see PoolPlanes.
  [[nodiscard]] std::span<const PagePlane> page_planes() const { return planes_.pages; }
  [[nodiscard]] std::span<const RowPlane> row_planes() const { return planes_.rows; }
  /// Page 0 of a buffer's layer, and the bytes between its pages; throws InvalidArgument outside.
  [[nodiscard]] PagePlane plane(std::size_t buffer, std::int32_t layer) const;

  [[nodiscard]] PoolMemory memory() const;

  /// Gives back every granule in which no page of `live` has a byte. For idle times: unmapping is a
  /// host call of some 30 us a granule that other kernels may feel.
  /// @param live  [pages], non-zero: the page's bytes are needed; page 0 always is.
  /// @return bytes unmapped, or nothing and no change while `fence` has not drained: a kernel in
  ///   flight may still touch a retired page.
  /// Does nothing (0 bytes) for a pool that is not backed by virtual memory.
  std::optional<Bytes> release_unused(std::span<const std::uint8_t> live, EventFence& fence);
  /// Backs every granule of `pages` again, before they are written. A host call, not ordered on any
  /// stream. Contents of granules backed anew are undefined. Throws PageError for a page outside
  /// the pool, CudaError when memory is lacking; granules backed by then stay so.
  void commit(std::span<const PageId> pages);

 private:
  PoolLayout layout_;
  PageCount pages_;
  int device_{0};
  PoolPlanes planes_;  // bases are addresses
  DeviceMemory memory_;
  std::optional<VirtualArena> arena_;
};

}  // namespace packstone::cuda
