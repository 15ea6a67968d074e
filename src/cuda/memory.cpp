// SPDX-License-Identifier: Apache-2.0
#include "kernels/merge_launch.hpp"

#include <packstone/cuda/memory.hpp>

#include <string>

namespace packstone::cuda {

namespace {

std::size_t checked_size(Bytes bytes) {
  if (bytes < 0) throw InvalidArgument("an allocation of " + std::to_string(bytes) + " bytes");
  return static_cast<std::size_t>(bytes);
}

}  // namespace

DeviceMemory::DeviceMemory(Bytes bytes) : bytes_(bytes) {
  const std::size_t size = checked_size(bytes);
  if (size == 0) return;
  void* data = nullptr;
  PACKSTONE_CUDA_CHECK(cudaMalloc(&data, size));
  data_ = static_cast<std::byte*>(data);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

PinnedMemory::PinnedMemory(Bytes bytes) : bytes_(bytes) {
  const std::size_t size = checked_size(bytes);
  if (size == 0) return;
  void* data = nullptr;
  PACKSTONE_CUDA_CHECK(cudaHostAlloc(&data, size, cudaHostAllocPortable | cudaHostAllocMapped));
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

StagingRing::StagingRing(std::size_t blocks, Bytes block_bytes)
    : block_bytes_((block_bytes + 255) / 256 * 256),
      memory_(static_cast<Bytes>(blocks) * block_bytes_),
      events_(blocks) {
  if (blocks == 0) throw InvalidArgument("a staging ring without blocks");
}

DeviceLimits current_device_limits() {
  DeviceLimits limits;
  const cudaError_t found = cudaGetDevice(&limits.device);
  if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    throw UnsupportedDevice(std::string("no CUDA device: ") + cudaGetErrorName(found));
  }
  PACKSTONE_CUDA_CHECK(found);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    PACKSTONE_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, limits.device));
    return value;
  };
  limits.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  limits.compute_capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
                              attribute(cudaDevAttrComputeCapabilityMinor);
  limits.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  cudaFuncAttributes code{};  // of any kernel: all are compiled for the same architectures
  const cudaError_t has_code = cudaFuncGetAttributes(&code, kernels::merge_kernel(FloatType::fp32));
  if (has_code == cudaErrorNoKernelImageForDevice || has_code == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return limits;
  }
  PACKSTONE_CUDA_CHECK(has_code);
  limits.code_capability = code.ptxVersion;
  return limits;
}

void require_current_device(int device, const char* what) {
  int current = -1;
  PACKSTONE_CUDA_CHECK(cudaGetDevice(&current));
  if (current != device) {
    throw InvalidArgument(std::string(what) + " was made on device " + std::to_string(device) +
                          ", the current device is " + std::to_string(current));
  }
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PACKSTONE_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace packstone::cuda
