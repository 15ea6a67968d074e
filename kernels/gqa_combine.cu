// SPDX-License-Identifier: Apache-2.0
// Merges the partials of segments that fell to several workers or pieces.
#include "kernels/gqa_cursor.cuh"
#include "kernels/gqa_launch.hpp"
#include "kernels/gqa_output.cuh"

namespace packstone::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerMultiprocessor = 16;

/// A cut segment and its partials: the first at `head`, partial i at first + i * step.
struct Parts {
  GqaCut cut;
  std::int64_t head;
  std::int64_t first;
  std::int64_t step;
};

__device__ Parts parts_of(const GqaArgs& args, std::int64_t number, int rows, int tile_tokens) {
  const GqaSchedule& schedule = args.schedule;
  if (!gqa_has_fixed_pieces(schedule)) {
    // A worker keeps what began in its share in its second place, what began before it in its
    // first.
    return {schedule.cuts[number], 2 * number + 1, 2 * number, 2};
  }
  const std::int32_t line_index = find_line(schedule.cuts_before, schedule.lines, number);
  const gqa::Line line = gqa::load_line(args, line_index, rows, tile_tokens);
  const std::int32_t piece = piece_tiles_of(schedule, line.tiles);
  const std::int32_t pieces = (line.tiles + piece - 1) / piece;
  const auto segment = static_cast<std::int32_t>(number - schedule.cuts_before[line_index]);
  const std::int64_t first =
      schedule.parts_before[line_index] + static_cast<std::int64_t>(segment) * pieces;
  return {{line_index, segment, pieces}, first, first, 1};
}

/// One row of a cut segment, by one warp, the partials in order.
template <int head_dim>
__device__ void merge_row(const GqaArgs& args, const Parts& parts, const gqa::Line& line,
                          int head_in_block, int row, int row_in_segment, int rows) {
  constexpr int kValues = head_dim / 32;
  const VerifyParams& p = args.params;
  const unsigned lane = threadIdx.x & 31U;
  const auto place = [&](int i) {
    const std::int64_t part = i == 0 ? parts.head : parts.first + i * parts.step;
    return (part * args.head_block + head_in_block) * rows + row_in_segment;
  };
  float peak = -INFINITY;
  for (int i = static_cast<int>(lane); i < parts.cut.count; i += 32) {
    peak = fmaxf(peak, args.partial_lse[place(i)]);
  }
  for (int step = 16; step > 0; step /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFU, peak, step));
  float sum[kValues] = {};
  float total = 0.0F;
#pragma unroll 8
  for (int i = 0; i < parts.cut.count; ++i) {
    const std::int64_t at = place(i);
    const float lse = args.partial_lse[at];
    // An empty part has weight 0 also where every part is empty and the peak is -inf.
    const float weight = lse == -INFINITY ? 0.0F : exp2_fast(lse - peak);
    const float* from = args.partial_out + at * head_dim + kValues * lane;
    total += weight;
#pragma unroll
    for (int j = 0; j < kValues; j += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(from + j);
      sum[j] = fmaf(weight, pair.x, sum[j]);
      sum[j + 1] = fmaf(weight, pair.y, sum[j + 1]);
    }
  }
  const std::int32_t head_blocks = p.kv_heads / args.head_block;
  const std::int64_t token = line.query + line.node + row / args.group;
  const std::int64_t kv_head = (parts.cut.segment % head_blocks) * args.head_block + head_in_block;
  const std::int64_t head = kv_head * args.group + row % args.group;
  const float scale = total == 0.0F ? 0.0F : 1.0F / total;
  char* to = gqa::output_row(p.output, token, head);
#pragma unroll
  for (int j = 0; j < kValues; j += 2) {
    const auto column = static_cast<std::int32_t>(kValues * lane) + j;
    gqa::store_pair(p.output.type, to, {column, sum[j] * scale, sum[j + 1] * scale});
  }
  if (lane == 0)
    gqa::store_lse(p.output, token, head, total == 0.0F ? -INFINITY : peak + log2f(total));
}

/// Work items are a cut and four of its rows, a warp each.
template <int head_dim>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ GqaArgs args, int rows, int tile_tokens) {
  const GqaSchedule& schedule = args.schedule;
  const std::int64_t cuts = gqa_has_fixed_pieces(schedule)
                                ? schedule.cuts_before[schedule.lines]
                                : static_cast<std::int64_t>(schedule.workers);
  const int chunks = rows * args.head_block / kWarps;
  for (std::int64_t item = blockIdx.x; item < cuts * chunks; item += gridDim.x) {
    const Parts parts = parts_of(args, item / chunks, rows, tile_tokens);
    if (parts.cut.count < 2) continue;
    const gqa::Line line = gqa::load_line(args, parts.cut.line, rows, tile_tokens);
    const int place =
        static_cast<int>(item % chunks) * kWarps + static_cast<int>(threadIdx.x >> 5U);
    const std::int32_t head_blocks = args.params.kv_heads / args.head_block;
    const int row = parts.cut.segment / head_blocks * rows + place % rows;
    if (row >= line.nodes * args.group) continue;
    merge_row<head_dim>(args, parts, line, place / rows, row, place % rows, rows);
  }
}

}  // namespace

cudaError_t launch_gqa_combine(const GqaArgs& args, const GqaPolicy& policy,
                               std::int32_t multiprocessors, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(multiprocessors * kBlocksPerMultiprocessor);
  const int rows = policy.rows();
  const int tile_tokens = policy.tile_tokens();
  switch (policy.head_dim) {
    case 64:
      combine_kernel<64><<<blocks, kThreads, 0, stream>>>(args, rows, tile_tokens);
      break;
    case 128:
      combine_kernel<128><<<blocks, kThreads, 0, stream>>>(args, rows, tile_tokens);
      break;
    default:
      combine_kernel<256><<<blocks, kThreads, 0, stream>>>(args, rows, tile_tokens);
      break;
  }
  return cudaGetLastError();
}

}  // namespace packstone::kernels
