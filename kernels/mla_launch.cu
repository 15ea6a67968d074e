// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_launch.hpp"

#include <packstone/cuda/error.hpp>
#include <packstone/error.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace packstone::kernels {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr float kLog2E = 1.4426950408889634F;
/// Below this the product with a score of -infinity might be none.
constexpr float kScaleMin = std::numeric_limits<float>::min();
/// A share below this (64 to 128 tokens) costs more in merging than it saves in time.
constexpr std::int32_t kWorkerTilesMin = 4;
/// Tokens of a piece in the batch-invariant mode when the caller does not say: at 32,768 tokens 16
/// pieces, enough to fill a card with one sequence of 8 kv heads, and at most 3 % of the KV bytes
/// in partials.
constexpr std::int32_t kPieceTokens = 2048;

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}

constexpr std::int64_t parts_max_of(const MlaSchedule& schedule, std::int64_t segments_max,
                                    std::int64_t tiles_max) {
  if (schedule.splits > 0) return segments_max * schedule.splits;
  if (schedule.piece_tiles > 0) return segments_max * divide_up(tiles_max, schedule.piece_tiles);
  return std::int64_t{2} * schedule.workers;
}

/// Rows of the largest line that the bounds admit.
std::int64_t rows_max(const VerifyParams& params, const VerifyPlanOptions& options) {
  const std::int64_t nodes = params.sparse.entries != nullptr ? 1 : options.bounds.q_len_max;
  return std::max<std::int64_t>(1, nodes * params.heads);
}

/// Rows of a segment: what a block has room for, or fewer where no line has as many. What is left
/// of a line costs less (see `line_cost`), so equal blocks would gain nothing.
std::int32_t rows_of(const VerifyParams& params, const VerifyPlanOptions& options,
                     const MlaPolicy& policy) {
  const std::int64_t rows = divide_up(rows_max(params, options), 8) * 8;
  return static_cast<std::int32_t>(std::min<std::int64_t>(rows, policy.rows()));
}

/// Everything but pointers, from static values alone.
struct Layout {
  MlaPolicy policy;
  MlaArgs args;  ///< with scratch addresses counted from 0
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
    throw InvalidArgument("mla: a bound or option is below 0");
  }
  Layout layout{mla_policy(params, options, device), {}, 0, 0, 0};
  const MlaPolicy& policy = layout.policy;
  MlaArgs& args = layout.args;
  MlaSchedule& schedule = args.schedule;
  args.params = params;
  const float scale = params.scale * (params.kv_type == KvType::e4m3 ? params.k_scale : 1.0F);
  args.score_scale = params.logit_cap > 0.0F ? scale / params.logit_cap : scale * kLog2E;
  args.finish_scores = params.logit_cap > 0.0F || args.score_scale < kScaleMin;
  args.exponent_scale = args.finish_scores ? 1.0F : args.score_scale;
  args.page_shift = -1;
  if (std::has_single_bit(static_cast<std::uint32_t>(params.table.page_size)))
    args.page_shift = std::countr_zero(static_cast<std::uint32_t>(params.table.page_size));
  args.rope_apart = params.rope_dim != 0 &&
                    (params.pool.k_rope != nullptr ||
                     (params.tail_place == TailPlace::separate && params.tail.k_rope != nullptr));
  args.tile = policy.tile();
  args.rows = rows_of(params, options, policy);
  // With fixed pieces the bits of a sequence depend on the shape that its rows are worked on with.
  args.rest_apart = !policy.few() && options.splits == 0 && !options.batch_invariant &&
                    device.multiprocessors > 1;
  schedule.workers = layout.blocks = device.multiprocessors;
  schedule.worker_tiles_min = kWorkerTilesMin;
  schedule.splits = options.splits;
  if (options.splits == 0 && options.batch_invariant) {
    const std::int32_t tokens = options.split_tokens > 0 ? options.split_tokens : kPieceTokens;
    schedule.piece_tiles = static_cast<std::int32_t>(divide_up(tokens, policy.tile()));
  }
  const bool sparse = params.sparse.entries != nullptr;
  const std::int64_t lines_max = sparse ? bounds.tokens_max : bounds.batch_max;
  const std::int64_t segments_max =
      divide_up(std::int64_t{bounds.tokens_max} * params.heads, args.rows) + lines_max;
  const std::int64_t tiles_max =
      std::max<std::int64_t>(1, divide_up(bounds.length_max, policy.tile()));
  layout.parts_max = parts_max_of(schedule, segments_max, tiles_max);
  const std::int64_t partial_rows = layout.parts_max * args.rows;
  schedule.tiles_before = take<std::int64_t>(&layout.bytes, 2 * lines_max);
  schedule.cost_before = take<std::int64_t>(&layout.bytes, 2 * lines_max);
  schedule.next_line = take<std::int32_t>(&layout.bytes, 2 * lines_max);
  schedule.starts = take<MlaStart>(&layout.bytes, schedule.workers);
  schedule.parts_before = take<std::int64_t>(&layout.bytes, lines_max + 1);
  schedule.line_sequence = take<std::int32_t>(&layout.bytes, sparse ? lines_max : 0);
  schedule.cuts = take<MlaCut>(&layout.bytes, schedule.workers);
  schedule.cut_count = take<std::int32_t>(&layout.bytes, 1);
  schedule.words_stride = static_cast<std::int32_t>(divide_up(bounds.q_len_max, 64));
  const bool parents =
      params.mask.kind == MaskKind::parents && params.tail_place != TailPlace::none;
  schedule.words = take<std::uint64_t>(
      &layout.bytes, parents ? std::int64_t{bounds.tokens_max} * schedule.words_stride : 0);
  args.partial_out = take<float>(&layout.bytes, partial_rows * kMlaLatentDim);
  args.partial_lse = take<float>(&layout.bytes, partial_rows);
  layout.bytes = std::max(layout.bytes, kAlignment);
  return layout;
}

template <typename T>
void move_base(T** pointer, void* base) {
  *pointer =
      reinterpret_cast<T*>(static_cast<char*>(base) + reinterpret_cast<std::intptr_t>(*pointer));
}

/// Launches a kernel that, with `overlaps`, may start before the one ahead of it on the stream is
/// done, and itself waits for that.
cudaError_t launch_after(const void* kernel, dim3 grid, unsigned threads, std::int32_t shared_bytes,
                         MlaArgs& args, bool overlaps, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  void* arguments[] = {&args};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace

MlaPolicy mla_policy(const VerifyParams& params, const VerifyPlanOptions& options,
                     const cuda::DeviceLimits& device) {
  if (params.kind != AttentionKind::mla || params.head_dim_v != kMlaLatentDim ||
      params.head_dim_k != kMlaLatentDim + params.rope_dim ||
      (params.rope_dim != 0 && params.rope_dim != kMlaRopeDim)) {
    throw InvalidArgument("mla: no kernel for rows of " + std::to_string(params.head_dim_k) +
                          " values with " + std::to_string(params.rope_dim) +
                          " rope values; there are 512 with 64 or none");
  }
  const MlaPolicy policy{
      params.kv_type, rows_max(params, options) <= 16 ? MlaShape::few_rows : MlaShape::many_rows};
  if (policy.shared_bytes() > device.shared_bytes_per_block) {
    throw cuda::UnsupportedDevice(
        "mla: the kernel for " + std::string(to_string(policy.type)) + " needs " +
        std::to_string(policy.shared_bytes()) +
        " bytes of shared memory a block, but the device (compute capability " +
        std::to_string(device.compute_capability / 10) + "." +
        std::to_string(device.compute_capability % 10) + ") has " +
        std::to_string(device.shared_bytes_per_block));
  }
  return policy;
}

const void* mla_kernel_of(const MlaPolicy& policy) {
  switch (policy.type) {
    case KvType::bf16:
      return mla_kernel<KvType::bf16>(policy.shape);
    case KvType::fp16:
      return mla_kernel<KvType::fp16>(policy.shape);
    case KvType::e4m3:
      return mla_kernel<KvType::e4m3>(policy.shape);
    default:
      return mla_kernel<KvType::e4m3_tile>(policy.shape);
  }
}

std::int64_t mla_workspace_bytes(const VerifyParams& params, const VerifyPlanOptions& options,
                                 const cuda::DeviceLimits& device) {
  return lay_out(params, options, device).bytes;
}

void mla_verify(const VerifyParams& params, const VerifyPlanOptions& options,
                const cuda::DeviceLimits& device, void* workspace, std::int64_t workspace_bytes,
                cudaStream_t stream, ScheduleUse use) {
  Layout layout = lay_out(params, options, device);
  if (params.batch > options.bounds.batch_max || params.tokens > options.bounds.tokens_max) {
    throw InvalidArgument("mla: batch " + std::to_string(params.batch) + " or tokens " +
                          std::to_string(params.tokens) + " pass the bounds " +
                          std::to_string(options.bounds.batch_max) + " and " +
                          std::to_string(options.bounds.tokens_max));
  }
  if (workspace_bytes < layout.bytes) {
    throw InvalidArgument("mla: " + std::to_string(workspace_bytes) + " bytes of scratch, but " +
                          std::to_string(layout.bytes) + " are needed");
  }
  if (params.batch == 0 || params.tokens == 0) return;
  MlaArgs& args = layout.args;
  MlaSchedule& schedule = args.schedule;
  schedule.lines = params.sparse.entries != nullptr ? params.tokens : params.batch;
  const bool parents =
      params.mask.kind == MaskKind::parents && params.tail_place != TailPlace::none;
  move_base(&schedule.tiles_before, workspace);
  move_base(&schedule.cost_before, workspace);
  move_base(&schedule.next_line, workspace);
  move_base(&schedule.starts, workspace);
  move_base(&schedule.parts_before, workspace);
  move_base(&schedule.line_sequence, workspace);
  move_base(&schedule.cuts, workspace);
  move_base(&schedule.cut_count, workspace);
  move_base(&schedule.words, workspace);
  move_base(&args.partial_out, workspace);
  move_base(&args.partial_lse, workspace);
  if (!parents) schedule.words = nullptr;
  const void* kernel = mla_kernel_of(layout.policy);
  const std::int32_t shared_bytes = layout.policy.shared_bytes();
  // Set at every call: the attribute belongs to the device, and the call costs less than keeping
  // book of devices.
  PACKSTONE_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const bool overlaps = device.code_capability >= 90;
  if (use == ScheduleUse::make) {
    PACKSTONE_CUDA_CHECK(launch_after(mla_schedule_kernel(), mla_schedule_grid(args),
                                      kMlaScheduleThreads, 0, args, overlaps, stream));
  }
  PACKSTONE_CUDA_CHECK(launch_after(kernel, dim3(static_cast<unsigned>(layout.blocks)),
                                    unsigned{MlaPolicy::kThreads}, shared_bytes, args, overlaps,
                                    stream));
  const dim3 merge = mla_combine_grid(args, layout.parts_max);
  if (merge.x == 0) return;
  PACKSTONE_CUDA_CHECK(
      launch_after(mla_combine_kernel(), merge, kMlaCombineThreads, 0, args, overlaps, stream));
}

}  // namespace packstone::kernels
