// SPDX-License-Identifier: Apache-2.0
// The schedule of the GQA kernels, made on the device from the lengths that are there when it runs.
#include "kernels/gqa_cursor.cuh"
#include "kernels/gqa_launch.hpp"

namespace packstone::kernels {
namespace {

using gqa::Line;
using gqa::load_line;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

/// Sum over the threads before this one; `total` gets the sum over all. Two barriers.
__device__ std::int64_t scan_block(std::int64_t value, std::int64_t (&warp_sums)[kWarps],
                                   std::int64_t* total) {
  const unsigned lane = threadIdx.x & 31U;
  const unsigned warp = threadIdx.x >> 5U;
  std::int64_t sum = value;
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::int64_t other = __shfl_up_sync(0xFFFFFFFFU, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  std::int64_t before = 0;
  std::int64_t all = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

__device__ void lay_lines(const GqaArgs& args, int rows, int tile_tokens) {
  __shared__ std::int64_t warp_sums[kWarps];
  const GqaSchedule& schedule = args.schedule;
  if (args.params.sparse.entries != nullptr) find_sequences<kThreads>(args);
  std::int64_t tiles_base = 0;
  std::int64_t parts_base = 0;
  std::int64_t cuts_base = 0;
  const bool fixed = gqa_has_fixed_pieces(schedule);
  for (int first = 0; first < schedule.lines; first += kThreads) {
    const int index = first + static_cast<int>(threadIdx.x);
    const bool live = index < schedule.lines;
    const Line line = live ? load_line(args, index, rows, tile_tokens) : Line{};
    const std::int64_t tiles = static_cast<std::int64_t>(line.segments) * line.tiles;
    std::int64_t total = 0;
    const std::int64_t tiles_before = tiles_base + scan_block(tiles, warp_sums, &total);
    tiles_base += total;
    if (live) schedule.tiles_before[index] = tiles_before;
    if (!fixed) continue;
    const int piece = live ? piece_tiles_of(schedule, line.tiles) : 1;
    const int pieces = (line.tiles + piece - 1) / piece;
    const std::int64_t cuts = pieces > 1 ? line.segments : 0;
    const std::int64_t parts_before = parts_base + scan_block(cuts * pieces, warp_sums, &total);
    parts_base += total;
    const std::int64_t cuts_before = cuts_base + scan_block(cuts, warp_sums, &total);
    cuts_base += total;
    if (!live) continue;
    schedule.parts_before[index] = parts_before;
    schedule.cuts_before[index] = cuts_before;
  }
  if (threadIdx.x != 0) return;
  schedule.tiles_before[schedule.lines] = tiles_base;
  if (!fixed) return;
  schedule.parts_before[schedule.lines] = parts_base;
  schedule.cuts_before[schedule.lines] = cuts_base;
}

/// Writes down the segments that shares cut, each with the worker in whose share it begins.
__device__ void find_cuts(const GqaArgs& args, int rows, int tile_tokens) {
  const GqaSchedule& schedule = args.schedule;
  const std::int64_t total = schedule.tiles_before[schedule.lines];
  const std::int64_t share = gqa::share_of(schedule, total);
  for (int id = static_cast<int>(threadIdx.x); id < schedule.workers; id += kThreads) {
    GqaCut cut{0, 0, 0};
    const std::int64_t end = (id + 1) * share;
    if (end < total) {
      int low = 0;
      int high = schedule.lines;  // the last line with tiles_before <= end
      while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        (schedule.tiles_before[middle] <= end ? low : high) = middle;
      }
      const Line line = load_line(args, low, rows, tile_tokens);
      const std::int64_t local = end - schedule.tiles_before[low];
      const std::int64_t tile = local % line.tiles;
      // A segment that starts just at the end is not cut; one that began before this share is an
      // earlier worker's.
      if (tile > 0 && tile <= share) {
        const std::int64_t last = (end - tile + line.tiles - 1) / share;
        cut = {low, static_cast<std::int32_t>(local / line.tiles),
               static_cast<std::int32_t>(last - id) + 1};
      }
    }
    schedule.cuts[id] = cut;
  }
}

/// Ancestor words of the trees, a thread for each word: it walks from the node to the root and
/// keeps the bits that fall into its word.
__device__ void make_words(const GqaArgs& args, int block, int blocks) {
  const VerifyParams& p = args.params;
  const int width = args.schedule.words_stride;
  for (int b = block; b < p.batch; b += blocks) {
    const int first = p.q_indptr[b];
    const int q_len = p.q_indptr[b + 1] - first;
    for (int i = static_cast<int>(threadIdx.x); i < q_len * width; i += kThreads) {
      const int node = i / width;
      const int word = i % width;
      std::uint64_t bits = 0;
      // A parent that is not before its node would be no tree; stopping there keeps a bad one from
      // looping for ever.
      for (int j = node, next = 0; j >= 0; j = next < j ? next : -1) {
        if (j >> 6 == word) bits |= std::uint64_t{1} << static_cast<unsigned>(j & 63);
        next = p.mask.parents[first + j];
      }
      args.schedule.words[static_cast<std::int64_t>(first + node) * width + word] = bits;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    schedule_kernel(const __grid_constant__ GqaArgs args, int rows, int tile_tokens) {
  if (blockIdx.x == 0) {
    lay_lines(args, rows, tile_tokens);
    if (gqa_has_fixed_pieces(args.schedule)) return;
    __syncthreads();
    find_cuts(args, rows, tile_tokens);
  } else {
    make_words(args, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
  }
}

}  // namespace

cudaError_t launch_gqa_schedule(const GqaArgs& args, const GqaPolicy& policy, cudaStream_t stream) {
  constexpr int kWordBlocksMax = 512;
  const int batch = args.params.batch;
  const int word_blocks =
      args.schedule.words == nullptr ? 0 : (batch < kWordBlocksMax ? batch : kWordBlocksMax);
  schedule_kernel<<<1 + word_blocks, kThreads, 0, stream>>>(args, policy.rows(),
                                                            policy.tile_tokens());
  return cudaGetLastError();
}

}  // namespace packstone::kernels
