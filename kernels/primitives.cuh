// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Instructions of compute capability 8.0 up that the attention kernels are made of: ldmatrix,
/// mma.sync m16n8k16, conversions, dependent launches. Fragment layouts are those of the PTX ISA,
/// "Matrix Fragments for mma.m16n8k16".

#include <packstone/verify_params.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace packstone::kernels {

struct Bf16 {};
struct Fp16 {};

__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ inline void load_shared_16(std::uint32_t (&r)[4], std::uint32_t shared) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ inline void multiply_add(Bf16, float (&c)[4], const std::uint32_t (&a)[4],
                                    std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void multiply_add(Fp16, float (&c)[4], const std::uint32_t (&a)[4],
                                    std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t pack(Bf16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline std::uint32_t pack(Fp16, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// Four neighbouring values of an output row, whose address is a multiple of their size.
__device__ inline void store_four(FloatType type, char* to, const float4& x) {
  if (type == FloatType::fp32) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    *reinterpret_cast<uint2*>(to) =
        type == FloatType::bf16 ? make_uint2(pack(Bf16{}, x.x, x.y), pack(Bf16{}, x.z, x.w))
                                : make_uint2(pack(Fp16{}, x.x, x.y), pack(Fp16{}, x.z, x.w));
  }
}

/// Two e4m3 values as two fp16 values: those of the low or of the high 16 bits, in one instruction
/// where there is one (compute capability 8.9 up).
template <bool high>
__device__ std::uint32_t widen_e4m3(std::uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t wide;
  if constexpr (high) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, b;\n}"
        : "=r"(wide)
        : "r"(bytes));
  } else {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, a;\n}"
        : "=r"(wide)
        : "r"(bytes));
  }
  return wide;
#else
  const __half2_raw wide = __nv_cvt_fp8x2_to_halfraw2(
      static_cast<__nv_fp8x2_storage_t>(high ? bytes >> 16U : bytes & 0xFFFFU), __NV_E4M3);
  return *reinterpret_cast<const std::uint32_t*>(&wide);
#endif
}
__device__ inline std::uint32_t widen_low(std::uint32_t bytes) {
  return widen_e4m3<false>(bytes);
}
__device__ inline std::uint32_t widen_high(std::uint32_t bytes) {
  return widen_e4m3<true>(bytes);
}

/// Two bf16 values as two fp16 values; magnitudes past 65,504 saturate, NaN stays.
__device__ inline std::uint32_t bf16_to_fp16(std::uint32_t pair) {
  const auto clamp = [](float x) {
    return x > 65504.0F ? 65504.0F : (x < -65504.0F ? -65504.0F : x);
  };
  return pack(Fp16{}, clamp(__uint_as_float(pair << 16U)),
              clamp(__uint_as_float(pair & 0xFFFF0000U)));
}

/// Programmatic dependent launch (compute capability 9.0 up; before, kernels follow each other
/// anyway): waits until the kernel before on the stream is done and its stores are visible.
__device__ inline void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel on the stream start as soon as there is room for its blocks; it waits for
/// this one to end before it reads anything.
__device__ inline void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Largest, and sum, over the four lanes that share a row of an accumulator.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}

}  // namespace packstone::kernels
