// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Whole pages between the pool and pinned host memory, and token rows by slot.
///
/// On the host, pages lie plane after plane, and within a plane in the order of the call's list
/// (PageMover::linear_offset). Three ways lead there:
///
/// - *staged*: a kernel gathers a stretch into device memory while the copy engine sends the last
///   one: large contiguous copies whatever the runs, at the price of two stretches of memory;
/// - *direct*: one kernel over all layers reads or writes the host memory itself; no staging, but
///   the bus sees page-sized pieces;
/// - *batched*: one cudaMemcpyBatchAsync with a piece for each run of each plane; no kernel at all,
///   but the copy engine needs long pieces.

#include <packstone/cuda/page_mover.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace packstone::cuda {

enum class TransferMethod : std::uint8_t {
  automatic,  ///< batched when its pieces have batched_bytes_min on average, else staged
  staged,
  direct,
  batched,
};

struct TransferOptions {
  std::int64_t pages_max{65536};         ///< of one call
  Bytes stretch_bytes{Bytes{16} << 20};  ///< of each of two; at least the largest page of a plane
  /// Mean piece from which the copy engine needs no gathering. On an H200 pieces of 4.5 MiB reach
  /// 94 % of one contiguous copy, and staged reaches 97 % there.
  Bytes batched_bytes_min{Bytes{16} << 20};
  /// The bus needs few multiprocessors, each with a deep ring.
  MoverTuning tuning{.multiprocessors = 16, .warps = 4, .stages = 4, .stage_bytes = 9216};
  std::size_t staging_blocks{4};
};

/// Consecutive pages of a list, as runs; the batched method's pieces.
[[nodiscard]] std::vector<PageRun> runs_of(std::span<const PageId> pages);

/// Not thread-safe. Calls on one object are ordered among themselves on whatever streams.
class Transfer {
 public:
  /// The pool must outlive this object.
  Transfer(const DevicePool& pool, const TransferOptions& options);

  /// Bytes of `pages` pages on the host.
  [[nodiscard]] Bytes bytes(std::int64_t pages) const {
    return mover_.linear_offset(pages * static_cast<std::int64_t>(mover_.planes().size()), pages);
  }
  /// What `automatic` means for this list.
  [[nodiscard]] TransferMethod choose(std::span<const PageId> pages) const;

  /// Pool to host, in order of `stream` (not the legacy default stream for `batched`).
  /// Asynchronous; does not synchronise. The pages must stay in place (pin them) and `host` must
  /// stay until it has run.
  /// @param pages  any order, repeats allowed
  /// @param host   [bytes(pages.size())] pinned, 256-byte aligned
  /// @return false, with nothing done, when every staging block is still being copied from.
  /// Throws InvalidArgument (too many pages, null or misaligned host, stream under capture) or
  /// PageError (page outside the pool) before anything is queued.
  [[nodiscard]] bool gather(std::span<const PageId> pages, void* host, TransferMethod method,
                            cudaStream_t stream);
  /// Host to pool, likewise. Pages must be distinct and not 0.
  [[nodiscard]] bool scatter(std::span<const PageId> pages, const void* host, TransferMethod method,
                             cudaStream_t stream);

 private:
  enum class Way : std::uint8_t { to_host, to_pool };
  [[nodiscard]] bool run(std::span<const PageId> pages, std::byte* host, TransferMethod method,
                         Way way, cudaStream_t stream);
  void require_distinct(std::span<const PageId> pages);
  /// Moves [first, last) of the list to the device.
  void upload(std::span<const PageId> pages, std::size_t first, std::size_t last,
              cudaStream_t stream);
  void staged(std::span<const PageId> pages, std::byte* host, Way way, cudaStream_t stream);
  void batched(std::span<const PageId> pages, std::byte* host, Way way, cudaStream_t stream);
  [[nodiscard]] PageMover::List list() const;

  const DevicePool* pool_;
  TransferOptions options_;
  PageMover mover_;
  StagingRing staging_;
  DeviceMemory list_;                 // count, then [pages_max] PageMove
  std::vector<std::uint64_t> marks_;  // [pages / 64 + 1], 0 between calls
  Event done_;                        // the last use of list_ and of the stretches
  Event start_;
  struct Stretch {
    DeviceMemory memory;
    Stream engine;  // its own, so that the copy engine finds the next copy queued
    Event filled;
    Event emptied;
  };
  std::array<Stretch, 2> stretches_;
};

/// Rows of one part of one buffer's layer: rows[i] to slot slots[i].
struct RowTransfer {
  std::size_t row_plane{0};            ///< index into DevicePool::row_planes()
  const std::int64_t* slots{nullptr};  ///< [rows] in device memory; negative, of page 0 or past the
                                       ///< pool: padding
  std::int64_t rows{0};
  void* data{nullptr};  ///< [rows, row_bytes] in device memory
};
/// data -> pool in order of `stream`; capturable; does not synchronise. Padded rows are written
/// nowhere: page 0 and the last slot stay as they are. Live slots must be distinct.
void write_rows(const DevicePool& pool, const RowTransfer& rows, cudaStream_t stream);
/// pool -> data, likewise; padded rows give zeros.
void read_rows(const DevicePool& pool, const RowTransfer& rows, cudaStream_t stream);

}  // namespace packstone::cuda
