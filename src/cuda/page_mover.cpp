// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/page_mover.hpp>

#include <algorithm>
#include <bit>
#include <string>

namespace packstone::cuda {

namespace {

// A block that works through registers keeps 8 x 16 bytes a thread in flight; two blocks of 4 warps
// fill the register file's share that leaves room for attention.
constexpr std::int32_t kRegisterBlocksPerMultiprocessor = 4;

std::int32_t width_of(const PagePlane& plane) {
  const std::uint64_t bits = plane.base | static_cast<std::uint64_t>(plane.stride) |
                             static_cast<std::uint64_t>(plane.bytes) | 16U;
  return std::int32_t{1} << std::countr_zero(bits);
}

/// How pages of `bytes` bytes are cut into tiles of at most `stage` bytes.
void cut(kernels::MoveClass& result, std::int64_t stage) {
  const Bytes bytes = result.page_bytes;
  if (bytes <= stage) {
    result.group = static_cast<std::int32_t>(std::clamp<std::int64_t>(stage / bytes, 1, 32));
    result.chunks = 1;
    result.chunk_bytes = 0;
    return;
  }
  // Equal chunks, in whole 128-byte lines, so that no chunk is a short rest.
  const std::int64_t chunks = (bytes + stage - 1) / stage;
  const std::int64_t chunk = std::min((bytes / chunks + 127) / 128 * 128, stage);
  result.group = 1;
  result.chunk_bytes = static_cast<std::int32_t>(chunk);
  result.chunks = static_cast<std::int32_t>((bytes + chunk - 1) / chunk);
}

void upload(DeviceMemory& memory, const void* data, std::size_t bytes) {
  memory = DeviceMemory(static_cast<Bytes>(bytes));
  PACKSTONE_CUDA_CHECK(cudaMemcpy(memory.data(), data, bytes, cudaMemcpyHostToDevice));
}

void validate(const MoverTuning& tuning) {
  const bool good = tuning.multiprocessors >= 0 && tuning.warps >= 1 && tuning.warps <= 8 &&
                    (tuning.stages == 2 || tuning.stages == 4) && tuning.stage_bytes >= 128 &&
                    tuning.stage_bytes % 128 == 0 && tuning.blocks_per_multiprocessor >= 1 &&
                    tuning.claim_tiles >= 1;
  if (!good) {
    throw InvalidArgument("mover tuning: " + std::to_string(tuning.multiprocessors) +
                          " multiprocessors, " + std::to_string(tuning.warps) + " warps, " +
                          std::to_string(tuning.stages) + " stages of " +
                          std::to_string(tuning.stage_bytes) + " bytes, " +
                          std::to_string(tuning.blocks_per_multiprocessor) + " blocks, claims of " +
                          std::to_string(tuning.claim_tiles) + " tiles");
  }
}

kernels::MovePagesLaunch launch_of(const MoverTuning& tuning, bool bulk, std::int32_t blocks) {
  return {.bulk = bulk,
          .loads = tuning.loads,
          .stores = tuning.stores,
          .stages = tuning.stages,
          .stage_bytes = tuning.stage_bytes,
          .warps = tuning.warps,
          .claim_tiles = tuning.claim_tiles,
          .blocks = blocks};
}

}  // namespace

void MoveCheck::require(std::span<const PageMove> moves, bool distinct_sources) {
  constexpr std::uint8_t kSource = 1;
  constexpr std::uint8_t kDestination = 2;
  const auto pages = static_cast<PageCount>(marks_.size());
  std::size_t marked = 0;
  const auto clear = [&] {
    for (const PageMove& move : moves.first(marked)) {
      marks_[static_cast<std::size_t>(index_of(move.from))] = 0;
      marks_[static_cast<std::size_t>(index_of(move.to))] = 0;
    }
  };
  const auto refuse = [&](PageError::Kind kind, PageId page, const PageMove& move,
                          const char* what) {
    clear();
    throw PageError(kind, page, 0,
                    "move of page " + std::to_string(index_of(move.from)) + " to " +
                        std::to_string(index_of(move.to)) + ": " + what);
  };
  for (const PageMove& move : moves) {
    for (const PageId page : {move.from, move.to}) {
      if (index_of(page) < 0 || index_of(page) >= pages) {
        refuse(PageError::Kind::out_of_range, page, move, "no such page");
      }
      if (page == kReservedPage) {
        refuse(PageError::Kind::reserved_page, page, move, "page 0 is reserved");
      }
    }
    std::uint8_t& source = marks_[static_cast<std::size_t>(index_of(move.from))];
    std::uint8_t& destination = marks_[static_cast<std::size_t>(index_of(move.to))];
    ++marked;
    if (distinct_sources && (source & kSource) != 0) {
      refuse(PageError::Kind::duplicate, move.from, move, "the source stands twice");
    }
    if ((destination & kDestination) != 0) {
      refuse(PageError::Kind::duplicate, move.to, move, "the destination stands twice");
    }
    source |= kSource;
    destination |= kDestination;
    if (source == (kSource | kDestination) || destination == (kSource | kDestination)) {
      refuse(PageError::Kind::duplicate, source == (kSource | kDestination) ? move.from : move.to,
             move, "the page is both source and destination");
    }
  }
  clear();
}

PageMover::PageMover(std::span<const DevicePool* const> pools, const MoverTuning& tuning)
    : limits_(current_device_limits()), tuning_(tuning) {
  validate(tuning);
  if (pools.empty()) throw InvalidArgument("a mover without a pool");
  pages_ = pools.front()->pages();
  page_size_ = pools.front()->page_size();
  for (const DevicePool* pool : pools) {
    if (pool->pages() != pages_ || pool->page_size() != page_size_) {
      throw InvalidArgument("pools of " + std::to_string(pages_) + " and " +
                            std::to_string(pool->pages()) + " pages moved together");
    }
    require_current_device(pool->device(), "a pool");
    planes_.insert(planes_.end(), pool->page_planes().begin(), pool->page_planes().end());
  }
  // Wide planes first, so that linear memory keeps their alignment; equal ones become one class.
  std::ranges::stable_sort(planes_, [](const PagePlane& a, const PagePlane& b) {
    return std::pair(width_of(a), a.bytes) > std::pair(width_of(b), b.bytes);
  });

  bulk_ = tuning.bulk && limits_.code_capability >= 90;
  const std::int32_t per_multiprocessor =
      bulk_ ? tuning.blocks_per_multiprocessor : kRegisterBlocksPerMultiprocessor;
  if (bulk_) {
    const std::int64_t rings = std::int64_t{tuning.warps} * tuning.stages;
    const std::int64_t room = limits_.shared_bytes_per_block / per_multiprocessor - rings * 8 - 128;
    const std::int64_t stage = std::min<std::int64_t>(tuning.stage_bytes, room / rings / 128 * 128);
    if (stage < 128) {
      throw UnsupportedDevice("moving pages needs " + std::to_string(rings * 136 + 128) +
                              " bytes of shared memory a block, the device has " +
                              std::to_string(limits_.shared_bytes_per_block));
    }
    tuning_.stage_bytes = static_cast<std::int32_t>(stage);
  }
  const std::int32_t multiprocessors =
      tuning.multiprocessors == 0 ? limits_.multiprocessors
                                  : std::min(tuning.multiprocessors, limits_.multiprocessors);
  blocks_ = multiprocessors * per_multiprocessor;

  std::vector<kernels::MoveClass> classes;
  for (const PagePlane& plane : planes_) {
    const std::int32_t width = width_of(plane);
    prefix_.push_back(page_bytes_);
    if (classes.empty() || classes.back().width != width ||
        classes.back().page_bytes != plane.bytes) {
      const auto index = static_cast<std::int64_t>(prefix_.size()) - 1;
      kernels::MoveClass next{};
      next.first_plane = index;
      next.page_bytes = plane.bytes;
      next.linear_prefix = page_bytes_;
      next.unit_prefix = index;
      next.width = width;
      cut(next, tuning_.stage_bytes);
      classes.push_back(next);
    }
    ++classes.back().planes;
    page_bytes_ += plane.bytes;
  }
  class_count_ = static_cast<std::int32_t>(classes.size());
  claims_ = DeviceMemory(8);
  PACKSTONE_CUDA_CHECK(cudaMemset(claims_.data(), 0, 8));
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  upload(device_planes_, planes_.data(), planes_.size() * sizeof(PagePlane));
  upload(device_classes_, classes.data(), classes.size() * sizeof(kernels::MoveClass));
  PACKSTONE_CUDA_CHECK(kernels::prepare_move_pages(launch_of(tuning_, bulk_, blocks_),
                                                   limits_.shared_bytes_per_block));
}

namespace {

kernels::MovePagesArguments arguments_of(const DeviceMemory& classes, std::int32_t class_count,
                                         const DeviceMemory& claims, const PageMover::List& list) {
  kernels::MovePagesArguments arguments;
  arguments.classes = classes.as<kernels::MoveClass>();
  arguments.class_count = class_count;
  arguments.claims = claims.as<std::uint32_t>();
  arguments.moves = list.moves;
  arguments.count = list.count;
  arguments.count_max = list.count_max;
  return arguments;
}

}  // namespace

void PageMover::copy(const List& list, cudaStream_t stream) const {
  move(list, nullptr, nullptr, stream);
}

void PageMover::move(const List& list, void* stamps, const std::uint32_t* generation,
                     cudaStream_t stream) const {
  require_current_device(limits_.device, "the mover");
  kernels::MovePagesArguments arguments =
      arguments_of(device_classes_, class_count_, claims_, list);
  arguments.source = device_planes_.as<PagePlane>();
  arguments.destination = device_planes_.as<PagePlane>();
  arguments.stamps = static_cast<kernels::Stamp*>(stamps);
  arguments.generation = generation;
  PACKSTONE_CUDA_CHECK(
      kernels::launch_move_pages(arguments, launch_of(tuning_, bulk_, blocks_), stream));
}

Bytes PageMover::linear_offset(std::int64_t unit, std::int64_t moves) const {
  const auto plane = static_cast<std::size_t>(moves == 0 ? 0 : unit / moves);
  if (plane >= planes_.size()) return page_bytes_ * moves;
  return prefix_[plane] * moves +
         (unit - static_cast<std::int64_t>(plane) * moves) * planes_[plane].bytes;
}

void PageMover::gather(const List& list, std::uint64_t linear, std::int64_t first,
                       std::int64_t last, std::int64_t moves, cudaStream_t stream) const {
  require_current_device(limits_.device, "the mover");
  kernels::MovePagesArguments arguments =
      arguments_of(device_classes_, class_count_, claims_, list);
  arguments.source = device_planes_.as<PagePlane>();
  arguments.destination_linear = linear - static_cast<std::uint64_t>(linear_offset(first, moves));
  arguments.first_unit = first;
  arguments.last_unit = last;
  PACKSTONE_CUDA_CHECK(
      kernels::launch_move_pages(arguments, launch_of(tuning_, bulk_, blocks_), stream));
}

void PageMover::scatter(const List& list, std::uint64_t linear, std::int64_t first,
                        std::int64_t last, std::int64_t moves, cudaStream_t stream) const {
  require_current_device(limits_.device, "the mover");
  kernels::MovePagesArguments arguments =
      arguments_of(device_classes_, class_count_, claims_, list);
  arguments.destination = device_planes_.as<PagePlane>();
  arguments.source_linear = linear - static_cast<std::uint64_t>(linear_offset(first, moves));
  arguments.first_unit = first;
  arguments.last_unit = last;
  PACKSTONE_CUDA_CHECK(
      kernels::launch_move_pages(arguments, launch_of(tuning_, bulk_, blocks_), stream));
}

}  // namespace packstone::cuda
