// SPDX-License-Identifier: Apache-2.0
#include "kernels/gqa_launch.hpp"

#include <packstone/cuda/error.hpp>
#include <packstone/error.hpp>

#include <algorithm>
#include <bit>
#include <string>

namespace packstone::kernels {
namespace {

constexpr std::int64_t kAlignment = 256;
/// A share below this (64 to 128 tokens) costs more in merging than it saves in time.
constexpr std::int32_t kWorkerTilesMin = 4;
/// Tokens of a piece in the batch-invariant mode when the caller does not say: at 32,768 tokens 16
/// pieces, enough to fill a card with one sequence of 8 kv heads, and at most 3 % of the KV bytes
/// in partials.
constexpr std::int32_t kPieceTokens = 2048;

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

template <int head_dim>
const void* kernel_of_type(KvType type, GqaShape shape) {
  switch (type) {
    case KvType::bf16:
      return gqa_kernel<head_dim, KvType::bf16>(shape);
    case KvType::fp16:
      return gqa_kernel<head_dim, KvType::fp16>(shape);
    default:
      return gqa_kernel<head_dim, KvType::e4m3>(shape);
  }
}

const void* kernel_of(const GqaPolicy& policy) {
  switch (policy.head_dim) {
    case 64:
      return kernel_of_type<64>(policy.type, policy.shape);
    case 128:
      return kernel_of_type<128>(policy.type, policy.shape);
    default:
      return kernel_of_type<256>(policy.type, policy.shape);
  }
}

/// Everything but pointers, from static values alone.
struct Layout {
  GqaPolicy policy;
  GqaArgs args;  ///< with scratch addresses counted from 0
  std::int32_t blocks;
  std::int64_t parts_max;
  std::int64_t bytes;
};

template <typename T>
T* take(std::int64_t* at, std::int64_t count) {
  const std::int64_t begin = *at;
  *at = divide_up(begin + count * static_cast<std::int64_t>(sizeof(T)), kAlignment) * kAlignment;
  return reinterpret_cast<T*>(begin);
}

Layout lay_out(const VerifyParams& params, const VerifyPlanOptions& options,
               const cuda::DeviceLimits& device) {
  const VerifyBounds& bounds = options.bounds;
  if (bounds.batch_max < 0 || bounds.tokens_max < 0 || bounds.q_len_max < 0 ||
      bounds.length_max < 0 || options.splits < 0 || options.split_tokens < 0) {
    throw InvalidArgument("gqa: a bound or option is below 0");
  }
  Layout layout{gqa_policy(params, options, device), {}, 0, 0, 0};
  const GqaPolicy& policy = layout.policy;
  GqaArgs& args = layout.args;
  GqaSchedule& schedule = args.schedule;
  args.params = params;
  args.group = params.heads / params.kv_heads;
  const auto page_size = static_cast<std::uint32_t>(params.table.page_size);
  args.page_shift = std::has_single_bit(page_size) ? std::countr_zero(page_size) : -1;
  args.head_block = 1;
  while (policy.few() && args.head_block < GqaPolicy::kWarps &&
         params.kv_heads % (2 * args.head_block) == 0) {
    args.head_block *= 2;
  }
  const float log2e = 1.4426950408889634F;
  const float scale = params.scale * (policy.type == KvType::e4m3 ? params.k_scale : 1.0F);
  args.score_scale = params.logit_cap > 0.0F ? scale / params.logit_cap : scale * log2e;
  args.cap_scale = params.logit_cap * log2e;
  args.scale_before = params.logit_cap > 0.0F || !(args.score_scale > 0.0F);
  args.softmax_scale = args.scale_before ? 1.0F : args.score_scale;
  layout.blocks = device.multiprocessors * policy.blocks_per_multiprocessor();
  schedule.workers =
      policy.few() ? layout.blocks * GqaPolicy::kWarps / args.head_block : layout.blocks;
  schedule.worker_tiles_min = kWorkerTilesMin;
  schedule.splits = options.splits;
  if (options.splits == 0 && options.batch_invariant) {
    const std::int32_t tokens = options.split_tokens > 0 ? options.split_tokens : kPieceTokens;
    schedule.piece_tiles = static_cast<std::int32_t>(divide_up(tokens, policy.tile_tokens()));
  }
  const bool sparse = params.sparse.entries != nullptr;
  const std::int64_t lines_max = sparse ? bounds.tokens_max : bounds.batch_max;
  const std::int64_t segments_max =
      (divide_up(std::int64_t{bounds.tokens_max} * args.group, policy.rows()) + lines_max) *
      (params.kv_heads / args.head_block);
  const std::int64_t tiles_max =
      std::max<std::int64_t>(1, divide_up(bounds.length_max, policy.tile_tokens()));
  layout.parts_max = gqa_parts_max(schedule, segments_max, tiles_max);
  const std::int64_t partial_rows = layout.parts_max * args.head_block * policy.rows();
  schedule.tiles_before = take<std::int64_t>(&layout.bytes, lines_max + 1);
  schedule.parts_before = take<std::int64_t>(&layout.bytes, lines_max + 1);
  schedule.cuts_before = take<std::int64_t>(&layout.bytes, lines_max + 1);
  schedule.cuts = take<GqaCut>(&layout.bytes, schedule.workers);
  schedule.line_sequence = take<std::int32_t>(&layout.bytes, sparse ? lines_max : 0);
  schedule.words_stride = static_cast<std::int32_t>(divide_up(bounds.q_len_max, 64));
  const bool parents =
      params.mask.kind == MaskKind::parents && params.tail_place != TailPlace::none;
  schedule.words = take<std::uint64_t>(
      &layout.bytes, parents ? std::int64_t{bounds.tokens_max} * schedule.words_stride : 0);
  args.partial_out = take<float>(&layout.bytes, partial_rows * policy.head_dim);
  args.partial_lse = take<float>(&layout.bytes, partial_rows);
  layout.bytes = std::max(layout.bytes, kAlignment);
  return layout;
}

template <typename T>
void move_base(T** pointer, void* base) {
  *pointer =
      reinterpret_cast<T*>(static_cast<char*>(base) + reinterpret_cast<std::intptr_t>(*pointer));
}

}  // namespace

GqaPolicy gqa_policy(const VerifyParams& params, const VerifyPlanOptions& options,
                     const cuda::DeviceLimits& device) {
  const bool known_dim =
      params.head_dim_k == 64 || params.head_dim_k == 128 || params.head_dim_k == 256;
  if (params.kind != AttentionKind::gqa || !known_dim || params.head_dim_v != params.head_dim_k ||
      params.kv_type == KvType::e4m3_tile) {
    throw InvalidArgument("gqa: no kernel for head_dim " + std::to_string(params.head_dim_k) +
                          " in " + to_string(params.kv_type) +
                          "; there are 64, 128 and 256 in bf16, fp16 and e4m3");
  }
  const bool sparse = params.sparse.entries != nullptr;
  const std::int64_t nodes = sparse ? 1 : options.bounds.q_len_max;
  const std::int64_t rows = nodes * (params.heads / params.kv_heads);
  GqaPolicy policy{params.head_dim_k, params.kv_type,
                   rows <= 16 ? GqaShape::few_rows : GqaShape::many_rows};
  // The shape for many rows also does few, on half the shared memory.
  if (policy.shared_bytes() > device.shared_bytes_per_block) policy.shape = GqaShape::many_rows;
  if (policy.shared_bytes() > device.shared_bytes_per_block) {
    throw cuda::UnsupportedDevice(
        "gqa: the kernel for head_dim " + std::to_string(policy.head_dim) + " needs " +
        std::to_string(policy.shared_bytes()) +
        " bytes of shared memory a block, but the device (compute capability " +
        std::to_string(device.compute_capability / 10) + "." +
        std::to_string(device.compute_capability % 10) + ") has " +
        std::to_string(device.shared_bytes_per_block));
  }
  return policy;
}

std::int64_t gqa_workspace_bytes(const VerifyParams& params, const VerifyPlanOptions& options,
                                 const cuda::DeviceLimits& device) {
  return lay_out(params, options, device).bytes;
}

void gqa_verify(const VerifyParams& params, const VerifyPlanOptions& options,
                const cuda::DeviceLimits& device, void* workspace, std::int64_t workspace_bytes,
                cudaStream_t stream, ScheduleUse use) {
  Layout layout = lay_out(params, options, device);
  if (params.batch > options.bounds.batch_max || params.tokens > options.bounds.tokens_max) {
    throw InvalidArgument("gqa: batch " + std::to_string(params.batch) + " or tokens " +
                          std::to_string(params.tokens) + " pass the bounds " +
                          std::to_string(options.bounds.batch_max) + " and " +
                          std::to_string(options.bounds.tokens_max));
  }
  if (workspace_bytes < layout.bytes) {
    throw InvalidArgument("gqa: " + std::to_string(workspace_bytes) + " bytes of scratch, but " +
                          std::to_string(layout.bytes) + " are needed");
  }
  if (params.batch == 0 || params.tokens == 0) return;
  GqaArgs& args = layout.args;
  GqaSchedule& schedule = args.schedule;
  schedule.lines = params.sparse.entries != nullptr ? params.tokens : params.batch;
  const bool parents =
      params.mask.kind == MaskKind::parents && params.tail_place != TailPlace::none;
  move_base(&schedule.tiles_before, workspace);
  move_base(&schedule.parts_before, workspace);
  move_base(&schedule.cuts_before, workspace);
  move_base(&schedule.cuts, workspace);
  move_base(&schedule.line_sequence, workspace);
  move_base(&schedule.words, workspace);
  move_base(&args.partial_out, workspace);
  move_base(&args.partial_lse, workspace);
  if (!parents) schedule.words = nullptr;
  const void* kernel = kernel_of(layout.policy);
  const std::int32_t shared_bytes = layout.policy.shared_bytes();
  // Set at every call: the attribute belongs to the device, and the call costs less than keeping
  // book of devices.
  PACKSTONE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  if (use == ScheduleUse::make)
    PACKSTONE_CUDA_CHECK(launch_gqa_schedule(args, layout.policy, stream));
  void* arguments[] = {&args};
  PACKSTONE_CUDA_CHECK(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(layout.blocks)),
                                        dim3(static_cast<unsigned>(layout.policy.threads())),
                                        arguments, static_cast<std::size_t>(shared_bytes), stream));
  PACKSTONE_CUDA_CHECK(launch_gqa_combine(args, layout.policy, device.multiprocessors, stream));
}

}  // namespace packstone::kernels
