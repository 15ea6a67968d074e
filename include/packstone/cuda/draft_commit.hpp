// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Commit of a draft tree on the device: the rows of the accepted path move to the front.
///
/// A tree of q nodes occupies tokens length .. length + q - 1 of its sequence. Verification accepts
/// a path of nodes n_0 < n_1 < ... (a child's number exceeds its parent's); afterwards token
/// length + k must hold the row of node n_k. All buffers of all layers move in one launch; sources
/// and targets may overlap, because each block stages all rows of its slice before it stores one
/// (the two phases of TensorRT-LLM's cache update).

#include <packstone/cuda/device_pool.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace packstone::cuda {

/// Why a sequence's commit moved nothing; DraftCommit writes it for each sequence.
enum class CommitFault : std::int32_t {
  none = 0,
  bad_count = 1,      ///< accepted count below 0 or above nodes_max, or a negative length
  bad_path = 2,       ///< node numbers not ascending, negative, or nodes_max and above
  outside_table = 3,  ///< a token past the table's row, or an entry that is page 0 or no page
};

struct DraftCommitOptions {
  std::int32_t batch_max{0};  ///< sequences, >= 1
  std::int32_t nodes_max{0};  ///< nodes of one tree, >= 1
};

/// What a commit reads: all pointers to device memory, all read when the kernel runs, so that a
/// captured graph sees later values.
struct CommitBatch {
  /// Token-index (page_size 1) or page-index rows; a row must reach to token length + the last
  /// accepted node. Row b belongs to sequence b.
  TokenTable table{};
  std::int32_t batch{0};                 ///< 0 .. batch_max; padded sequences have count 0
  const std::int32_t* lengths{nullptr};  ///< [batch] tokens before the tree, >= 0
  const std::int32_t* counts{nullptr};  ///< [batch] accepted nodes, 0 .. nodes_max; 0 moves nothing
  const std::int32_t* path{
      nullptr};                 ///< [batch, path_stride]; entries from counts[b] up are not read
  std::int64_t path_stride{0};  ///< entries, >= nodes_max
};

class DraftCommit {
 public:
  /// The pool must outlive this object. Throws UnsupportedDevice when nodes_max rows do not fit the
  /// device's shared memory 16 bytes at a time, InvalidArgument for options outside their range.
  DraftCommit(const DevicePool& pool, const DraftCommitOptions& options);

  /// One launch in order of `stream`; does not synchronise; may be captured. Everything that
  /// `batch` points to must stay until it has run. Work that reads the moved tokens must be ordered
  /// after it, and nothing else may write to these sequences' tails meanwhile. A sequence at fault
  /// moves no row in any plane; the others are committed. Throws InvalidArgument before any launch
  /// for a batch above batch_max, a null pointer, a path stride below nodes_max, or a table page
  /// size that is neither 1 nor the pool's.
  void commit(const CommitBatch& batch, cudaStream_t stream) const;

  /// [batch_max] in device memory: CommitFault of each sequence of the last commit.
  [[nodiscard]] const std::int32_t* faults() const { return faults_.as<std::int32_t>(); }

 private:
  const DevicePool* pool_;
  DraftCommitOptions options_;
  DeviceLimits limits_;
  DeviceMemory planes_;
  DeviceMemory faults_;
  std::int32_t plane_count_{0};
  std::int32_t slice_bytes_{0};
};

}  // namespace packstone::cuda
