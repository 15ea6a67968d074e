// SPDX-License-Identifier: Apache-2.0
// The merge of partial attention results, a warp a row. See reference_merge for the rules.
#include "kernels/merge_launch.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace packstone::kernels {
namespace {

constexpr int kWarps = 8;
constexpr std::int64_t kGridMax = 65'535;

__device__ float widen(float x) {
  return x;
}
__device__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ float widen(__half x) {
  return __half2float(x);
}
__device__ void store(float* to, float x) {
  *to = x;
}
__device__ void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}
__device__ void store(__half* to, float x) {
  *to = __float2half_rn(x);
}

template <typename T>
__device__ const T* part_of(const void* base, std::int64_t stride, int part) {
  return reinterpret_cast<const T*>(static_cast<const char*>(base) + part * stride);
}

// exp(x) in the base of the lse.
__device__ float power(float x, bool base_two) {
  return base_two ? exp2f(x) : expf(x);
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    merge_rows(const __grid_constant__ cuda::MergeParams params) {
  const bool base_two = params.lse_base == LseBase::two;
  const auto lane = static_cast<int>(threadIdx.x & 31U);
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (; row < params.rows; row += warps) {
    const auto lse_of = [&](int i) {
      return part_of<float>(params.lse, params.lse_part_stride, i)[row];
    };
    float peak = -INFINITY;
    bool broken = false;  // +inf or NaN is no state
    for (int i = 0; i < params.parts; ++i) {
      const float lse = lse_of(i);
      broken = broken || isnan(lse) || lse == INFINITY;
      peak = fmaxf(peak, lse);
    }
    float total = 0.0F;
    for (int i = 0; i < params.parts; ++i) {
      const float lse = lse_of(i);
      if (lse != -INFINITY) total += power(lse - peak, base_two);
    }
    const float scale = total > 0.0F ? 1.0F / total : 0.0F;
    const float merged = broken         ? NAN
                         : total > 0.0F ? peak + (base_two ? log2f(total) : logf(total))
                                        : -INFINITY;
    for (int d = lane; d < params.dim; d += 32) {
      float sum = 0.0F;
      for (int i = 0; i < params.parts; ++i) {
        const float lse = lse_of(i);
        if (lse == -INFINITY) continue;
        const T value = part_of<T>(params.out, params.part_stride, i)[row * params.dim + d];
        sum += power(lse - peak, base_two) * widen(value);
      }
      store(static_cast<T*>(params.merged_out) + row * params.dim + d, broken ? NAN : sum * scale);
    }
    __syncwarp();  // every lane has read the lse, which may be one of the parts
    if (lane == 0 && params.merged_lse != nullptr) params.merged_lse[row] = merged;
  }
}

using MergeKernel = void (*)(cuda::MergeParams);

MergeKernel kernel_for(FloatType type) {
  switch (type) {
    case FloatType::bf16:
      return merge_rows<__nv_bfloat16>;
    case FloatType::fp16:
      return merge_rows<__half>;
    case FloatType::fp32:
      break;
  }
  return merge_rows<float>;
}

}  // namespace

const void* merge_kernel(FloatType type) {
  return reinterpret_cast<const void*>(kernel_for(type));
}

cudaError_t launch_merge(const cuda::MergeParams& params, cudaStream_t stream) {
  const std::int64_t blocks = std::min((params.rows + kWarps - 1) / kWarps, kGridMax);
  kernel_for(params.type)<<<static_cast<unsigned>(blocks), kWarps * 32, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace packstone::kernels
