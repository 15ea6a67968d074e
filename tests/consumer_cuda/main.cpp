// SPDX-License-Identifier: Apache-2.0
// Links the device half. Runs anywhere: without a device it says so and is content.
#include <packstone/cuda/device_free_list.hpp>
#include <packstone/cuda/error.hpp>
#include <packstone/cuda/page_mover.hpp>
#include <packstone/kv_manager.hpp>

#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  packstone::KvManager manager({.pages = 8, .page_size = 16});
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("consumer_cuda: linked; no CUDA device");
    return 0;
  }
  const packstone::cuda::DeviceFreeList list(
      {.pages = manager.allocator().set().pages(), .requests_max = 1});
  std::puts("consumer_cuda: ok");
  return 0;
}
