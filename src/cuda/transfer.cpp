// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/transfer.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace packstone::cuda {

namespace {

constexpr std::size_t kListHeader = 16;  // the count, and padding that keeps the moves aligned

TransferOptions checked(const TransferOptions& options) {
  if (options.pages_max < 1 || options.pages_max > std::numeric_limits<std::int32_t>::max() ||
      options.stretch_bytes < 1 || options.batched_bytes_min < 0) {
    throw InvalidArgument("a transfer of " + std::to_string(options.pages_max) +
                          " pages through stretches of " + std::to_string(options.stretch_bytes) +
                          " bytes");
  }
  return options;
}

Bytes list_bytes(std::int64_t pages) {
  return static_cast<Bytes>(kListHeader) + pages * static_cast<Bytes>(sizeof(PageMove));
}

void* address(std::uint64_t value) {
  return reinterpret_cast<void*>(value);
}

}  // namespace

std::vector<PageRun> runs_of(std::span<const PageId> pages) {
  std::vector<PageRun> runs;
  for (const PageId page : pages) {
    if (!runs.empty() && page_after(runs.back().first, runs.back().count) == page) {
      ++runs.back().count;
    } else {
      runs.push_back({page, 1});
    }
  }
  return runs;
}

Transfer::Transfer(const DevicePool& pool, const TransferOptions& options)
    : pool_(&pool),
      options_(checked(options)),
      mover_(std::array{&pool}, options.tuning),
      staging_(options.staging_blocks, list_bytes(options.pages_max)),
      list_(list_bytes(options.pages_max)),
      marks_(static_cast<std::size_t>(pool.pages() / 64 + 1), 0) {
  Bytes stretch = options.stretch_bytes;
  for (const PagePlane& plane : mover_.planes()) stretch = std::max(stretch, plane.bytes);
  options_.stretch_bytes = stretch;
  for (Stretch& s : stretches_) s.memory = DeviceMemory(stretch);
}

PageMover::List Transfer::list() const {
  return {.moves = reinterpret_cast<const PageMove*>(list_.data() + kListHeader),
          .count = list_.as<std::int32_t>(),
          .count_max = static_cast<std::int32_t>(options_.pages_max)};
}

TransferMethod Transfer::choose(std::span<const PageId> pages) const {
  if (pages.empty()) return TransferMethod::staged;
  // A run is contiguous only where pages follow each other without gaps.
  const auto count = static_cast<std::int64_t>(pages.size());
  std::int64_t whole = 0;  // pieces of a plane with gaps: its pages
  std::int64_t joining = 0;
  for (const PagePlane& plane : mover_.planes()) {
    (plane.stride == plane.bytes ? joining : whole) += 1;
  }
  // Most runs of a plane whose pieces still have batched_bytes_min on average. Scattered lists are
  // long, and a few of their runs tell.
  const std::int64_t pieces_max = bytes(count) / std::max<Bytes>(options_.batched_bytes_min, 1);
  const std::int64_t left = pieces_max - count * whole;
  if (joining == 0) return left >= 0 ? TransferMethod::batched : TransferMethod::staged;
  const std::int64_t runs_max = left / joining;
  std::int64_t runs = 1;
  for (std::size_t i = 1; i < pages.size() && runs <= runs_max; ++i) {
    runs += index_of(pages[i]) == index_of(pages[i - 1]) + 1 ? 0 : 1;
  }
  return runs <= runs_max ? TransferMethod::batched : TransferMethod::staged;
}

bool Transfer::gather(std::span<const PageId> pages, void* host, TransferMethod method,
                      cudaStream_t stream) {
  return run(pages, static_cast<std::byte*>(host), method, Way::to_host, stream);
}

bool Transfer::scatter(std::span<const PageId> pages, const void* host, TransferMethod method,
                       cudaStream_t stream) {
  require_distinct(pages);
  return run(pages, static_cast<std::byte*>(const_cast<void*>(host)), method, Way::to_pool, stream);
}

void Transfer::require_distinct(std::span<const PageId> pages) {
  std::size_t marked = 0;
  bool twice = false;
  for (; marked < pages.size() && !twice; ++marked) {
    const std::int32_t page = index_of(pages[marked]);
    if (page < 0 || page >= pool_->pages()) break;  // found again, and named, by run
    std::uint64_t& word = marks_[static_cast<std::size_t>(page) / 64];
    const std::uint64_t bit = std::uint64_t{1} << (page % 64);
    twice = (word & bit) != 0 || page == 0;
    word |= bit;
  }
  for (const PageId page : pages.first(marked)) {
    marks_[static_cast<std::size_t>(index_of(page)) / 64] = 0;
  }
  if (!twice) return;
  const PageId page = pages[marked - 1];
  throw PageError(
      page == kReservedPage ? PageError::Kind::reserved_page : PageError::Kind::duplicate, page, 0,
      "scatter to page " + std::to_string(index_of(page)) + ", which is reserved or named twice");
}

bool Transfer::run(std::span<const PageId> pages, std::byte* host, TransferMethod method, Way way,
                   cudaStream_t stream) {
  const auto count = static_cast<std::int64_t>(pages.size());
  if (count > options_.pages_max) {
    throw InvalidArgument("a transfer of " + std::to_string(count) + " pages, at most " +
                          std::to_string(options_.pages_max));
  }
  // One branch-free pass for the usual case: lists of page size 1 are long.
  std::int32_t lowest = 0;
  std::int32_t highest = 0;
  for (const PageId page : pages) {
    lowest = std::min(lowest, index_of(page));
    highest = std::max(highest, index_of(page));
  }
  if (lowest < 0 || highest >= pool_->pages()) {
    const PageId page{lowest < 0 ? lowest : highest};
    throw PageError(PageError::Kind::out_of_range, page, 0,
                    "transfer of page " + std::to_string(index_of(page)));
  }
  if (count == 0) return true;
  if (host == nullptr || reinterpret_cast<std::uintptr_t>(host) % 256 != 0) {
    throw InvalidArgument("host memory of a transfer is null or not 256-byte aligned");
  }
  if (capturing(stream)) throw InvalidArgument("transfers are queued between graph launches");
  require_current_device(mover_.device(), "the transfer");
  if (method == TransferMethod::automatic) method = choose(pages);
  if (method == TransferMethod::batched) {
    batched(pages, host, way, stream);
    return true;
  }
  if (!staging_.ready()) return false;
  done_.wait(stream);
  if (method == TransferMethod::direct) {
    upload(pages, 0, pages.size(), stream);
    const std::int64_t units = count * static_cast<std::int64_t>(mover_.planes().size());
    const auto linear = reinterpret_cast<std::uint64_t>(host);
    if (way == Way::to_host) {
      mover_.gather(list(), linear, 0, units, count, stream);
    } else {
      mover_.scatter(list(), linear, 0, units, count, stream);
    }
  } else {
    staged(pages, host, way, stream);
  }
  staging_.submit(stream);
  done_.record(stream);
  return true;
}

void Transfer::upload(std::span<const PageId> pages, std::size_t first, std::size_t last,
                      cudaStream_t stream) {
  if (first == last) return;
  std::byte* const block = staging_.block();
  auto* const moves = reinterpret_cast<PageMove*>(block + kListHeader);
  for (std::size_t i = first; i < last; ++i) moves[i] = {pages[i], pages[i]};
  std::size_t begin = kListHeader + first * sizeof(PageMove);
  if (first == 0) {
    *reinterpret_cast<std::int32_t*>(block) = static_cast<std::int32_t>(pages.size());
    begin = 0;
  }
  PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(list_.data() + begin, block + begin,
                                       kListHeader + last * sizeof(PageMove) - begin,
                                       cudaMemcpyHostToDevice, stream));
}

void Transfer::staged(std::span<const PageId> list_pages, std::byte* host, Way way,
                      cudaStream_t stream) {
  const auto pages = static_cast<std::int64_t>(list_pages.size());
  std::int64_t listed = 0;  // moves on the device so far: the first stretch need not wait for all
  const std::int64_t units = pages * static_cast<std::int64_t>(mover_.planes().size());
  // The engines start after what is queued before this call: it may write `host`, or read it.
  start_.record(stream);
  for (const Stretch& stretch : stretches_) start_.wait(stretch.engine.get());
  std::size_t turn = 0;
  for (std::int64_t first = 0; first < units; ++turn) {
    const Bytes start = mover_.linear_offset(first, pages);
    // The last unit that still fits, by bisection: planes differ in their pages' bytes.
    std::int64_t last = first + 1;
    for (std::int64_t end = units; last < end;) {
      const std::int64_t middle = last + (end - last + 1) / 2;
      if (mover_.linear_offset(middle, pages) - start <= options_.stretch_bytes) {
        last = middle;
      } else {
        end = middle - 1;
      }
    }
    const auto size = static_cast<std::size_t>(mover_.linear_offset(last, pages) - start);
    const std::int64_t needed = std::max(listed, std::min(last, pages));
    upload(list_pages, static_cast<std::size_t>(listed), static_cast<std::size_t>(needed), stream);
    listed = needed;
    Stretch& stretch = stretches_[turn % stretches_.size()];
    cudaStream_t const engine = stretch.engine.get();
    const auto linear = reinterpret_cast<std::uint64_t>(stretch.memory.data());
    if (way == Way::to_host) {
      stretch.emptied.wait(stream);
      mover_.gather(list(), linear, first, last, pages, stream);
      stretch.filled.record(stream);
      stretch.filled.wait(engine);
      PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(host + start, stretch.memory.data(), size,
                                           cudaMemcpyDeviceToHost, engine));
      stretch.emptied.record(engine);
    } else {
      stretch.emptied.wait(engine);
      PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(stretch.memory.data(), host + start, size,
                                           cudaMemcpyHostToDevice, engine));
      stretch.filled.record(engine);
      stretch.filled.wait(stream);
      mover_.scatter(list(), linear, first, last, pages, stream);
      stretch.emptied.record(stream);
    }
    first = last;
  }
  for (const Stretch& stretch : stretches_) stretch.emptied.wait(stream);
}

void Transfer::batched(std::span<const PageId> pages, std::byte* host, Way way,
                       cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) {
    throw InvalidArgument("batched copies do not run on the legacy default stream");
  }
  const std::vector<PageRun> runs = runs_of(pages);
  const auto count = static_cast<std::int64_t>(pages.size());
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  std::vector<std::size_t> sizes;
  const auto add = [&](std::uint64_t device, std::byte* at, Bytes size) {
    sources.push_back(way == Way::to_host ? address(device) : static_cast<void*>(at));
    destinations.push_back(way == Way::to_host ? static_cast<void*>(at) : address(device));
    sizes.push_back(static_cast<std::size_t>(size));
  };
  std::int64_t unit = 0;
  for (const PagePlane& plane : mover_.planes()) {
    std::byte* at = host + mover_.linear_offset(unit, count);
    unit += count;
    for (const PageRun& run : runs) {
      const std::uint64_t device =
          plane.base + static_cast<std::uint64_t>(index_of(run.first) * plane.stride);
      if (plane.stride == plane.bytes) {
        add(device, at, plane.bytes * run.count);
        at += plane.bytes * run.count;
        continue;
      }
      for (std::int32_t i = 0; i < run.count; ++i, at += plane.bytes) {
        add(device + static_cast<std::uint64_t>(i * plane.stride), at, plane.bytes);
      }
    }
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  PACKSTONE_CUDA_CHECK(cudaMemcpyBatchAsync(destinations.data(), sources.data(), sizes.data(),
                                            sizes.size(), &attributes, &first, 1, stream));
}

namespace {

kernels::RowsArguments rows_of(const DevicePool& pool, const RowTransfer& rows) {
  if (rows.row_plane >= pool.row_planes().size() || rows.rows < 0 ||
      (rows.rows > 0 && (rows.slots == nullptr || rows.data == nullptr))) {
    throw InvalidArgument("rows of plane " + std::to_string(rows.row_plane) + ", " +
                          std::to_string(rows.rows) + " of them, or null");
  }
  require_current_device(pool.device(), "the pool");
  return {.plane = pool.row_planes()[rows.row_plane],
          .page_size = pool.page_size(),
          .slots = pool.pages() * pool.page_size(),
          .slot = rows.slots,
          .rows = rows.rows,
          .data = static_cast<std::byte*>(rows.data)};
}

}  // namespace

void write_rows(const DevicePool& pool, const RowTransfer& rows, cudaStream_t stream) {
  const kernels::RowsArguments arguments = rows_of(pool, rows);
  if (rows.rows > 0) PACKSTONE_CUDA_CHECK(kernels::launch_write_rows(arguments, stream));
}

void read_rows(const DevicePool& pool, const RowTransfer& rows, cudaStream_t stream) {
  const kernels::RowsArguments arguments = rows_of(pool, rows);
  if (rows.rows > 0) PACKSTONE_CUDA_CHECK(kernels::launch_read_rows(arguments, stream));
}

}  // namespace packstone::cuda
