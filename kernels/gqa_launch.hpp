// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Host side of the GQA kernels: which shape, how much scratch, and the launches.

#include "kernels/gqa_args.hpp"

#include <packstone/cuda/memory.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace packstone::kernels {

/// The kernel shape for calls within `options.bounds`.
/// @throws InvalidArgument  no kernel for this head_dim or KV type (64, 128, 256; bf16, fp16, e4m3)
/// @throws cuda::UnsupportedDevice  a block of the device has too little shared memory; names both
/// amounts
GqaPolicy gqa_policy(const VerifyParams& params, const VerifyPlanOptions& options,
                     const cuda::DeviceLimits& device);

/// Bytes of scratch for every call within `options.bounds` whose heads, head_dim, types, mask kind
/// and use of lists are those of `params`; lengths, tables and pointers may differ. A multiple of
/// 256.
/// @throws as gqa_policy, and InvalidArgument for bounds or options below 0
std::int64_t gqa_workspace_bytes(const VerifyParams& params, const VerifyPlanOptions& options,
                                 const cuda::DeviceLimits& device);

/// Enqueues the schedule, the attention and the merge on `stream`, three kernels; two with fixed
/// pieces of one. Reads lengths, tables, masks and lists when they run, so that a captured call
/// replays with other content. Does not synchronise, allocates nothing. `params` must have passed
/// `validate`; what it points to and `workspace` must stay until the work is done, and no other
/// call may use `workspace` meanwhile. Launches nothing when there are no tokens.
///
/// Same inputs, same bits. With `options.batch_invariant` or `splits`, bits of a sequence do not
/// depend on the others.
///
/// @param workspace  device memory, 256-byte aligned; any content
/// @param workspace_bytes  at least gqa_workspace_bytes
/// @param use  `reuse`: without the schedule, which lies in the workspace (see ScheduleUse)
/// @throws InvalidArgument  too little scratch, or more sequences or tokens than the bounds
/// @throws cuda::CudaError  a launch failed
void gqa_verify(const VerifyParams& params, const VerifyPlanOptions& options,
                const cuda::DeviceLimits& device, void* workspace, std::int64_t workspace_bytes,
                cudaStream_t stream, ScheduleUse use = ScheduleUse::make);

/// The kernel of a head_dim and type; one definition a source file.
template <int head_dim, KvType type>
const void* gqa_kernel(GqaShape shape);

/// Launchers of the schedule and of the merge.
cudaError_t launch_gqa_schedule(const GqaArgs& args, const GqaPolicy& policy, cudaStream_t stream);
cudaError_t launch_gqa_combine(const GqaArgs& args, const GqaPolicy& policy,
                               std::int32_t multiprocessors, cudaStream_t stream);

}  // namespace packstone::kernels
