// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/draft_commit.hpp>

#include <algorithm>
#include <string>

namespace packstone::cuda {

namespace {

// Slices of this many bytes keep a block's share of shared memory small enough for four blocks a
// multiprocessor at 65 nodes, and whole cache lines together.
constexpr std::int64_t kSliceBytesMax = 512;
constexpr std::int64_t kSharedBytesWanted = 48 * 1024;
constexpr std::int32_t kBlocksPerMultiprocessor = 4;

}  // namespace

DraftCommit::DraftCommit(const DevicePool& pool, const DraftCommitOptions& options)
    : pool_(&pool), options_(options), limits_(current_device_limits()) {
  if (options.batch_max < 1 || options.nodes_max < 1) {
    throw InvalidArgument("draft commit for a batch of " + std::to_string(options.batch_max) +
                          ", trees of " + std::to_string(options.nodes_max) + " nodes");
  }
  require_current_device(pool.device(), "the pool");
  const auto fits = [&](std::int64_t shared) {
    return std::min<std::int64_t>(
               (shared - kernels::commit_shared_bytes(options.nodes_max, 0)) / options.nodes_max,
               kSliceBytesMax) /
           16 * 16;
  };
  // Static shared memory of the kernel comes out of the same limit.
  const std::int64_t most = limits_.shared_bytes_per_block - 128;
  std::int64_t slice = fits(std::min(kSharedBytesWanted, most));
  if (slice < 128) slice = std::min<std::int64_t>(fits(most), 128);
  if (slice < 16) {
    throw UnsupportedDevice(
        "a tree of " + std::to_string(options.nodes_max) + " nodes does not fit the device's " +
        std::to_string(limits_.shared_bytes_per_block) + " bytes of shared memory a block");
  }
  slice_bytes_ = static_cast<std::int32_t>(slice);
  const std::span<const RowPlane> planes = pool.row_planes();
  plane_count_ = static_cast<std::int32_t>(planes.size());
  planes_ = DeviceMemory(static_cast<Bytes>(planes.size_bytes()));
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(planes_.data(), planes.data(), planes.size_bytes(), cudaMemcpyHostToDevice));
  faults_ = DeviceMemory(Bytes{options.batch_max} * 4);
  PACKSTONE_CUDA_CHECK(cudaMemset(faults_.data(), 0, static_cast<std::size_t>(faults_.bytes())));
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  PACKSTONE_CUDA_CHECK(kernels::prepare_commit_path(limits_.shared_bytes_per_block));
}

void DraftCommit::commit(const CommitBatch& batch, cudaStream_t stream) const {
  if (batch.batch < 0 || batch.batch > options_.batch_max) {
    throw InvalidArgument("a commit of " + std::to_string(batch.batch) + " sequences, at most " +
                          std::to_string(options_.batch_max));
  }
  if (batch.batch == 0) return;
  if (batch.lengths == nullptr || batch.counts == nullptr || batch.path == nullptr ||
      batch.table.entries == nullptr) {
    throw InvalidArgument("a commit without lengths, counts, path or table");
  }
  if (batch.path_stride < options_.nodes_max) {
    throw InvalidArgument("path rows of " + std::to_string(batch.path_stride) +
                          " entries for trees of " + std::to_string(options_.nodes_max));
  }
  if (batch.table.page_size != 1 && batch.table.page_size != pool_->page_size()) {
    throw InvalidArgument("a table of page size " + std::to_string(batch.table.page_size) +
                          " over a pool of page size " + std::to_string(pool_->page_size()));
  }
  require_current_device(limits_.device, "the draft commit");
  kernels::CommitArguments arguments;
  arguments.planes = planes_.as<RowPlane>();
  arguments.plane_count = plane_count_;
  arguments.page_size = pool_->page_size();
  arguments.pages = pool_->pages();
  arguments.table = batch.table;
  arguments.batch = batch.batch;
  arguments.lengths = batch.lengths;
  arguments.counts = batch.counts;
  arguments.path = batch.path;
  arguments.path_stride = batch.path_stride;
  arguments.nodes_max = options_.nodes_max;
  arguments.slice_bytes = slice_bytes_;
  arguments.errors = faults_.as<std::int32_t>();
  PACKSTONE_CUDA_CHECK(kernels::launch_commit_path(
      arguments, limits_.multiprocessors * kBlocksPerMultiprocessor, stream));
}

}  // namespace packstone::cuda
