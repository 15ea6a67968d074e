// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The pool's kernels as plain functions, so that only .cu files need a CUDA compiler. Every
/// pointer is a device address unless it says otherwise. Nothing here synchronises; each returns
/// the launch error. Arguments have been validated by the classes of include/packstone/cuda.

#include <packstone/cuda/page_mover.hpp>
#include <packstone/pool_layout.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace packstone::kernels {

// ---- moving pages ----

/// Planes with one page size and one widest access, copied alike. In device memory.
struct MoveClass {
  std::int64_t first_plane;  ///< into the plane arrays
  std::int64_t planes;
  std::int64_t page_bytes;
  std::int64_t linear_prefix;  ///< page_bytes x planes of all classes before
  std::int64_t unit_prefix;    ///< planes of all classes before
  std::int32_t width;          ///< bytes of an access: 16, 8, 4, 2 or 1
  std::int32_t group;          ///< whole pages of one tile, 1 .. 32; 1 when chunks > 1
  std::int32_t chunks;         ///< tiles of one page
  std::int32_t chunk_bytes;    ///< of each but the last, a multiple of 16 when chunks > 1
};

/// What one launch copies: for each plane p and each i < n, the page moves[i].from of the source to
/// the page moves[i].to of the destination, n = clamp(*count, 0, count_max). A side without planes
/// is *linear*: class after class, plane after plane, i after i, without gaps.
struct MovePagesArguments {
  const MoveClass* classes{nullptr};
  std::int32_t class_count{0};
  const PagePlane* source{nullptr};       ///< [planes], or null: linear
  const PagePlane* destination{nullptr};  ///< [planes], or null: linear
  std::uint64_t source_linear{0};         ///< address of linear byte 0; may lie outside the memory
  std::uint64_t destination_linear{0};    ///<   that the clipped range touches
  const PageMove* moves{nullptr};         ///< [count_max]
  const std::int32_t* count{nullptr};
  std::int32_t count_max{0};
  /// Clip: pages are numbered plane after plane, n of each; only [first, last) are copied.
  std::int64_t first_unit{0};
  std::int64_t last_unit{INT64_MAX};
  /// [pages] or null: entry moves[i].from becomes {moves[i].to, *generation}.
  struct Stamp* stamps{nullptr};
  const std::uint32_t* generation{nullptr};
  /// [2] tiles claimed, blocks done; 0 between launches, which must therefore not overlap.
  std::uint32_t* claims{nullptr};
};

/// Where a page went, and in which step: an entry holds only for the step of its generation, so
/// that nothing needs resetting.
struct Stamp {
  std::int32_t to;
  std::uint32_t generation;
};

/// How it is launched.
struct MovePagesLaunch {
  bool bulk{false};  ///< bulk copies through shared memory (compute capability 9.0 up)
  cuda::CachePolicy loads{cuda::CachePolicy::evict_normal};
  cuda::CachePolicy stores{cuda::CachePolicy::evict_normal};
  std::int32_t stages{2};       ///< of each warp's ring: 2 or 4
  std::int32_t stage_bytes{0};  ///< multiple of 16
  std::int32_t warps{8};        ///< a block, 1 .. 8
  std::int32_t claim_tiles{2};  ///< of each claim of a warp, >= 1
  std::int32_t blocks{0};
};

/// Shared memory of a block, bytes.
std::int64_t move_pages_shared_bytes(const MovePagesLaunch& launch);
/// Raises the kernel's shared memory limit on the current device to all that a block may have. The
/// limit belongs to the device and the kernel, not to a caller, so it never depends on the caller.
/// @param shared_bytes_max  of a block with the opt-in, static memory included
cudaError_t prepare_move_pages(const MovePagesLaunch& launch, std::int32_t shared_bytes_max);
cudaError_t launch_move_pages(const MovePagesArguments& arguments, const MovePagesLaunch& launch,
                              cudaStream_t stream);

// ---- tables ----

/// One array whose entries name pages or slots, or are found by them. In device memory.
struct PatchTarget {
  void* entries;
  std::int64_t count;
  std::int64_t slots_per_entry;  ///< values: entries are slots of pages with that many; 1: page
                                 ///< ids. keys: entries a page has
  std::int32_t bytes;            ///< of an entry: 4 or 8
  std::int32_t keys;             ///< 0: the entries are rewritten; 1: they move with their page
};

struct PatchArguments {
  const PatchTarget* targets{nullptr};
  std::int32_t target_count{0};
  const Stamp* stamps{nullptr};
  std::int64_t pages{0};
  const PageMove* moves{nullptr};
  std::int32_t* count{nullptr};  ///< set to 0 by the last block: a list is applied once
  const std::uint32_t* generation{nullptr};
  std::int32_t count_max{0};
  std::uint32_t* ticket{nullptr};  ///< 0 between launches
};
cudaError_t launch_patch_tables(const PatchArguments& arguments, std::int32_t blocks,
                                cudaStream_t stream);

/// Entries [first, first + count) of a table, in pages, take the staged values from `source`, or 0.
struct TableRange {
  std::int64_t first;  ///< entry of the page form: row * columns + column
  std::int32_t count;
  std::int32_t source;  ///< into the values; -1: zeros
};
struct TableUpdateArguments {
  void* entries{nullptr};
  std::int32_t entry_bytes{4};
  std::int64_t slots_per_page{1};  ///< token form: entries a page has; page form: 1
  const TableRange* ranges{nullptr};
  std::int32_t range_count{0};
  const std::int32_t* values{nullptr};
};
cudaError_t launch_update_table(const TableUpdateArguments& arguments, std::int32_t blocks,
                                cudaStream_t stream);

// ---- draft commit ----

struct CommitArguments {
  const RowPlane* planes{nullptr};
  std::int32_t plane_count{0};
  std::int64_t page_size{1};  ///< of the pool
  std::int64_t pages{0};
  TokenTable table{};
  std::int32_t batch{0};
  const std::int32_t* lengths{nullptr};  ///< [batch] tokens before the nodes
  const std::int32_t* counts{nullptr};   ///< [batch] accepted nodes
  const std::int32_t* path{nullptr};     ///< [batch, path_stride] node numbers, ascending
  std::int64_t path_stride{0};
  std::int32_t nodes_max{0};
  std::int32_t slice_bytes{0};    ///< of a row, staged at a time; a multiple of 16
  std::int32_t* errors{nullptr};  ///< [batch] 0, or CommitFault
};
std::int64_t commit_shared_bytes(std::int32_t nodes_max, std::int32_t slice_bytes);
cudaError_t prepare_commit_path(std::int32_t shared_bytes_max);
cudaError_t launch_commit_path(const CommitArguments& arguments, std::int32_t blocks,
                               cudaStream_t stream);

// ---- rows by slot ----

struct RowsArguments {
  RowPlane plane;
  std::int64_t page_size{1};
  std::int64_t slots{0};              ///< of the pool
  const std::int64_t* slot{nullptr};  ///< [rows]; below page_size (page 0) or negative: padding
  std::int64_t rows{0};
  std::byte* data{nullptr};  ///< [rows, row_bytes]
};
/// data -> pool; padded rows and slots outside the pool are not written.
cudaError_t launch_write_rows(const RowsArguments& arguments, cudaStream_t stream);
/// pool -> data; padded rows give zeros.
cudaError_t launch_read_rows(const RowsArguments& arguments, cudaStream_t stream);

// ---- free list ----

/// The state of a resident free list. All in device memory.
struct FreeListState {
  std::uint64_t* bits{nullptr};    ///< [words] bit p % 64 of word p / 64: page p is free
  std::uint64_t* claims{nullptr};  ///< [words] scratch of a release, 0 between calls
  std::int32_t* prefix{nullptr};   ///< [words + 1] free pages before each word
  std::int32_t* offsets{nullptr};  ///< [requests_max + 1]
  struct FreeListStatus* status{nullptr};
  std::int64_t pages{0};
  std::int64_t words{0};
  std::int32_t requests_max{0};
  void* scratch{nullptr};  ///< for CUB
  std::int64_t scratch_bytes{0};
};

/// One word each so that the host may copy it at any time. In device memory.
struct FreeListStatus {
  std::int32_t shortage;     ///< 1: the last allocation took nothing
  std::int32_t fault;        ///< 0, or FreeFault of the last release
  std::int32_t fault_entry;  ///< entry of the last release that is at fault
  std::int32_t taken;        ///< pages that the last allocation took
  std::int64_t free;         ///< pages free now
  std::uint64_t commands;    ///< executed so far
  std::uint64_t shortages;   ///< of them, allocations that ran short
  std::uint64_t faults;      ///< of them, releases that were refused
};

std::int64_t free_list_scratch_bytes(std::int64_t words, std::int32_t requests_max);
cudaError_t launch_free_list_reset(const FreeListState& state, cudaStream_t stream);
/// Request r < *requests takes the counts[r] lowest free pages, r ascending; all or nothing.
cudaError_t launch_free_list_allocate(const FreeListState& state, const std::int32_t* counts,
                                      const std::int32_t* requests, std::int32_t* ids,
                                      std::int32_t ids_max, cudaStream_t stream);
/// Releases ids[0 .. *count); all or nothing.
cudaError_t launch_free_list_release(const FreeListState& state, const std::int32_t* ids,
                                     const std::int32_t* count, std::int32_t ids_max,
                                     cudaStream_t stream);
/// Ids of the free pages, ascending, and their number; out of place (a selection in place is a
/// race).
cudaError_t launch_free_list_list(const FreeListState& state, std::int32_t* ids,
                                  std::int32_t* found, cudaStream_t stream);

}  // namespace packstone::kernels
