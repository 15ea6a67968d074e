// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tree-verify attention on the device: decode, chains and trees over the paged pool by one call.
///
/// What is computed is said in verify_params.hpp. A call is three kernels on one stream: the
/// schedule, made from the lengths that the device has when it runs; the attention; the merge of
/// what several workers share. So a captured call replays with other lengths, tables and trees.

#include <packstone/cuda/memory.hpp>
#include <packstone/verify_checks.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace packstone::cuda {

/// Attention for one device within static bounds. Policies are chosen from the compute capability
/// when it is made. Holds no device memory; calls of one object may be in flight on several
/// streams, each with a workspace of its own. Thread-compatible.
class TreeVerify {
 public:
  /// For the calling thread's current device.
  /// Throws UnsupportedDevice, naming both sides, when there is no device, its compute capability
  /// is below 8.0 or this binary has no code for it; InvalidArgument for bounds below 0.
  explicit TreeVerify(const VerifyPlanOptions& options);

  [[nodiscard]] const DeviceLimits& device() const { return device_; }

  /// Bytes of scratch for every call whose heads, head dims, types, mask kind and use of lists are
  /// those of `params`, a function of these and of the bounds alone. A multiple of 256.
  /// Throws InvalidArgument for a shape without a kernel, UnsupportedDevice for one whose shared
  /// memory the device lacks.
  [[nodiscard]] std::int64_t workspace_bytes(const VerifyParams& params) const;

  /// Enqueues the call in order of `stream`. Does not synchronise, allocates nothing, reads nothing
  /// back; capturable. All that `params` points to, and the workspace, must stay until the work is
  /// done.
  /// @param workspace  device memory, 256-byte aligned, any content; not used by another call
  ///                   meanwhile
  /// @param view  what the host knows of the arrays; the more, the more mistakes are found before
  ///              the launch (see `validate`)
  /// @param use  `reuse` spares the schedule in all layers of a step but the first
  /// Throws what `validate` throws, InvalidArgument for too little workspace, a passed bound or
  /// another current device, CudaError when a launch fails. Nothing is launched then.
  void run(const VerifyParams& params, void* workspace, std::int64_t workspace_bytes,
           cudaStream_t stream, const HostView& view = {},
           ScheduleUse use = ScheduleUse::make) const;

 private:
  VerifyPlanOptions options_;
  DeviceLimits device_;
};

/// Partial results of the same rows over disjoint sets of tokens, to be merged by the rules of
/// `reference_merge`.
struct MergeParams {
  std::int32_t parts{0};  ///< >= 1
  std::int64_t rows{0};   ///< >= 0
  std::int32_t dim{0};    ///< >= 1
  FloatType type{FloatType::fp32};
  LseBase lse_base{LseBase::natural};
  const void* out{nullptr};         ///< [parts, rows, dim], rows dense
  std::int64_t part_stride{0};      ///< bytes from a part's rows to the next part's; any sign
  const float* lse{nullptr};        ///< [parts, rows]
  std::int64_t lse_part_stride{0};  ///< bytes
  void* merged_out{nullptr};        ///< [rows, dim] of `type`; may be one of the parts
  float* merged_lse{nullptr};       ///< [rows]; may be one of the parts, or null: not wanted
};

/// Merges the parts in order of `stream`. Does not synchronise; capturable.
/// Throws InvalidArgument for counts out of range or a null tensor, CudaError when the launch
/// fails.
void merge_states(const MergeParams& params, cudaStream_t stream);

/// Two parts that lie anywhere: a and b [rows, dim] of `type`, lse [rows]. Same contract.
struct MergePair {
  const void* out;
  const float* lse;
};
void merge_states(const MergePair& a, const MergePair& b, MergeParams params, cudaStream_t stream);

/// One kernel as this device would run it.
struct KernelDescription {
  std::string name;
  int threads{0};
  int shared_bytes{0};  ///< static and dynamic, a block
  int registers{0};     ///< a thread
  int local_bytes{0};   ///< a thread; spills and stack
};

/// What `packstone info` prints.
struct AttentionDescription {
  std::string device_name;
  DeviceLimits limits;
  std::string binary_architectures;  ///< as built, e.g. "80-real 90-real 120a-real"
  std::vector<KernelDescription> kernels;
};
/// Of the current device. Throws UnsupportedDevice as TreeVerify does.
[[nodiscard]] AttentionDescription describe_attention();

}  // namespace packstone::cuda
