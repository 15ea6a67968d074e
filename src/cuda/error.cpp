// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/error.hpp>

#include <string>

namespace packstone::cuda::detail {

void check(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CudaError(code, std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                            cudaGetErrorName(code) + ": " + cudaGetErrorString(code));
}

}  // namespace packstone::cuda::detail
