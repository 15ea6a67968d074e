// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Names the phases of a step: ranges in Nsight Systems where the CUDA toolkit was there, and
/// seconds for the metrics everywhere.

#include <chrono>

#if defined(RUNTIME_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace runtime {

class Phase {
 public:
  Phase([[maybe_unused]] const char* name, double& seconds)
      : seconds_(seconds), begin_(std::chrono::steady_clock::now()) {
#if defined(RUNTIME_NVTX)
    nvtxRangePushA(name);
#endif
  }
  ~Phase() {
#if defined(RUNTIME_NVTX)
    nvtxRangePop();
#endif
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace runtime
