// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace packstone::kernels {

/// Lets a kernel have all the dynamic shared memory that a block of the current device may have.
/// @param shared_bytes_max  with the opt-in; the kernel's static memory comes out of it
inline cudaError_t raise_shared_limit(const void* kernel, int shared_bytes_max) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_bytes_max - static_cast<int>(attributes.sharedSizeBytes));
}

}  // namespace packstone::kernels
