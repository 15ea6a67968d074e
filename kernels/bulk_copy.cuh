// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The copy engine's one-dimensional bulk copies (compute capability 9.0 up), as in the PTX ISA,
/// "cp.async.bulk" and "mbarrier". Addresses and sizes are multiples of 16 bytes.

#include <packstone/cuda/page_mover.hpp>

#include <cstdint>

namespace packstone::kernels {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline void barrier_init(std::uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline std::uint64_t cache_policy(cuda::CachePolicy policy) {
  std::uint64_t result;
  switch (policy) {
    case cuda::CachePolicy::evict_first:
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(result));
      break;
    case cuda::CachePolicy::evict_last:
      asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(result));
      break;
    default:
      asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(result));
  }
  return result;
}

__device__ inline void bulk_load(std::uint32_t shared, std::uint64_t global, std::uint32_t bytes,
                                 std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ inline void bulk_store(std::uint64_t global, std::uint32_t shared, std::uint32_t bytes,
                                  std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
          global),
      "r"(shared), "r"(bytes), "l"(policy)
      : "memory");
}

__device__ inline void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most `pending` of the calling thread's groups still read shared memory.
template <int pending>
__device__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

__device__ inline void bulk_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif

}  // namespace packstone::kernels
