// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Copies whole pages, all buffers and layers of one or more pools in one launch. The compactor,
/// fork copies and the transfers to host memory are this with different ends.

#include <packstone/cuda/device_pool.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone::cuda {

/// Who leaves L2 when room is needed.
enum class CachePolicy : std::uint8_t { evict_first, evict_normal, evict_last };

/// How the move kernel is launched. The defaults are what docs/compaction.md found best.
struct MoverTuning {
  /// Multiprocessors that a launch may occupy, so that it runs beside attention; 0: all.
  std::int32_t multiprocessors{0};
  /// Off: through registers also where the device has bulk copies.
  bool bulk{true};
  CachePolicy loads{CachePolicy::evict_normal};   ///< of lines read, in L2
  CachePolicy stores{CachePolicy::evict_normal};  ///< of lines written
  std::int32_t warps{8};                          ///< a block, 1 .. 8
  std::int32_t stages{2};                         ///< of each warp's ring, 2 or 4
  std::int32_t stage_bytes{4608};  ///< multiple of 128; shrunk where shared memory is short
  std::int32_t blocks_per_multiprocessor{1};
  /// Tiles that a warp claims at a time: more would leave warps idle when a step is small, one asks
  /// the counter that all share twice as often.
  std::int32_t claim_tiles{2};
};

/// Checks lists of moves. O(moves) each; one byte a page.
class MoveCheck {
 public:
  explicit MoveCheck(PageCount pages) : marks_(static_cast<std::size_t>(pages), 0) {}
  /// Throws PageError naming the move and its fault unless every page lies in 1 .. pages - 1, no
  /// page is both source and destination, and destinations are distinct.
  /// @param distinct_sources  also refuse a source that stands twice (a copy may, a move may not).
  void require(std::span<const PageMove> moves, bool distinct_sources);

 private:
  std::vector<std::uint8_t> marks_;  // [pages], 0 between calls
};

/// Launches of one mover share a counter of claimed tiles, so they must be ordered among themselves
/// on the device: one stream, or streams that wait for each other.
class PageMover {
 public:
  /// Pools with equal page counts and sizes on the current device (a model's and its draft's);
  /// they must outlive this object. Throws InvalidArgument for no pool or unequal ones.
  PageMover(std::span<const DevicePool* const> pools, const MoverTuning& tuning);

  [[nodiscard]] PageCount pages() const { return pages_; }
  [[nodiscard]] std::int64_t page_size() const { return page_size_; }
  [[nodiscard]] int device() const { return limits_.device; }
  [[nodiscard]] const DeviceLimits& limits() const { return limits_; }
  /// Bytes that one move reads (and writes as many), padding included.
  [[nodiscard]] Bytes page_bytes() const { return page_bytes_; }
  /// Blocks of a launch; each multiprocessor holds blocks_per_multiprocessor of them.
  [[nodiscard]] std::int32_t blocks() const { return blocks_; }
  [[nodiscard]] bool bulk() const { return bulk_; }

  /// A list of moves in device memory.
  struct List {
    const PageMove* moves{nullptr};      ///< [count_max]
    const std::int32_t* count{nullptr};  ///< read when the kernel runs, clamped to 0 .. count_max
    std::int32_t count_max{0};
  };

  /// Copies each page `from` to `to` in order of `stream`. Asynchronous, capturable, does not
  /// synchronise. The list must stay until it has run. Destinations must be distinct, and no page
  /// both source and destination.
  void copy(const List& list, cudaStream_t stream) const;

  /// As `copy`, and stamps[from] = {to, *generation} for the patch of tables.
  /// @param stamps  [pages] pairs of 32 bits in device memory.
  void move(const List& list, void* stamps, const std::uint32_t* generation,
            cudaStream_t stream) const;

  /// Pages `from` of the list to linear memory: class after class of planes, plane after plane,
  /// move after move. `linear` is the address, device or mapped host, of unit `first`'s first byte;
  /// units [first, last) are copied, where unit p * n + i is move i of plane p.
  void gather(const List& list, std::uint64_t linear, std::int64_t first, std::int64_t last,
              std::int64_t moves, cudaStream_t stream) const;
  /// The reverse: linear memory to the pages `to`.
  void scatter(const List& list, std::uint64_t linear, std::int64_t first, std::int64_t last,
               std::int64_t moves, cudaStream_t stream) const;

  /// Planes in linear order: what gather and scatter lay out.
  [[nodiscard]] std::span<const PagePlane> planes() const { return planes_; }
  /// Offset of unit `unit` in the linear order of `moves` moves; the total for unit planes x moves.
  [[nodiscard]] Bytes linear_offset(std::int64_t unit, std::int64_t moves) const;

 private:
  std::vector<PagePlane> planes_;
  std::vector<Bytes> prefix_;  // bytes of one page in the planes before
  PageCount pages_{0};
  std::int64_t page_size_{1};
  Bytes page_bytes_{0};
  DeviceLimits limits_;
  MoverTuning tuning_;
  bool bulk_{false};
  std::int32_t blocks_{0};
  std::int32_t class_count_{0};
  DeviceMemory device_planes_;
  DeviceMemory device_classes_;
  DeviceMemory claims_;
};

}  // namespace packstone::cuda
