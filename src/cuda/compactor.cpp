// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/compactor.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace packstone::cuda {

namespace {

/// What lies before the moves in device memory; one copy brings both.
struct ListHeader {
  std::int32_t count;
  std::uint32_t generation;
  std::uint64_t padding;  // keeps the moves 16-byte aligned
};
static_assert(sizeof(ListHeader) == 16);

// The patch is bound by memory and short; two blocks a multiprocessor keep it so.
constexpr std::int32_t kPatchBlocksPerMultiprocessor = 2;

CompactorOptions checked(const CompactorOptions& options) {
  if (options.moves_max < 1 || options.moves_max > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument("a compactor for " + std::to_string(options.moves_max) + " moves a step");
  }
  return options;
}

Bytes list_bytes(std::int64_t moves) {
  return static_cast<Bytes>(sizeof(ListHeader)) + moves * static_cast<Bytes>(sizeof(PageMove));
}

std::vector<kernels::PatchTarget> targets_of(std::span<const PatchedArray> arrays,
                                             std::int64_t page_size) {
  std::vector<kernels::PatchTarget> targets;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const PatchedArray& array = arrays[i];
    const auto address = reinterpret_cast<std::uintptr_t>(array.entries);
    if (array.count < 0 || (array.entries == nullptr && array.count > 0) ||
        address % static_cast<std::uintptr_t>(bytes_of(array.type)) != 0) {
      throw InvalidArgument("patched array " + std::to_string(i) + ": null, misaligned, or " +
                            std::to_string(array.count) + " entries");
    }
    using Kind = PatchedArray::Kind;
    const bool by_slot = array.kind == Kind::slots || array.kind == Kind::keyed_by_slot;
    const bool keyed = array.kind == Kind::keyed_by_page || array.kind == Kind::keyed_by_slot;
    targets.push_back({.entries = array.entries,
                       .count = array.count,
                       .slots_per_entry = by_slot ? page_size : 1,
                       .bytes = static_cast<std::int32_t>(bytes_of(array.type)),
                       .keys = keyed ? 1 : 0});
  }
  return targets;
}

}  // namespace

Compactor::Compactor(std::span<const DevicePool* const> pools, std::span<const PatchedArray> arrays,
                     const CompactorOptions& options)
    : options_(checked(options)),
      mover_(pools, options.tuning),
      check_(mover_.pages()),
      staging_(options.staging_blocks, list_bytes(options.moves_max)),
      list_(list_bytes(options.moves_max)),
      stamps_(mover_.pages() * static_cast<Bytes>(sizeof(kernels::Stamp))),
      ticket_(sizeof(std::uint32_t)) {
  const std::vector<kernels::PatchTarget> targets = targets_of(arrays, mover_.page_size());
  target_count_ = static_cast<std::int32_t>(targets.size());
  targets_ = DeviceMemory(static_cast<Bytes>(targets.size() * sizeof(kernels::PatchTarget)));
  if (!targets.empty()) {
    PACKSTONE_CUDA_CHECK(cudaMemcpy(targets_.data(), targets.data(),
                                    static_cast<std::size_t>(targets_.bytes()),
                                    cudaMemcpyHostToDevice));
  }
  for (const DeviceMemory* memory : {&list_, &stamps_, &ticket_}) {
    PACKSTONE_CUDA_CHECK(cudaMemset(memory->data(), 0, static_cast<std::size_t>(memory->bytes())));
  }
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

PageMover::List Compactor::list() const {
  return {.moves = reinterpret_cast<const PageMove*>(list_.data() + sizeof(ListHeader)),
          .count = &list_.as<ListHeader>()->count,
          .count_max = static_cast<std::int32_t>(options_.moves_max)};
}

bool Compactor::upload_checked(std::span<const PageMove> moves, cudaStream_t stream) {
  if (static_cast<std::int64_t>(moves.size()) > options_.moves_max) {
    throw InvalidArgument(std::to_string(moves.size()) + " moves for a compactor of " +
                          std::to_string(options_.moves_max));
  }
  if (capturing(stream)) {
    throw InvalidArgument("a list of moves is uploaded between graph launches, not captured");
  }
  require_current_device(mover_.device(), "the compactor");
  if (!staging_.ready()) return false;
  std::byte* const block = staging_.block();
  const ListHeader header{
      .count = static_cast<std::int32_t>(moves.size()), .generation = ++generation_, .padding = 0};
  std::memcpy(block, &header, sizeof(header));
  if (!moves.empty()) std::memcpy(block + sizeof(header), moves.data(), moves.size_bytes());
  // The list in device memory is in use until the last step, on whatever stream, is over.
  done_.wait(stream);
  PACKSTONE_CUDA_CHECK(
      cudaMemcpyAsync(list_.data(), block,
                      static_cast<std::size_t>(list_bytes(static_cast<std::int64_t>(moves.size()))),
                      cudaMemcpyHostToDevice, stream));
  staging_.submit(stream);
  return true;
}

bool Compactor::upload(std::span<const PageMove> moves, cudaStream_t stream) {
  check_.require(moves, true);
  return upload_checked(moves, stream);
}

void Compactor::move(cudaStream_t stream) {
  mover_.move(list(), stamps_.data(), &list_.as<ListHeader>()->generation, stream);
}

void Compactor::patch(cudaStream_t stream) {
  kernels::PatchArguments arguments;
  arguments.targets = targets_.as<kernels::PatchTarget>();
  arguments.target_count = target_count_;
  arguments.stamps = stamps_.as<kernels::Stamp>();
  arguments.pages = mover_.pages();
  arguments.moves = list().moves;
  arguments.count = &list_.as<ListHeader>()->count;
  arguments.generation = &list_.as<ListHeader>()->generation;
  arguments.count_max = list().count_max;
  arguments.ticket = ticket_.as<std::uint32_t>();
  const std::int32_t multiprocessors = options_.tuning.multiprocessors == 0
                                           ? mover_.limits().multiprocessors
                                           : options_.tuning.multiprocessors;
  PACKSTONE_CUDA_CHECK(kernels::launch_patch_tables(
      arguments, multiprocessors * kPatchBlocksPerMultiprocessor, stream));
}

void Compactor::launch(cudaStream_t stream) {
  const bool captured = capturing(stream);
  move(stream);
  patch(stream);
  // An event recorded under capture belongs to the graph; there the caller's stream keeps order.
  if (!captured) done_.record(stream);
}

bool Compactor::compact(std::span<const PageMove> moves, cudaStream_t stream) {
  return compact(moves, stream, stream);
}

bool Compactor::compact(std::span<const PageMove> moves, cudaStream_t move_stream,
                        cudaStream_t table_stream) {
  if (move_stream != table_stream && capturing(table_stream)) {
    throw InvalidArgument("a step is not captured whole: upload between graph launches");
  }
  if (!upload(moves, move_stream)) return false;
  move(move_stream);
  if (move_stream != table_stream) {
    moved_.record(move_stream);
    moved_.wait(table_stream);
  }
  patch(table_stream);
  done_.record(table_stream);
  return true;
}

bool Compactor::copy(std::span<const PageMove> copies, cudaStream_t stream) {
  check_.require(copies, false);
  if (!upload_checked(copies, stream)) return false;
  mover_.copy(list(), stream);
  done_.record(stream);
  return true;
}

}  // namespace packstone::cuda
