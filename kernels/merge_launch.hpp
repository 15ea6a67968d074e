// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <packstone/cuda/attention.hpp>

#include <cuda_runtime_api.h>

namespace packstone::kernels {

/// The kernel behind merge_states, for asking the runtime about it.
const void* merge_kernel(FloatType type);
/// Merges params.rows > 0 rows, a warp each. `params` has been checked.
cudaError_t launch_merge(const cuda::MergeParams& params, cudaStream_t stream);

}  // namespace packstone::kernels
