// SPDX-License-Identifier: Apache-2.0
// Merges the partials of segments that fell to several workers or pieces.
#include "kernels/gqa_cursor.cuh"
#include "kernels/gqa_launch.hpp"
#include "kernels/gqa_primitives.cuh"

namespace packstone::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

/// A cut segment: partial i of its `count` is at first + i * step, but partial 0 at `head`.
struct CutSegment {
  gqa::Line line;
  std::int32_t segment;
  std::int32_t count;  ///< 0: nothing to merge
  std::int64_t head;
  std::int64_t first;
  std::int64_t step;
};

/// The segment that begins in the share of worker `id` and ends in another's.
__device__ CutSegment cut_by_share(const GqaArgs& args, std::int64_t id, int rows,
                                   int tile_tokens) {
  const GqaSchedule& schedule = args.schedule;
  CutSegment cut{};
  const std::int64_t total = schedule.tiles_before[schedule.lines];
  const std::int64_t share = gqa::share_of(schedule, total);
  const std::int64_t end = (id + 1) * share;
  if (end >= total) return cut;
  const gqa::Cursor cursor = gqa::place_cursor(args, end, total, rows, tile_tokens);
  // A segment that starts just here is not cut; one that began before this share belongs to an
  // earlier worker.
  if (cursor.tile == 0 || cursor.tile > share) return cut;
  const std::int64_t segment_end = end - cursor.tile + cursor.line.tiles;
  cut.line = cursor.line;
  cut.segment = cursor.segment;
  cut.count = static_cast<std::int32_t>((segment_end - 1) / share - id) + 1;
  cut.head = 2 * id + 1;
  cut.first = 2 * id;
  cut.step = 2;
  return cut;
}

/// The segment whose first partial is `part`.
__device__ CutSegment cut_by_piece(const GqaArgs& args, std::int64_t part, int rows,
                                   int tile_tokens) {
  const GqaSchedule& schedule = args.schedule;
  CutSegment cut{};
  if (part >= schedule.parts_before[schedule.lines]) return cut;
  const std::int32_t index = gqa::find_line(schedule.parts_before, schedule.lines, part);
  cut.line = gqa::load_line(args, index, rows, tile_tokens);
  const std::int32_t piece = gqa::piece_tiles_of(schedule, cut.line.tiles);
  const std::int32_t pieces = (cut.line.tiles + piece - 1) / piece;
  const std::int64_t local = part - schedule.parts_before[index];
  if (local % pieces != 0) return cut;
  cut.segment = static_cast<std::int32_t>(local / pieces);
  cut.count = pieces;
  cut.head = cut.first = part;
  cut.step = 1;
  return cut;
}

/// One row of a cut segment: a warp each takes every fourth partial, and the first adds up.
template <int head_dim>
__device__ void merge_row(const GqaArgs& args, const CutSegment& cut, int head_in_block, int row,
                          int rows) {
  constexpr int kValues = head_dim / 32;
  __shared__ float sums[kWarps][head_dim];
  __shared__ float totals[kWarps];
  const unsigned lane = threadIdx.x & 31U;
  const unsigned warp = threadIdx.x >> 5U;
  const auto place = [&](int i) {
    const std::int64_t part = i == 0 ? cut.head : cut.first + i * cut.step;
    return (part * args.head_block + head_in_block) * rows + row % rows;
  };
  float peak = -INFINITY;
  for (int i = static_cast<int>(lane); i < cut.count; i += 32)
    peak = fmaxf(peak, args.partial_lse[place(i)]);
  for (int step = 16; step > 0; step /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFU, peak, step));
  float sum[kValues] = {};
  float total = 0.0F;
#pragma unroll 4
  for (int i = static_cast<int>(warp); i < cut.count; i += kWarps) {
    const std::int64_t at = place(i);
    const float lse = args.partial_lse[at];
    // An empty part has weight 0 also where every part is empty and the peak is -inf.
    const float weight = lse == -INFINITY ? 0.0F : gqa::exp2_fast(lse - peak);
    const float* from = args.partial_out + at * head_dim + kValues * lane;
    total += weight;
#pragma unroll
    for (int j = 0; j < kValues; j += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(from + j);
      sum[j] = fmaf(weight, pair.x, sum[j]);
      sum[j + 1] = fmaf(weight, pair.y, sum[j + 1]);
    }
  }
#pragma unroll
  for (int j = 0; j < kValues; ++j) sums[warp][kValues * lane + j] = sum[j];
  if (lane == 0) totals[warp] = total;
  __syncthreads();

  const VerifyParams& p = args.params;
  const std::int32_t head_blocks = p.kv_heads / args.head_block;
  const std::int32_t node = cut.line.node + row / args.group;
  const std::int64_t token = cut.line.query + node;
  const std::int64_t kv_head = (cut.segment % head_blocks) * args.head_block + head_in_block;
  const std::int64_t head = kv_head * args.group + row % args.group;
  const float all = totals[0] + totals[1] + totals[2] + totals[3];
  const float scale = all == 0.0F ? 0.0F : 1.0F / all;
  char* to = static_cast<char*>(p.output.out) + token * p.output.stride_token +
             head * p.output.stride_head;
  for (int pair = static_cast<int>(threadIdx.x); pair < head_dim / 2; pair += kThreads) {
    float x = 0.0F;
    float y = 0.0F;
    for (int w = 0; w < kWarps; ++w) {
      x += sums[w][2 * pair];
      y += sums[w][2 * pair + 1];
    }
    x *= scale;
    y *= scale;
    if (p.output.type == FloatType::fp32) {
      reinterpret_cast<float2*>(to)[pair] = make_float2(x, y);
    } else {
      reinterpret_cast<std::uint32_t*>(to)[pair] = p.output.type == FloatType::bf16
                                                       ? gqa::pack(gqa::Bf16{}, x, y)
                                                       : gqa::pack(gqa::Fp16{}, x, y);
    }
  }
  if (p.output.lse != nullptr && threadIdx.x == 0) {
    const float lse = all == 0.0F ? -INFINITY : peak + log2f(all);
    auto* lse_row = reinterpret_cast<float*>(reinterpret_cast<char*>(p.output.lse) +
                                             token * p.output.lse_stride_token);
    lse_row[head] = p.output.lse_base == LseBase::two ? lse : lse * 0.6931471805599453F;
  }
  __syncthreads();
}

/// blockIdx.x walks the cuts, blockIdx.y the rows of a segment with its heads side by side.
template <int head_dim>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ GqaArgs args, int rows, int tile_tokens,
                   std::int64_t cuts) {
  const bool fixed = gqa_has_fixed_pieces(args.schedule);
  const std::int64_t live = fixed ? args.schedule.parts_before[args.schedule.lines] : cuts;
  const int row = static_cast<int>(blockIdx.y) % rows;
  const int head_in_block = static_cast<int>(blockIdx.y) / rows;
  for (std::int64_t i = blockIdx.x; i < live; i += gridDim.x) {
    const CutSegment cut =
        fixed ? cut_by_piece(args, i, rows, tile_tokens) : cut_by_share(args, i, rows, tile_tokens);
    if (cut.count < 2) continue;
    const std::int32_t head_blocks = args.params.kv_heads / args.head_block;
    const std::int32_t line_row = cut.segment / head_blocks * rows + row;
    if (line_row >= cut.line.nodes * args.group) continue;
    merge_row<head_dim>(args, cut, head_in_block, line_row, rows);
  }
}

}  // namespace

cudaError_t launch_gqa_combine(const GqaArgs& args, const GqaPolicy& policy, std::int64_t parts_max,
                               cudaStream_t stream) {
  constexpr std::int64_t kGridMax = 4096;
  const std::int64_t cuts = gqa_has_fixed_pieces(args.schedule) ? parts_max : args.schedule.workers;
  if (cuts < 2) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(cuts < kGridMax ? cuts : kGridMax),
                  static_cast<unsigned>(policy.rows() * args.head_block));
  switch (policy.head_dim) {
    case 64:
      combine_kernel<64>
          <<<grid, kThreads, 0, stream>>>(args, policy.rows(), policy.tile_tokens(), cuts);
      break;
    case 128:
      combine_kernel<128>
          <<<grid, kThreads, 0, stream>>>(args, policy.rows(), policy.tile_tokens(), cuts);
      break;
    default:
      combine_kernel<256>
          <<<grid, kThreads, 0, stream>>>(args, policy.rows(), policy.tile_tokens(), cuts);
      break;
  }
  return cudaGetLastError();
}

}  // namespace packstone::kernels
