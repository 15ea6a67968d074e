// SPDX-License-Identifier: Apache-2.0
// Merges the partials of segments that fell to several workers or pieces.
#include "kernels/mla_launch.hpp"
#include "kernels/mla_line.cuh"
#include "kernels/primitives.cuh"

namespace packstone::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kQuads = kMlaLatentDim / 4;  ///< of columns
constexpr int kPieces = kQuads / 32;       ///< of a row, each 4 columns a lane
static_assert(kThreads == kMlaCombineThreads);

/// The segment whose first partial is `part`; the whole warp works on it.
__device__ MlaCut cut_by_piece(const MlaArgs& args, std::int64_t part) {
  const MlaSchedule& schedule = args.schedule;
  MlaCut cut{};
  const std::int32_t index = find_line(schedule.parts_before, schedule.lines, part);
  const mla::Line line = mla::load_line(args, index, args.tile);
  const std::int32_t piece = piece_tiles_of(schedule, line.tiles);
  const std::int32_t pieces = (line.tiles + piece - 1) / piece;
  const std::int64_t local = part - schedule.parts_before[index];
  if (local % pieces != 0) return cut;
  cut.token = line.query + line.node;
  cut.row = static_cast<std::int32_t>(local / pieces) * args.rows;
  cut.rows = line.nodes * args.params.heads;
  cut.count = pieces;
  cut.head = cut.first = static_cast<std::int32_t>(part);
  cut.step = 1;
  return cut;
}

__device__ float sum_over_warp(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
  return x;
}

/// Stores a lane's four columns of a merged row, and the row's lse.
__device__ void store_merged(const MlaArgs& args, const MlaCut& cut, int row, int quad, float4 sum,
                             float total, float peak) {
  const VerifyParams& p = args.params;
  const std::int64_t token = cut.token + row / p.heads;
  const std::int64_t head = row % p.heads;
  const float scale = total == 0.0F ? 0.0F : 1.0F / total;
  sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
  char* to = static_cast<char*>(p.output.out) + token * p.output.stride_token +
             head * p.output.stride_head;
  const int bytes = p.output.type == FloatType::fp32 ? 16 : 8;
  store_four(p.output.type, to + quad * bytes, sum);
  if (p.output.lse != nullptr && quad == 0) {
    const float lse = total == 0.0F ? -INFINITY : peak + log2f(total);
    auto* lse_row = reinterpret_cast<float*>(reinterpret_cast<char*>(p.output.lse) +
                                             token * p.output.lse_stride_token);
    lse_row[head] = p.output.lse_base == LseBase::two ? lse : lse * 0.6931471805599453F;
  }
}

/// A piece of a row of a cut segment, by `warps` warps that take partials in turn.
template <int warps>
__device__ void merge_piece(const MlaArgs& args, const MlaCut& cut, int row, int piece) {
  constexpr int kBatch = 4;  // partials on their way together
  const int lane = static_cast<int>(threadIdx.x & 31U);
  const int warp = static_cast<int>(threadIdx.x >> 5U);
  const int own = warp % warps;
  const int quad = 32 * piece + lane;
  const bool exists = cut.count >= 2 && cut.row + row < cut.rows;
  const int count = exists ? (cut.count - own + warps - 1) / warps : 0;
  const auto place = [&](int i) {
    const std::int32_t part = i == 0 ? cut.head : cut.first + i * cut.step;
    return static_cast<std::int64_t>(part) * args.rows + row;
  };
  wait_for_kernel_before();
  float4 part[kBatch];
  const auto load = [&](int first) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b >= count) break;
      part[b] = reinterpret_cast<const float4*>(
          args.partial_out)[place(own + (first + b) * warps) * kQuads + quad];
    }
  };
  load(0);
  float peak = -INFINITY;
  if (exists) {
    for (int i = lane; i < cut.count; i += 32) peak = fmaxf(peak, args.partial_lse[place(i)]);
  }
  for (int step = 16; step > 0; step /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFU, peak, step));
  float4 sum = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  float total = 0.0F;
  float weight = 0.0F;  // of the lane's partial of 32
  for (int first = 0; first < count; first += kBatch) {
    if (first % 32 == 0) {
      const int i = first + lane;
      const float lse = i < count ? args.partial_lse[place(own + i * warps)] : -INFINITY;
      // An empty part has weight 0 also where every part is empty and the peak is -inf.
      weight = lse == -INFINITY ? 0.0F : exp2_fast(lse - peak);
      total += weight;
    }
    if (first > 0) load(first);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float by = __shfl_sync(0xFFFFFFFFU, weight, (first + b) % 32);
      // Values of an empty part do not count, whatever they are.
      if (first + b >= count || by == 0.0F) continue;
      sum.x = fmaf(by, part[b].x, sum.x);
      sum.y = fmaf(by, part[b].y, sum.y);
      sum.z = fmaf(by, part[b].z, sum.z);
      sum.w = fmaf(by, part[b].w, sum.w);
    }
  }
  total = sum_over_warp(total);
  if constexpr (warps > 1) {
    __shared__ float4 sums[kWarps][32];
    __shared__ float totals[kWarps];
    sums[warp][lane] = sum;
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    if (own == 0) {
#pragma unroll
      for (int w = 1; w < warps; ++w) {
        const float4 more = sums[warp + w][lane];
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
        total += totals[warp + w];
      }
    }
    __syncthreads();
  }
  if (exists && own == 0) store_merged(args, cut, cut.row + row, quad, sum, total, peak);
}

/// Pieces of the rows of `cuts` segments. `cut_of(i)` is the i-th; the whole warp calls it.
template <int warps, typename CutOf>
__device__ void merge_all(const MlaArgs& args, std::int64_t cuts, CutOf&& cut_of) {
  constexpr int kTeams = kWarps / warps;
  const std::int64_t pieces_each = std::int64_t{kPieces} * args.rows;
  const std::int64_t pieces = cuts * pieces_each;
  const std::int64_t team = threadIdx.x / (32U * warps);
  // Teams of a block stay together, for barriers.
  for (std::int64_t first = std::int64_t{kTeams} * blockIdx.x; first < pieces;
       first += std::int64_t{kTeams} * gridDim.x) {
    const std::int64_t i = first + team;
    MlaCut cut{};
    if (i < pieces) cut = cut_of(i / pieces_each);
    const auto local = static_cast<int>(i % pieces_each);
    merge_piece<warps>(args, cut, local / kPieces, local % kPieces);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    combine_kernel(const __grid_constant__ MlaArgs args) {
  // The schedule is older than the kernel before, so what it says is read ahead of the wait.
  const MlaSchedule& schedule = args.schedule;
  if (mla_has_fixed_pieces(schedule)) {
    merge_all<1>(args, schedule.parts_before[schedule.lines],
                 [&](std::int64_t i) { return cut_by_piece(args, i); });
    wait_for_kernel_before();
    return;
  }
  const std::int64_t cuts = *schedule.cut_count;
  const auto cut_of = [&](std::int64_t i) { return schedule.cuts[i]; };
  // More warps for a piece where there are few, each in many parts: one long sequence's few rows
  // would else leave most of the device idle.
  const std::int64_t pieces = cuts * args.rows * kPieces;
  const std::int64_t blocks = gridDim.x;
  if (pieces <= blocks) {
    merge_all<kWarps>(args, cuts, cut_of);
  } else if (pieces * 8 <= blocks * kWarps) {
    merge_all<8>(args, cuts, cut_of);
  } else if (pieces * 4 <= blocks * kWarps) {
    merge_all<4>(args, cuts, cut_of);
  } else {
    merge_all<1>(args, cuts, cut_of);
  }
  // Also without anything to merge: who waits for this kernel waits for the one before too.
  wait_for_kernel_before();
}

}  // namespace

const void* mla_combine_kernel() {
  return reinterpret_cast<const void*>(&combine_kernel);
}

dim3 mla_combine_grid(const MlaArgs& args, std::int64_t parts_max) {
  if (mla_has_fixed_pieces(args.schedule) && parts_max < 2) return dim3(0);
  constexpr unsigned kBlocksPerWorker = 2;  // what runs at once
  return dim3(kBlocksPerWorker * static_cast<unsigned>(args.schedule.workers));
}

}  // namespace packstone::kernels
