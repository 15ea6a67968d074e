// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Executes a plan of page moves on the device: bytes first, then everything that names the pages.
///
/// A step is two launches. The *move* copies every buffer of every layer of all pages; sources stay
/// as they are and destinations are nobody's, so it may run beside work that reads the sources. The
/// *patch* rewrites tables, token-index rows, cached values and full-to-window maps in place. After
/// it the sources are named by nothing, but work queued before may still read by their ids: they
/// become free when an EventFence recorded after the patch, on every stream with such work, has
/// been reached.
///
/// What must hold while a step is in flight:
/// - nothing queued before the patch writes to a source page (a decode step appends to its last
///   page: order the step after it, or leave such pages out of the plan by pinning them);
/// - nothing queued after the patch, on any stream, runs before it unless it reads by old and new
///   ids alike, which is safe until the source is reused: an entry is rewritten in one store, so a
///   reader sees the old page or the new one, and both hold the same bytes until the fence.
///
/// Table addresses never change, so a graph captured before a step replays correctly after it.

#include <packstone/cuda/page_mover.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone::cuda {

/// An array on the device that names pages or slots of the pools, or is found by them.
struct PatchedArray {
  enum class Kind : std::uint8_t {
    pages,          ///< entries are page ids: page tables, FlashInfer's paged_kv_indices
    slots,          ///< entries are slots: token-index rows, values of prefix-cache nodes
    keyed_by_page,  ///< entry p belongs to page p and moves with it, leaving 0 (full-to-window)
    keyed_by_slot,  ///< entry s belongs to slot s, likewise
  };
  void* entries{nullptr};  ///< device memory at a fixed address, aligned to its entries
  std::int64_t count{0};   ///< entries; all are looked at in each step
  IndexType type{IndexType::int32};
  Kind kind{Kind::pages};
};
// Entries <= 0 and entries past the pool stay as they are: padding and tombstones.

struct CompactorOptions {
  std::int64_t moves_max{4096};  ///< of one step, 1 .. 2^31 - 1
  MoverTuning tuning{};
  std::size_t staging_blocks{4};  ///< steps whose list may be on its way to the device
};

/// Not thread-safe. Steps of one compactor are ordered among themselves on whatever streams.
class Compactor {
 public:
  /// Pools (equal in pages and page size: a model's and its draft's) and arrays must outlive the
  /// compactor. Throws InvalidArgument for options or arrays out of range.
  Compactor(std::span<const DevicePool* const> pools, std::span<const PatchedArray> arrays,
            const CompactorOptions& options);

  /// One step in order of `stream`: upload, move, patch. Asynchronous, never synchronises, reads
  /// nothing back. `moves` may be reused at once. Record the fence afterwards.
  /// Throws PageError or InvalidArgument before anything is queued when a move is bad, there are
  /// more than moves_max, or the stream is under capture (see `upload`).
  /// @return false, with nothing done, when every staging block is still being copied from.
  [[nodiscard]] bool compact(std::span<const PageMove> moves, cudaStream_t stream);

  /// One step beside other work: the move in order of `move_stream`, the patch in order of
  /// `table_stream` and after the move. `table_stream` waits for the move on the device; queue it
  /// where the move is due to have finished, as at the end of a decode step.
  [[nodiscard]] bool compact(std::span<const PageMove> moves, cudaStream_t move_stream,
                             cudaStream_t table_stream);

  // ---- for captured graphs ----

  /// Puts the list of the next `launch` on the device. Throws and returns as `compact`.
  [[nodiscard]] bool upload(std::span<const PageMove> moves, cudaStream_t stream);
  /// Move and patch of the list on the device, in order of `stream`; capturable. The number of
  /// moves is read on the device and set to 0 by the patch: replaying without a new list does
  /// nothing.
  void launch(cudaStream_t stream);

  /// Copies without renaming anything (copy on write, forks): each page `from` to `to` in all
  /// buffers and layers, one launch. A source may stand several times. Returns and throws as
  /// `compact`, whose order with other steps it shares.
  [[nodiscard]] bool copy(std::span<const PageMove> copies, cudaStream_t stream);

  [[nodiscard]] const PageMover& mover() const { return mover_; }
  [[nodiscard]] const CompactorOptions& options() const { return options_; }

 private:
  [[nodiscard]] PageMover::List list() const;
  [[nodiscard]] bool upload_checked(std::span<const PageMove> moves, cudaStream_t stream);
  void move(cudaStream_t stream);
  void patch(cudaStream_t stream);

  CompactorOptions options_;
  PageMover mover_;
  MoveCheck check_;
  StagingRing staging_;
  DeviceMemory list_;     // ListHeader, then [moves_max] PageMove
  DeviceMemory stamps_;   // [pages] Stamp
  DeviceMemory targets_;  // [targets] PatchTarget
  DeviceMemory ticket_;
  std::int32_t target_count_{0};
  std::uint32_t generation_{0};
  Event moved_;
  Event done_;  // the last use of list_
};

}  // namespace packstone::cuda
