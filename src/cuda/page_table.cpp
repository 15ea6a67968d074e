// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/page_table.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace packstone::cuda {

namespace {

// Enough to fill a device; each block takes one update at a time.
constexpr std::int32_t kUpdateBlocks = 512;

DevicePageTableOptions checked(const DevicePageTableOptions& options) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const bool good = options.rows >= 1 && options.rows <= kMax && options.columns >= 1 &&
                    options.columns <= kMax && options.page_size >= 1 &&
                    options.page_size <= kMax && options.pages >= 1 && options.pages <= kPagesMax &&
                    options.batch_pages_max >= 1 && options.batch_pages_max <= kMax &&
                    options.batch_updates_max >= 1 && options.batch_updates_max <= kMax;
  if (!good) {
    throw InvalidArgument("page table of " + std::to_string(options.rows) + " rows, " +
                          std::to_string(options.columns) + " columns, page size " +
                          std::to_string(options.page_size) + ", " + std::to_string(options.pages) +
                          " pages");
  }
  if (options.form == TableForm::tokens && options.type == IndexType::int32 &&
      options.pages > (kMax + 1) / options.page_size) {
    throw InvalidArgument("slots of " + std::to_string(options.pages) + " pages of " +
                          std::to_string(options.page_size) + " tokens do not fit int32 entries");
  }
  return options;
}

std::int64_t slots_per_page(const DevicePageTableOptions& options) {
  return options.form == TableForm::tokens ? options.page_size : 1;
}

Bytes batch_bytes(const DevicePageTableOptions& options) {
  return options.batch_updates_max * static_cast<Bytes>(sizeof(kernels::TableRange)) +
         options.batch_pages_max * 4;
}

}  // namespace

DevicePageTable::DevicePageTable(const DevicePageTableOptions& options)
    : options_(checked(options)),
      entries_(options.rows * options.columns * slots_per_page(options) * bytes_of(options.type)),
      batch_(batch_bytes(options)),
      staging_(options.staging_blocks, batch_bytes(options)),
      touched_(static_cast<std::size_t>(options.rows), 0) {
  PACKSTONE_CUDA_CHECK(cudaMemset(entries_.data(), 0, static_cast<std::size_t>(entries_.bytes())));
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

std::int64_t DevicePageTable::entries() const {
  return options_.rows * options_.columns * slots_per_page(options_);
}

TokenTable DevicePageTable::view() const {
  const bool tokens = options_.form == TableForm::tokens;
  return {.entries = entries_.data(),
          .type = options_.type,
          .page_size = tokens ? 1 : static_cast<std::int32_t>(options_.page_size),
          .row_stride = options_.columns * slots_per_page(options_),
          .indptr = nullptr};
}

bool DevicePageTable::overlaps(const Update& update) const {
  if (touched_[static_cast<std::size_t>(update.row)] != wave_) return false;
  const std::size_t first = waves_.empty() ? 0 : waves_.back();
  return std::any_of(updates_.begin() + static_cast<std::ptrdiff_t>(first), updates_.end(),
                     [&](const Update& other) {
                       return other.row == update.row &&
                              other.column < update.column + update.count &&
                              update.column < other.column + other.count;
                     });
}

void DevicePageTable::add(const Update& update) {
  // Ranges of one launch have no order among themselves, so a second write of an entry waits for
  // the next launch.
  if (overlaps(update)) {
    waves_.push_back(updates_.size());
    ++wave_;
  }
  touched_[static_cast<std::size_t>(update.row)] = wave_;
  updates_.push_back(update);
}

void DevicePageTable::set(std::int64_t row, std::int64_t column, std::span<const PageId> pages) {
  const auto count = static_cast<std::int64_t>(pages.size());
  if (row < 0 || row >= options_.rows || column < 0 || column > options_.columns ||
      count > options_.columns - column) {
    throw InvalidArgument("row " + std::to_string(row) + ", pages " + std::to_string(column) +
                          " + " + std::to_string(count) + ", of a table of " +
                          std::to_string(options_.rows) + " rows of " +
                          std::to_string(options_.columns) + " pages");
  }
  for (const PageId page : pages) {
    if (index_of(page) < 0 || index_of(page) >= options_.pages) {
      throw PageError(PageError::Kind::out_of_range, page, 0,
                      "page " + std::to_string(index_of(page)) + " for row " + std::to_string(row) +
                          " of a table over " + std::to_string(options_.pages) + " pages");
    }
  }
  if (count == 0) return;
  if (static_cast<std::int64_t>(values_.size()) + count > options_.batch_pages_max ||
      pending() >= options_.batch_updates_max) {
    throw InvalidArgument("more than " + std::to_string(options_.batch_pages_max) + " pages or " +
                          std::to_string(options_.batch_updates_max) +
                          " updates collected without a flush");
  }
  add({.row = row,
       .column = column,
       .count = count,
       .source = static_cast<std::int64_t>(values_.size())});
  for (const PageId page : pages) values_.push_back(index_of(page));
}

void DevicePageTable::clear(std::int64_t row, std::int64_t column, std::int64_t count) {
  if (row < 0 || row >= options_.rows || column < 0 || count < 0 || column > options_.columns ||
      count > options_.columns - column) {
    throw InvalidArgument("row " + std::to_string(row) + ", pages " + std::to_string(column) +
                          " + " + std::to_string(count) + " to clear, of a table of " +
                          std::to_string(options_.rows) + " rows of " +
                          std::to_string(options_.columns) + " pages");
  }
  if (count == 0) return;
  if (pending() >= options_.batch_updates_max) {
    throw InvalidArgument("more than " + std::to_string(options_.batch_updates_max) +
                          " updates collected without a flush");
  }
  add({.row = row, .column = column, .count = count, .source = -1});
}

bool DevicePageTable::flush(cudaStream_t stream) {
  if (capturing(stream)) {
    throw InvalidArgument("a page table is flushed between graph launches, not captured");
  }
  if (updates_.empty()) return true;
  if (!staging_.ready()) return false;
  std::byte* const block = staging_.block();
  auto* const ranges = reinterpret_cast<kernels::TableRange*>(block);
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    ranges[i] = {.first = updates_[i].row * options_.columns + updates_[i].column,
                 .count = static_cast<std::int32_t>(updates_[i].count),
                 .source = static_cast<std::int32_t>(updates_[i].source)};
  }
  const std::size_t range_bytes = updates_.size() * sizeof(kernels::TableRange);
  const std::size_t value_bytes = values_.size() * sizeof(std::int32_t);
  if (value_bytes > 0) std::memcpy(block + range_bytes, values_.data(), value_bytes);
  PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(batch_.data(), block, range_bytes + value_bytes,
                                       cudaMemcpyHostToDevice, stream));
  staging_.submit(stream);

  kernels::TableUpdateArguments arguments;
  arguments.entries = entries_.data();
  arguments.entry_bytes = static_cast<std::int32_t>(bytes_of(options_.type));
  arguments.slots_per_page = slots_per_page(options_);
  arguments.values = reinterpret_cast<const std::int32_t*>(batch_.data() + range_bytes);
  waves_.push_back(updates_.size());
  std::size_t first = 0;
  for (const std::size_t last : waves_) {
    arguments.ranges = batch_.as<kernels::TableRange>() + first;
    arguments.range_count = static_cast<std::int32_t>(last - first);
    PACKSTONE_CUDA_CHECK(kernels::launch_update_table(
        arguments, std::min(arguments.range_count, kUpdateBlocks), stream));
    first = last;
  }
  updates_.clear();
  values_.clear();
  waves_.clear();
  ++wave_;
  return true;
}

}  // namespace packstone::cuda
