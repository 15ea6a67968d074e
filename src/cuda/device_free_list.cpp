// SPDX-License-Identifier: Apache-2.0
#include "kernels/pool_launch.hpp"

#include <packstone/cuda/device_free_list.hpp>

#include <string>

namespace packstone::cuda {

namespace {

constexpr std::int64_t kBits = 64;

static_assert(sizeof(DeviceFreeListStatus) == sizeof(kernels::FreeListStatus));

std::int64_t words_of(const DeviceFreeListOptions& options) {
  if (options.pages < 1 || options.pages > kPagesMax - kBits + 1 || options.requests_max < 1) {
    throw InvalidArgument("a device free list of " + std::to_string(options.pages) + " pages for " +
                          std::to_string(options.requests_max) + " requests");
  }
  return (options.pages + kBits - 1) / kBits;
}

kernels::FreeListState state_of(const DeviceFreeListOptions& options, std::int64_t words,
                                const DeviceMemory& bits, const DeviceMemory& claims,
                                const DeviceMemory& prefix, const DeviceMemory& offsets,
                                const DeviceMemory& status, const DeviceMemory& scratch) {
  return {.bits = bits.as<std::uint64_t>(),
          .claims = claims.as<std::uint64_t>(),
          .prefix = prefix.as<std::int32_t>(),
          .offsets = offsets.as<std::int32_t>(),
          .status = status.as<kernels::FreeListStatus>(),
          .pages = options.pages,
          .words = words,
          .requests_max = options.requests_max,
          .scratch = scratch.data(),
          .scratch_bytes = scratch.bytes()};
}

}  // namespace

DeviceFreeList::DeviceFreeList(const DeviceFreeListOptions& options)
    : options_(options),
      words_(words_of(options)),
      device_(current_device_limits().device),
      bits_(words_ * 8),
      claims_(words_ * 8),
      prefix_((words_ + 1) * 4),
      offsets_((Bytes{options.requests_max} + 1) * 4),
      status_(sizeof(DeviceFreeListStatus)),
      scratch_(kernels::free_list_scratch_bytes(words_, options.requests_max)),
      mirror_(static_cast<Bytes>(sizeof(DeviceFreeListStatus)) + words_ * 8) {
  PACKSTONE_CUDA_CHECK(kernels::launch_free_list_reset(
      state_of(options_, words_, bits_, claims_, prefix_, offsets_, status_, scratch_), nullptr));
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void DeviceFreeList::allocate(const std::int32_t* counts, const std::int32_t* requests,
                              std::int32_t* ids, std::int32_t ids_max, cudaStream_t stream) {
  if (counts == nullptr || requests == nullptr || ids_max < 0 || (ids == nullptr && ids_max > 0)) {
    throw InvalidArgument("a device allocation without counts, requests or ids");
  }
  require_current_device(device_, "the free list");
  PACKSTONE_CUDA_CHECK(kernels::launch_free_list_allocate(
      state_of(options_, words_, bits_, claims_, prefix_, offsets_, status_, scratch_), counts,
      requests, ids, ids_max, stream));
}

void DeviceFreeList::release(const std::int32_t* ids, const std::int32_t* count,
                             std::int32_t ids_max, cudaStream_t stream) {
  if (count == nullptr || ids_max < 0 || (ids == nullptr && ids_max > 0)) {
    throw InvalidArgument("a device release without ids or count");
  }
  require_current_device(device_, "the free list");
  PACKSTONE_CUDA_CHECK(kernels::launch_free_list_release(
      state_of(options_, words_, bits_, claims_, prefix_, offsets_, status_, scratch_), ids, count,
      ids_max, stream));
}

void DeviceFreeList::list(std::int32_t* ids, std::int32_t* found, cudaStream_t stream) {
  if (ids == nullptr || found == nullptr) throw InvalidArgument("a list of free pages to null");
  require_current_device(device_, "the free list");
  PACKSTONE_CUDA_CHECK(kernels::launch_free_list_list(
      state_of(options_, words_, bits_, claims_, prefix_, offsets_, status_, scratch_), ids, found,
      stream));
}

bool DeviceFreeList::snapshot(cudaStream_t stream) {
  if (capturing(stream)) throw InvalidArgument("a snapshot is taken between graph launches");
  if (under_way_) return false;
  PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(mirror_.data(), status_.data(), sizeof(DeviceFreeListStatus),
                                       cudaMemcpyDeviceToHost, stream));
  PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(mirror_.data() + sizeof(DeviceFreeListStatus), bits_.data(),
                                       static_cast<std::size_t>(bits_.bytes()),
                                       cudaMemcpyDeviceToHost, stream));
  copied_.record(stream);
  under_way_ = true;
  return true;
}

std::optional<DeviceFreeListStatus> DeviceFreeList::reconcile(LowestFreeList& mirror) {
  if (!under_way_ || !copied_.reached()) return std::nullopt;
  under_way_ = false;
  const auto* bits =
      reinterpret_cast<const std::uint64_t*>(mirror_.data() + sizeof(DeviceFreeListStatus));
  mirror.assign({bits, static_cast<std::size_t>(words_)});
  return *mirror_.as<DeviceFreeListStatus>();
}

}  // namespace packstone::cuda
