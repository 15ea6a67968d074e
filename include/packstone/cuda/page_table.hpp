// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Page tables in device memory at fixed addresses, updated in place.

#include <packstone/cuda/memory.hpp>
#include <packstone/verify_params.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone::cuda {

enum class TableForm : std::uint8_t {
  pages,   ///< entry e is the page of tokens e * page_size ..
  tokens,  ///< entry t is the slot of token t
};

struct DevicePageTableOptions {
  std::int64_t rows{0};       ///< sequences, >= 1
  std::int64_t columns{0};    ///< pages a row may hold, >= 1
  std::int64_t page_size{1};  ///< tokens a page
  PageCount pages{0};         ///< of the pool
  TableForm form{TableForm::pages};
  IndexType type{IndexType::int32};      ///< int32 throws when a slot of the pool does not fit
  std::int64_t batch_pages_max{65536};   ///< pages of one flush
  std::int64_t batch_updates_max{8192};  ///< updates of one flush
  std::size_t staging_blocks{4};         ///< flushes whose copy may be in flight
};

/// A table [rows, columns] whose untouched entries are 0: padded rows point at slot 0. Updates are
/// collected on the host and written by one copy and one kernel. Not thread-safe.
class DevicePageTable {
 public:
  /// Zeroes the table (synchronises once). Throws InvalidArgument for options out of range.
  explicit DevicePageTable(const DevicePageTableOptions& options);

  /// Collects: entries [column, column + pages.size()) of `row`, in pages, become `pages`. Throws
  /// InvalidArgument (row, column) or PageError (page outside the pool) before anything is
  /// collected: a row that is too narrow is an error, never cut.
  void set(std::int64_t row, std::int64_t column, std::span<const PageId> pages);
  /// Collects: entries [column, column + count) of `row` become 0.
  void clear(std::int64_t row, std::int64_t column, std::int64_t count);
  void clear(std::int64_t row) { clear(row, 0, options_.columns); }

  /// Updates collected and not yet flushed. They name pages as of when they were collected: flush
  /// before a compactor's moves are queued.
  [[nodiscard]] std::int64_t pending() const { return static_cast<std::int64_t>(updates_.size()); }

  /// Writes the collected updates in order of `stream`: readers queued after it see them, readers
  /// queued before it on the same stream do not. Asynchronous; does not synchronise; not for a
  /// stream under capture (throws InvalidArgument). Flushes of one table must be ordered among
  /// themselves. Returns false, and has done nothing, when every
  /// staging block is still being copied from: flush again later.
  [[nodiscard]] bool flush(cudaStream_t stream);

  /// The table as attention kernels and DraftCommit read it. The address never changes.
  [[nodiscard]] TokenTable view() const;
  [[nodiscard]] void* data() const { return entries_.data(); }
  /// Entries of the whole table, in the table's form.
  [[nodiscard]] std::int64_t entries() const;
  [[nodiscard]] const DevicePageTableOptions& options() const { return options_; }

 private:
  struct Update {
    std::int64_t row;
    std::int64_t column;
    std::int64_t count;
    std::int64_t source;  // into values_, or -1
  };
  void add(const Update& update);
  [[nodiscard]] bool overlaps(const Update& update) const;

  DevicePageTableOptions options_;
  DeviceMemory entries_;
  DeviceMemory batch_;  // the copy of a staging block
  StagingRing staging_;
  std::vector<Update> updates_;
  std::vector<std::int32_t> values_;
  std::vector<std::size_t> waves_;      // updates_ index at which each launch but the first starts
  std::vector<std::uint64_t> touched_;  // [rows] number of the wave that named the row last
  std::uint64_t wave_{1};
};

}  // namespace packstone::cuda
