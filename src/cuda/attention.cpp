// SPDX-License-Identifier: Apache-2.0
#include "kernels/gqa_launch.hpp"
#include "kernels/merge_launch.hpp"
#include "kernels/mla_launch.hpp"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/error.hpp>

#include <array>
#include <string>

namespace packstone::cuda {

namespace {

constexpr int kCapabilityMin = 80;

std::string capability(int compute_capability) {
  return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
}

// The device, once it is known that this binary can run on it.
DeviceLimits gated_device() {
  const DeviceLimits device = current_device_limits();
  if (device.compute_capability < kCapabilityMin) {
    throw UnsupportedDevice("attention needs compute capability " + capability(kCapabilityMin) +
                            ", device " + std::to_string(device.device) + " has " +
                            capability(device.compute_capability));
  }
  if (device.code_capability == 0) {
    throw UnsupportedDevice("this binary has code for " PACKSTONE_CUDA_ARCHITECTURES ", device " +
                            std::to_string(device.device) + " has compute capability " +
                            capability(device.compute_capability));
  }
  return device;
}

KernelDescription describe(std::string name, const void* kernel, int threads, int dynamic_bytes) {
  cudaFuncAttributes attributes{};
  PACKSTONE_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return {.name = std::move(name),
          .threads = threads,
          .shared_bytes = static_cast<int>(attributes.sharedSizeBytes) + dynamic_bytes,
          .registers = attributes.numRegs,
          .local_bytes = static_cast<int>(attributes.localSizeBytes)};
}

template <int head_dim, KvType type>
void describe_gqa(std::vector<KernelDescription>* kernels) {
  using kernels::GqaShape;
  for (const GqaShape shape : {GqaShape::few_rows, GqaShape::many_rows}) {
    const kernels::GqaPolicy policy{head_dim, type, shape};
    kernels->push_back(describe("gqa " + std::to_string(head_dim) + " " + to_string(type) +
                                    (policy.few() ? " few rows" : " many rows"),
                                kernels::gqa_kernel<head_dim, type>(shape), policy.threads(),
                                policy.shared_bytes()));
  }
}

template <int head_dim>
void describe_gqa_types(std::vector<KernelDescription>* kernels) {
  describe_gqa<head_dim, KvType::bf16>(kernels);
  describe_gqa<head_dim, KvType::fp16>(kernels);
  describe_gqa<head_dim, KvType::e4m3>(kernels);
}

}  // namespace

TreeVerify::TreeVerify(const VerifyPlanOptions& options)
    : options_(options), device_(gated_device()) {
  const VerifyBounds& bounds = options.bounds;
  if (bounds.batch_max < 0 || bounds.tokens_max < 0 || bounds.q_len_max < 0 ||
      bounds.length_max < 0 || options.splits < 0 || options.split_tokens < 0) {
    throw InvalidArgument("tree verify: a bound or option is below 0");
  }
}

std::int64_t TreeVerify::workspace_bytes(const VerifyParams& params) const {
  return params.kind == AttentionKind::gqa
             ? kernels::gqa_workspace_bytes(params, options_, device_)
             : kernels::mla_workspace_bytes(params, options_, device_);
}

void TreeVerify::run(const VerifyParams& params, void* workspace, std::int64_t workspace_bytes,
                     cudaStream_t stream, const HostView& view, ScheduleUse use) const {
  require_current_device(device_.device, "tree verify");
  validate(params, view);
  if (params.kind == AttentionKind::gqa) {
    kernels::gqa_verify(params, options_, device_, workspace, workspace_bytes, stream, use);
  } else {
    kernels::mla_verify(params, options_, device_, workspace, workspace_bytes, stream, use);
  }
}

void merge_states(const MergeParams& params, cudaStream_t stream) {
  if (params.parts < 1 || params.rows < 0 || params.dim < 1) {
    throw InvalidArgument("merge of " + std::to_string(params.parts) + " parts, " +
                          std::to_string(params.rows) + " rows of " + std::to_string(params.dim));
  }
  if (params.rows == 0) return;
  if (params.out == nullptr || params.lse == nullptr || params.merged_out == nullptr) {
    throw InvalidArgument("merge: a tensor is null");
  }
  PACKSTONE_CUDA_CHECK(kernels::launch_merge(params, stream));
}

void merge_states(const MergePair& a, const MergePair& b, MergeParams params, cudaStream_t stream) {
  params.parts = 2;
  params.out = a.out;
  params.part_stride = static_cast<const char*>(b.out) - static_cast<const char*>(a.out);
  params.lse = a.lse;
  params.lse_part_stride =
      reinterpret_cast<const char*>(b.lse) - reinterpret_cast<const char*>(a.lse);
  if (b.out == nullptr || b.lse == nullptr) throw InvalidArgument("merge: a tensor is null");
  merge_states(params, stream);
}

AttentionDescription describe_attention() {
  AttentionDescription result;
  result.limits = gated_device();
  cudaDeviceProp properties{};
  PACKSTONE_CUDA_CHECK(cudaGetDeviceProperties(&properties, result.limits.device));
  result.device_name = properties.name;
  result.binary_architectures = PACKSTONE_CUDA_ARCHITECTURES;
  for (const KvType type : {KvType::bf16, KvType::fp16, KvType::e4m3, KvType::e4m3_tile}) {
    for (const kernels::MlaShape shape :
         {kernels::MlaShape::few_rows, kernels::MlaShape::many_rows}) {
      const kernels::MlaPolicy policy{type, shape};
      result.kernels.push_back(
          describe(std::string("mla ") + to_string(type) +
                       (shape == kernels::MlaShape::few_rows ? " few rows" : " many rows"),
                   kernels::mla_kernel_of(policy), policy.threads(), policy.shared_bytes()));
    }
  }
  describe_gqa_types<64>(&result.kernels);
  describe_gqa_types<128>(&result.kernels);
  describe_gqa_types<256>(&result.kernels);
  return result;
}

}  // namespace packstone::cuda
