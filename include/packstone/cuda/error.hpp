// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// CUDA faults as typed errors: the call, the place and the runtime's own words.

#include <packstone/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace packstone::cuda {

class CudaError : public Error {
 public:
  CudaError(cudaError_t code, const std::string& message) : Error(message), code_(code) {}
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

/// The device cannot run what was asked: no code for its architecture in this binary, or too little
/// shared memory. Thrown before any launch; the message names both sides.
class UnsupportedDevice : public Error {
 public:
  using Error::Error;
};

namespace detail {
/// Throws CudaError when `code` is not cudaSuccess, after clearing the runtime's sticky last error.
void check(cudaError_t code, const char* call, const char* file, int line);
}  // namespace detail

}  // namespace packstone::cuda

/// Runs a CUDA runtime call; throws packstone::cuda::CudaError with the call and its place when it
/// fails.
#define PACKSTONE_CUDA_CHECK(call) \
  ::packstone::cuda::detail::check((call), #call, __FILE__, __LINE__)
