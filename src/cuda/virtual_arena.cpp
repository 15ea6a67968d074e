// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/error.hpp>
#include <packstone/cuda/virtual_arena.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace packstone::cuda {

namespace {

/// The driver's entry points, found through the runtime, so that nothing links against the driver.
struct Driver {
  decltype(&::cuMemGetAllocationGranularity) granularity{};
  decltype(&::cuMemAddressReserve) reserve{};
  decltype(&::cuMemAddressFree) free{};
  decltype(&::cuMemCreate) create{};
  decltype(&::cuMemRelease) release{};
  decltype(&::cuMemMap) map{};
  decltype(&::cuMemUnmap) unmap{};
  decltype(&::cuMemSetAccess) set_access{};
};

template <typename Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  // 12.0 is older than every function here needs, and every supported driver has it.
  PACKSTONE_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    throw UnsupportedDevice(std::string("the driver has no ") + name);
  }
  function = reinterpret_cast<Function>(address);
}

const Driver& driver() {
  static const Driver instance = [] {
    Driver result;
    find(result.granularity, "cuMemGetAllocationGranularity");
    find(result.reserve, "cuMemAddressReserve");
    find(result.free, "cuMemAddressFree");
    find(result.create, "cuMemCreate");
    find(result.release, "cuMemRelease");
    find(result.map, "cuMemMap");
    find(result.unmap, "cuMemUnmap");
    find(result.set_access, "cuMemSetAccess");
    return result;
  }();
  return instance;
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  // The runtime has no name for a driver result; the two that callers act upon are told apart.
  const cudaError_t code =
      result == CUDA_ERROR_OUT_OF_MEMORY ? cudaErrorMemoryAllocation : cudaErrorUnknown;
  throw CudaError(code, std::string(call) + ": driver error " + std::to_string(result));
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  result.location.id = device;
  return result;
}

}  // namespace

VirtualArena::VirtualArena(Bytes bytes, std::int64_t cached_granules_max)
    : cached_max_(cached_granules_max) {
  if (bytes < 1 || cached_granules_max < 0) {
    throw InvalidArgument("an arena of " + std::to_string(bytes) + " bytes with " +
                          std::to_string(cached_granules_max) + " cached granules");
  }
  PACKSTONE_CUDA_CHECK(cudaFree(nullptr));  // the context must exist before driver calls
  PACKSTONE_CUDA_CHECK(cudaGetDevice(&device_));
  const CUmemAllocationProp wanted = properties(device_);
  std::size_t granule = 0;
  check(driver().granularity(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  granule_bytes_ = static_cast<Bytes>(granule);
  handles_.resize(static_cast<std::size_t>((bytes + granule_bytes_ - 1) / granule_bytes_));
  CUdeviceptr base = 0;
  check(driver().reserve(&base, static_cast<std::size_t>(reserved()), 0, 0, 0),
        "cuMemAddressReserve");
  base_ = base;
}

VirtualArena::~VirtualArena() {
  release_all();
}

void VirtualArena::release_all() noexcept {
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == 0) continue;
    (void)driver().unmap(base_ + i * static_cast<std::size_t>(granule_bytes_),
                         static_cast<std::size_t>(granule_bytes_));
    (void)driver().release(handles_[i]);
  }
  for (const std::uint64_t handle : cache_) (void)driver().release(handle);
  (void)driver().free(base_, static_cast<std::size_t>(reserved()));
}

void VirtualArena::commit(std::int64_t first, std::int64_t last) {
  const CUmemAllocationProp wanted = properties(device_);
  const auto size = static_cast<std::size_t>(granule_bytes_);
  CUmemAccessDesc access{};
  access.location = wanted.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // Access is granted for whole stretches: it is the dearest call after creation.
  std::int64_t open = first;
  const auto grant = [&](std::int64_t end) {
    if (end > open) {
      check(driver().set_access(base_ + static_cast<std::uint64_t>(open) * size,
                                static_cast<std::size_t>(end - open) * size, &access, 1),
            "cuMemSetAccess");
    }
  };
  for (std::int64_t g = first; g < last; ++g) {
    if (backed(g)) {
      grant(g);
      open = g + 1;
      continue;
    }
    CUmemGenericAllocationHandle handle = 0;
    if (!cache_.empty()) {
      handle = cache_.back();
      cache_.pop_back();
    } else if (const CUresult made = driver().create(&handle, size, &wanted, 0);
               made != CUDA_SUCCESS) {
      grant(g);
      check(made, "cuMemCreate");
    }
    check(driver().map(base_ + static_cast<std::uint64_t>(g) * size, size, 0, handle, 0),
          "cuMemMap");
    handles_[static_cast<std::size_t>(g)] = handle;
    ++committed_;
  }
  grant(last);
}

Bytes VirtualArena::decommit(std::int64_t first, std::int64_t last) {
  const auto size = static_cast<std::size_t>(granule_bytes_);
  Bytes unmapped = 0;
  for (std::int64_t g = first; g < last; ++g) {
    if (!backed(g)) continue;
    check(driver().unmap(base_ + static_cast<std::uint64_t>(g) * size, size), "cuMemUnmap");
    std::uint64_t& handle = handles_[static_cast<std::size_t>(g)];
    if (static_cast<std::int64_t>(cache_.size()) < cached_max_) {
      cache_.push_back(handle);
    } else {
      check(driver().release(handle), "cuMemRelease");
    }
    handle = 0;
    --committed_;
    unmapped += granule_bytes_;
  }
  return unmapped;
}

}  // namespace packstone::cuda
