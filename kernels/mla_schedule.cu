// SPDX-License-Identifier: Apache-2.0
// The schedule of the MLA kernels, made on the device from the lengths that are there when it runs.
#include "kernels/mla_launch.hpp"
#include "kernels/mla_line.cuh"
#include "kernels/primitives.cuh"

namespace packstone::kernels {
namespace {

using mla::Line;
using mla::load_line;

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

/// Which sequence each query token belongs to; -1 for those behind the last.
__device__ void find_sequences(const MlaArgs& args) {
  const VerifyParams& p = args.params;
  for (int token = static_cast<int>(threadIdx.x); token < p.tokens; token += kThreads) {
    int low = 0;
    int high = p.batch;  // the last b with q_indptr[b] <= token
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (p.q_indptr[middle + 1] <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    args.schedule.line_sequence[token] = (low < p.batch && p.q_indptr[low] <= token) ? low : -1;
  }
  __syncthreads();
}

__device__ void lay_lines(const MlaArgs& args, int rows, int tile_tokens) {
  __shared__ std::int64_t warp_sums[kWarps];
  const MlaSchedule& schedule = args.schedule;
  if (args.params.sparse.entries != nullptr) find_sequences(args);
  std::int64_t tiles_base = 0;
  std::int64_t parts_base = 0;
  const bool fixed = mla_has_fixed_pieces(schedule);
  for (int first = 0; first < schedule.lines; first += kThreads) {
    const int index = first + static_cast<int>(threadIdx.x);
    std::int64_t tiles = 0;
    std::int64_t parts = 0;
    if (index < schedule.lines) {
      const Line line = load_line(args, index, rows, tile_tokens);
      tiles = static_cast<std::int64_t>(line.segments) * line.tiles;
      const int piece = mla::piece_tiles_of(schedule, line.tiles);
      const int pieces = (line.tiles + piece - 1) / piece;
      parts = pieces > 1 ? static_cast<std::int64_t>(line.segments) * pieces : 0;
    }
    std::int64_t total = 0;
    const std::int64_t tiles_before = tiles_base + scan_block(tiles, warp_sums, &total);
    tiles_base += total;
    if (index < schedule.lines) schedule.tiles_before[index] = tiles_before;
    if (fixed) {
      const std::int64_t parts_before = parts_base + scan_block(parts, warp_sums, &total);
      parts_base += total;
      if (index < schedule.lines) schedule.parts_before[index] = parts_before;
    }
  }
  if (threadIdx.x != 0) return;
  schedule.tiles_before[schedule.lines] = tiles_base;
  if (fixed) schedule.parts_before[schedule.lines] = parts_base;
}

/// The last line that begins at or before tile `at`.
__device__ std::int32_t find_line_alone(const MlaSchedule& schedule, std::int64_t at) {
  std::int32_t low = 0;
  std::int32_t high = schedule.lines;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (schedule.tiles_before[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The segment that begins in the share of worker `id` and ends in another's.
__device__ MlaCut cut_of(const MlaArgs& args, std::int64_t id, int rows, int tile_tokens) {
  const MlaSchedule& schedule = args.schedule;
  MlaCut cut{};
  const std::int64_t total = schedule.tiles_before[schedule.lines];
  const std::int64_t share = mla::share_of(schedule, total);
  const std::int64_t end = (id + 1) * share;
  if (end >= total) return cut;
  cut.line = find_line_alone(schedule, end);
  const Line line = load_line(args, cut.line, rows, tile_tokens);
  const std::int64_t local = end - schedule.tiles_before[cut.line];
  cut.segment = static_cast<std::int32_t>(local / line.tiles);
  const std::int64_t tile = local % line.tiles;
  // A segment that starts just here is not cut; one that began before this share belongs to an
  // earlier worker.
  if (tile == 0 || tile > share) return cut;
  cut.count = static_cast<std::int32_t>((end - tile + line.tiles - 1) / share - id) + 1;
  cut.head = 2 * id + 1;
  cut.first = 2 * id;
  cut.step = 2;
  return cut;
}

/// Lists the segments that shares cut, in order.
__device__ void list_cuts(const MlaArgs& args, int rows, int tile_tokens) {
  __shared__ std::int64_t warp_sums[kWarps];
  const MlaSchedule& schedule = args.schedule;
  std::int64_t base = 0;
  for (int first = 0; first < schedule.workers; first += kThreads) {
    const int id = first + static_cast<int>(threadIdx.x);
    MlaCut cut{};
    if (id < schedule.workers) cut = cut_of(args, id, rows, tile_tokens);
    std::int64_t total = 0;
    const std::int64_t place = base + scan_block(cut.count > 1 ? 1 : 0, warp_sums, &total);
    base += total;
    if (cut.count > 1) schedule.cuts[place] = cut;
  }
  if (threadIdx.x == 0) *schedule.cut_count = static_cast<std::int32_t>(base);
}

/// Ancestor words of the trees, a thread for each word: it walks from the node to the root and
/// keeps the bits that fall into its word.
__device__ void make_words(const MlaArgs& args, int block, int blocks) {
  constexpr int kStaged = 1024;
  __shared__ std::int32_t parents[kStaged];
  const VerifyParams& p = args.params;
  const int width = args.schedule.words_stride;
  for (int b = block; b < p.batch; b += blocks) {
    const int first = p.q_indptr[b];
    const int q_len = p.q_indptr[b + 1] - first;
    const bool staged = q_len <= kStaged;
    __syncthreads();
    if (staged && static_cast<int>(threadIdx.x) < q_len)
      parents[threadIdx.x] = p.mask.parents[first + static_cast<int>(threadIdx.x)];
    __syncthreads();
    const std::int32_t* tree = staged ? parents : p.mask.parents + first;
    for (int i = static_cast<int>(threadIdx.x); i < q_len * width; i += kThreads) {
      const int node = i / width;
      const int word = i % width;
      std::uint64_t bits = 0;
      // A parent that is not before its node would be no tree; stopping there keeps a bad one from
      // looping for ever.
      for (int j = node, next = 0; j >= 0; j = next < j ? next : -1) {
        if (j >> 6 == word) bits |= std::uint64_t{1} << static_cast<unsigned>(j & 63);
        next = tree[j];
      }
      args.schedule.words[static_cast<std::int64_t>(first + node) * width + word] = bits;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    schedule_kernel(const __grid_constant__ MlaArgs args, int rows, int tile_tokens) {
  mla::let_next_kernel_start();
  if (blockIdx.x == 0) {
    lay_lines(args, rows, tile_tokens);
    __syncthreads();
    if (!mla_has_fixed_pieces(args.schedule)) list_cuts(args, rows, tile_tokens);
  } else {
    make_words(args, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
  }
}

}  // namespace

cudaError_t launch_mla_schedule(const MlaArgs& args, cudaStream_t stream) {
  constexpr int kWordBlocksMax = 512;
  const int batch = args.params.batch;
  const int word_blocks =
      args.schedule.words == nullptr ? 0 : (batch < kWordBlocksMax ? batch : kWordBlocksMax);
  schedule_kernel<<<1 + word_blocks, kThreads, 0, stream>>>(args, args.rows, args.tile);
  return cudaGetLastError();
}

}  // namespace packstone::kernels
