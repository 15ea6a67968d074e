// SPDX-License-Identifier: Apache-2.0
// Merges the partials of segments that fell to several workers or pieces.
#include "kernels/mla_launch.hpp"
#include "kernels/mla_line.cuh"
#include "kernels/primitives.cuh"

namespace packstone::kernels {
namespace {

constexpr int kColumns = kMlaLatentDim / 4;  ///< threads of a row, 4 values each
constexpr int kThreads = 4 * kColumns;
constexpr int kPieces = 4;  ///< of a row
static_assert(kThreads == kMlaCombineThreads);

/// The segment whose first partial is `part`.
__device__ MlaCut cut_by_piece(const MlaArgs& args, std::int64_t part) {
  const MlaSchedule& schedule = args.schedule;
  MlaCut cut{};
  cut.line = mla::find_line(schedule.parts_before, schedule.lines, part);
  const mla::Line line = mla::load_line(args, cut.line, args.rows, args.tile);
  const std::int32_t piece = mla::piece_tiles_of(schedule, line.tiles);
  const std::int32_t pieces = (line.tiles + piece - 1) / piece;
  const std::int64_t local = part - schedule.parts_before[cut.line];
  if (local % pieces != 0) return cut;
  cut.segment = static_cast<std::int32_t>(local / pieces);
  cut.count = pieces;
  cut.head = cut.first = part;
  cut.step = 1;
  return cut;
}

/// A piece of a row of a cut segment: `columns` threads, 4 values each, make a group; the groups
/// take partials in turn, and the first adds up.
template <unsigned columns>
__device__ void merge_row(const MlaArgs& args, const MlaCut& cut, const mla::Line& line, int row,
                          unsigned piece) {
  constexpr int kGroups = kThreads / columns;
  __shared__ float4 sums[kGroups][columns];
  __shared__ float totals[kGroups];
  const unsigned lane = threadIdx.x & 31U;
  const unsigned group = threadIdx.x / columns;
  const unsigned own = threadIdx.x % columns;
  const unsigned column = piece * columns + own;
  const auto place = [&](int i) {
    const std::int64_t part = i == 0 ? cut.head : cut.first + i * cut.step;
    return part * args.rows + row % args.rows;
  };
  float peak = -INFINITY;
  for (int i = static_cast<int>(lane); i < cut.count; i += 32)
    peak = fmaxf(peak, args.partial_lse[place(i)]);
  for (int step = 16; step > 0; step /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFU, peak, step));
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  float total = 0.0F;
  // Batches, so that the loads of one are on their way together.
  constexpr int kBatch = 8;
  for (int first = static_cast<int>(group); first < cut.count; first += kBatch * kGroups) {
    float lse[kBatch];
    float4 part[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * kGroups;
      const std::int64_t at = place(i < cut.count ? i : 0);
      lse[b] = i < cut.count ? args.partial_lse[at] : -INFINITY;
      part[b] = reinterpret_cast<const float4*>(args.partial_out)[at * kColumns + column];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      // An empty part has weight 0 also where every part is empty and the peak is -inf, and then
      // its values do not count, whatever they are.
      if (lse[b] == -INFINITY) continue;
      const float weight = mla::exp2_fast(lse[b] - peak);
      total += weight;
      sum.x = fmaf(weight, part[b].x, sum.x);
      sum.y = fmaf(weight, part[b].y, sum.y);
      sum.z = fmaf(weight, part[b].z, sum.z);
      sum.w = fmaf(weight, part[b].w, sum.w);
    }
  }
  sums[group][own] = sum;
  if (own == 0) totals[group] = total;
  __syncthreads();

  if (group == 0) {
    const VerifyParams& p = args.params;
    const std::int64_t token = line.query + line.node + row / p.heads;
    const std::int64_t head = row % p.heads;
    float all = totals[0];
#pragma unroll
    for (unsigned g = 1; g < kGroups; ++g) all += totals[g];
    const float scale = all == 0.0F ? 0.0F : 1.0F / all;
    for (unsigned g = 1; g < kGroups; ++g) {
      const float4 more = sums[g][own];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    char* to = static_cast<char*>(p.output.out) + token * p.output.stride_token +
               head * p.output.stride_head;
    if (p.output.type == FloatType::fp32) {
      reinterpret_cast<float4*>(to)[column] = sum;
    } else {
      const bool bf16 = p.output.type == FloatType::bf16;
      reinterpret_cast<uint2*>(to)[column] = bf16
                                                 ? make_uint2(mla::pack(mla::Bf16{}, sum.x, sum.y),
                                                              mla::pack(mla::Bf16{}, sum.z, sum.w))
                                                 : make_uint2(mla::pack(mla::Fp16{}, sum.x, sum.y),
                                                              mla::pack(mla::Fp16{}, sum.z, sum.w));
    }
    if (p.output.lse != nullptr && column == 0) {
      const float lse = all == 0.0F ? -INFINITY : peak + log2f(all);
      auto* lse_row = reinterpret_cast<float*>(reinterpret_cast<char*>(p.output.lse) +
                                               token * p.output.lse_stride_token);
      lse_row[head] = p.output.lse_base == LseBase::two ? lse : lse * 0.6931471805599453F;
    }
  }
  __syncthreads();
}

template <unsigned columns>
__device__ void merge_cut(const MlaArgs& args, const MlaCut& cut, int row, unsigned piece) {
  if (cut.count < 2) return;
  const mla::Line line = mla::load_line(args, cut.line, args.rows, args.tile);
  const std::int32_t line_row = cut.segment * args.rows + row;
  if (line_row < line.nodes * args.params.heads)
    merge_row<columns>(args, cut, line, line_row, piece);
}

/// Rows of cut segments, one after the other; with fixed pieces, blockIdx.y is the row.
__global__ void __launch_bounds__(kThreads, 2)
    combine_kernel(const __grid_constant__ MlaArgs args) {
  const MlaSchedule& schedule = args.schedule;
  mla::wait_for_kernel_before();
  if (mla_has_fixed_pieces(schedule)) {
    const std::int64_t parts = schedule.parts_before[schedule.lines];
    for (std::int64_t i = blockIdx.x; i < parts; i += gridDim.x)
      merge_cut<kColumns>(args, cut_by_piece(args, i), static_cast<int>(blockIdx.y), 0);
    return;
  }
  const int rows = *schedule.cut_count * args.rows;
  const int blocks = static_cast<int>(gridDim.x);
  // As whole rows, one long sequence's few rows, in many parts, would leave most of the device
  // idle.
  if (rows * kPieces <= blocks) {
    for (int i = static_cast<int>(blockIdx.x); i < rows * kPieces; i += blocks) {
      const int row = i / kPieces;
      merge_cut<kColumns / kPieces>(args, schedule.cuts[row / args.rows], row % args.rows,
                                    static_cast<unsigned>(i % kPieces));
    }
    return;
  }
  for (int i = static_cast<int>(blockIdx.x); i < rows; i += blocks)
    merge_cut<kColumns>(args, schedule.cuts[i / args.rows], i % args.rows, 0);
}

}  // namespace

const void* mla_combine_kernel() {
  return reinterpret_cast<const void*>(&combine_kernel);
}

dim3 mla_combine_grid(const MlaArgs& args, std::int64_t parts_max) {
  constexpr std::int64_t kGridMax = 4096;
  constexpr unsigned kBlocksPerWorker = 4;
  dim3 grid(kBlocksPerWorker * static_cast<unsigned>(args.schedule.workers));
  if (mla_has_fixed_pieces(args.schedule)) {
    if (parts_max < 2) return dim3(0);
    grid = dim3(static_cast<unsigned>(parts_max < kGridMax ? parts_max : kGridMax),
                static_cast<unsigned>(args.rows));
  }
  return grid;
}

}  // namespace packstone::kernels
