// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Host side of the MLA kernels: which shape, how much scratch, and the launches.

#include "kernels/mla_args.hpp"

#include <packstone/cuda/memory.hpp>
#include <packstone/verify_params.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace packstone::kernels {

/// The kernel shape for calls within `options.bounds`.
/// @throws InvalidArgument  `params` are not MLA of 512 latent and 64 or 0 rope values
/// @throws cuda::UnsupportedDevice  a block of the device has too little shared memory; names both
/// amounts
MlaPolicy mla_policy(const VerifyParams& params, const VerifyPlanOptions& options,
                     const cuda::DeviceLimits& device);

/// Bytes of scratch for every call within `options.bounds` whose heads, types, mask kind and use of
/// lists are those of `params`; lengths, tables and pointers may differ. A multiple of 256.
/// @throws as mla_policy, and InvalidArgument for bounds or options below 0
std::int64_t mla_workspace_bytes(const VerifyParams& params, const VerifyPlanOptions& options,
                                 const cuda::DeviceLimits& device);

/// Enqueues the schedule, the attention and the merge on `stream`, three kernels. Reads lengths,
/// tables, masks and lists when they run, so that a captured call replays with other content. Does
/// not synchronise, allocates nothing. `params` must have passed `validate`; what it points to and
/// `workspace` must stay until the work is done, and no other call may use `workspace` meanwhile.
/// Launches nothing when there are no tokens.
///
/// Same inputs, same bits. With `options.batch_invariant` or `splits`, bits of a sequence do not
/// depend on the others.
///
/// @param workspace  device memory, 256-byte aligned; any content
/// @param workspace_bytes  at least mla_workspace_bytes
/// @param use  `reuse`: without the schedule, which lies in the workspace (see ScheduleUse)
/// @throws InvalidArgument  too little scratch, or more sequences or tokens than the bounds
/// @throws cuda::CudaError  a launch failed
void mla_verify(const VerifyParams& params, const VerifyPlanOptions& options,
                const cuda::DeviceLimits& device, void* workspace, std::int64_t workspace_bytes,
                cudaStream_t stream, ScheduleUse use = ScheduleUse::make);

/// The kernel of a KV type; one definition a source file.
template <KvType type>
const void* mla_kernel(MlaShape shape);
/// The kernel of a policy.
const void* mla_kernel_of(const MlaPolicy& policy);

/// The schedule: its kernel, and its grid.
inline constexpr unsigned kMlaScheduleThreads = 1024;
const void* mla_schedule_kernel();
dim3 mla_schedule_grid(const MlaArgs& args);
/// The merge of partials: its kernel, and its grid, of which x = 0 means that there is none.
inline constexpr unsigned kMlaCombineThreads = 512;
const void* mla_combine_kernel();
dim3 mla_combine_grid(const MlaArgs& args, std::int64_t parts_max);

}  // namespace packstone::kernels
