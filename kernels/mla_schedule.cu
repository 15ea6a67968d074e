// SPDX-License-Identifier: Apache-2.0
// The schedule of the MLA kernels, made on the device from the lengths that are there when it runs.
#include "kernels/mla_launch.hpp"
#include "kernels/mla_line.cuh"
#include "kernels/primitives.cuh"

namespace packstone::kernels {
namespace {

using mla::Line;
using mla::load_line;

constexpr int kThreads = kMlaScheduleThreads;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32);  // one a lane

/// Sum over the lanes up to this one.
__device__ std::int64_t scan_warp(std::int64_t value) {
  const unsigned lane = threadIdx.x & 31U;
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::int64_t other = __shfl_up_sync(0xFFFFFFFFU, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

/// Sum over the threads before this one; `total` gets the sum over all. Two barriers.
__device__ std::int64_t scan_block(std::int64_t value, std::int64_t* total) {
  __shared__ std::int64_t warp_sums[kWarps];
  const unsigned lane = threadIdx.x & 31U;
  const unsigned warp = threadIdx.x >> 5U;
  const std::int64_t sum = scan_warp(value);
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const std::int64_t own = warp_sums[lane];
  const std::int64_t sums = scan_warp(own);
  const std::int64_t before = __shfl_sync(0xFFFFFFFFU, sums - own, static_cast<int>(warp));
  *total = __shfl_sync(0xFFFFFFFFU, sums, 31);
  __syncthreads();
  return before + sum - value;
}

/// What earlier lines have and cost in one role: in shared memory where it fits, else where the
/// schedule keeps it.
struct Before {
  std::int64_t* tiles;
  std::int64_t* cost;
  std::int64_t tiles_total;
  std::int64_t cost_total;
  std::int32_t tile_tokens;
};

/// The whole block works on it.
__device__ void lay_lines(const MlaArgs& args, Before& before) {
  const MlaSchedule& schedule = args.schedule;
  const std::int32_t tile_tokens = before.tile_tokens;
  std::int64_t tiles_base = 0;
  std::int64_t cost_base = 0;
  std::int64_t parts_base = 0;
  const bool fixed = mla_has_fixed_pieces(schedule);
  for (int first = 0; first < schedule.lines; first += kThreads) {
    const int index = first + static_cast<int>(threadIdx.x);
    const bool exists = index < schedule.lines;
    std::int64_t tiles = 0;
    std::int64_t cost = 0;
    std::int64_t parts = 0;
    if (exists) {
      const Line line = load_line(args, index, tile_tokens);
      const std::int64_t segments = line.segments - mla::first_segment(args, line, tile_tokens);
      tiles = segments * line.tiles;
      cost = mla::line_cost(args, line, tile_tokens);
      const int piece = piece_tiles_of(schedule, line.tiles);
      const int pieces = (line.tiles + piece - 1) / piece;
      parts = pieces > 1 ? segments * pieces : 0;
    }
    std::int64_t total = 0;
    const std::int64_t tiles_before = tiles_base + scan_block(tiles, &total);
    tiles_base += total;
    const std::int64_t cost_before = cost_base + scan_block(cost, &total);
    cost_base += total;
    if (exists) {
      before.tiles[index] = tiles_before;
      before.cost[index] = cost_before;
    }
    if (fixed) {
      const std::int64_t parts_before = parts_base + scan_block(parts, &total);
      parts_base += total;
      if (exists) schedule.parts_before[index] = parts_before;
    }
  }
  if (threadIdx.x == 0) {
    before.tiles_total = tiles_base;
    before.cost_total = cost_base;
    if (fixed) schedule.parts_before[schedule.lines] = parts_base;
  }
  __syncthreads();
}

/// The last line that begins at or before cost `at`.
__device__ std::int32_t find_line_alone(const Before& before, std::int32_t lines, std::int64_t at) {
  std::int32_t low = 0;
  std::int32_t high = lines;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (before.cost[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Workers for the rest, of all: such that the slower of both roles is done soonest.
__device__ std::int32_t workers_of_rest(std::int32_t workers, std::int64_t full,
                                        std::int64_t rest) {
  if (rest == 0) return 0;
  if (full == 0) return workers;
  const auto rest_is_slower = [&](std::int64_t of_rest) {
    return rest / of_rest > full / (workers - of_rest);
  };
  // The first number with which it is not.
  std::int32_t low = 1;
  std::int32_t high = workers - 1;
  while (low < high) {
    const std::int32_t middle = (low + high) / 2;
    if (rest_is_slower(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A cut of the line of tiles, and the segment that it cuts.
struct Cut {
  MlaStart start;
  std::int32_t token;      ///< first query token of the line
  std::int32_t rows;       ///< of the line
  std::int64_t last_tile;  ///< cost before the segment's last tile
};

/// The first tile, or with fixed pieces the first of a piece, that begins at cost `at` or later.
__device__ Cut cut_at(const MlaArgs& args, const Before& before, std::int64_t at, MlaRole role) {
  const MlaSchedule& schedule = args.schedule;
  if (at >= before.cost_total)
    return {{before.tiles_total, 0, schedule.lines, 0, 0, role}, 0, 0, 0};
  std::int32_t index = find_line_alone(before, schedule.lines, at);
  const Line line = load_line(args, index, before.tile_tokens);
  const std::int64_t local = at - before.cost[index];
  const std::int32_t full_cost = mla::tile_cost(before.tile_tokens, args.rows);
  const std::int64_t full = static_cast<std::int64_t>(line.tiles) * full_cost + mla::kSegmentCost;
  const std::int32_t first = mla::first_segment(args, line, before.tile_tokens);
  const auto number = static_cast<std::int32_t>(
      min(local / full, static_cast<std::int64_t>(line.segments - 1 - first)));
  std::int32_t segment = first + number;
  const std::int32_t cost = segment == line.segments - 1
                                ? mla::tile_cost(before.tile_tokens, mla::last_rows(args, line))
                                : full_cost;
  const auto in_segment = static_cast<std::int32_t>(local - number * full);
  // The first tile comes behind what the segment itself costs.
  std::int32_t tile = max(0, in_segment - mla::kSegmentCost + cost - 1) / cost;
  if (mla_has_fixed_pieces(schedule)) {
    const std::int32_t piece = piece_tiles_of(schedule, line.tiles);
    tile = min((tile + piece - 1) / piece * piece, line.tiles);
  }
  Cut cut{{before.tiles[index] + static_cast<std::int64_t>(number) * line.tiles + tile, 0, index,
           segment, tile, role},
          line.query + line.node,
          line.nodes * args.params.heads,
          at - in_segment + mla::kSegmentCost + static_cast<std::int64_t>(line.tiles - 1) * cost};
  if (tile == line.tiles) {
    tile = 0;
    if (++segment == line.segments) {
      do {
        ++index;
      } while (index + 1 < schedule.lines && before.tiles[index] == before.tiles[index + 1]);
      segment = 0;
      if (index < schedule.lines && mla::is_rest(args, before.tile_tokens)) {
        const Line next = load_line(args, index, before.tile_tokens);
        segment = mla::first_segment(args, next, before.tile_tokens);
      }
    }
    cut.start.line = index;
    cut.start.segment = segment;
    cut.start.tile = tile;
  }
  return cut;
}

/// Cuts a role's line of tiles into shares for workers `first_worker` and on, and lists the
/// segments that are cut, in order, from place `cuts` on. Gives the places taken so far.
__device__ std::int64_t cut_line(const MlaArgs& args, const Before& before, MlaRole role,
                                 std::int32_t first_worker, std::int32_t workers,
                                 std::int64_t cuts) {
  const MlaSchedule& schedule = args.schedule;
  const std::int64_t least = static_cast<std::int64_t>(schedule.worker_tiles_min) *
                             mla::tile_cost(before.tile_tokens, args.rows);
  const std::int64_t share = max((before.cost_total + workers - 1) / max(workers, 1), least);
  for (int first = 0; first < workers; first += kThreads) {
    const int id = first + static_cast<int>(threadIdx.x);
    MlaCut cut{};
    if (id < workers) {
      const int worker = first_worker + id;
      MlaStart start{};
      Cut end{};
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        if (i == 1) start = end.start;
        end = cut_at(args, before, (id + i) * share, role);
      }
      start.end = end.start.before;
      schedule.starts[worker] = start;
      // The segment that begins in this share and ends in another's. One that starts just at the
      // cut is not cut; one that began before this share belongs to an earlier worker.
      if (end.start.tile != 0 && end.start.before - end.start.tile >= start.before) {
        cut.token = end.token;
        cut.row = end.start.segment * args.rows;
        cut.rows = end.rows;
        cut.count = static_cast<std::int32_t>(end.last_tile / share) - id + 1;
        cut.head = 2 * worker + 1;
        cut.first = 2 * worker;
        cut.step = 2;
      }
    }
    if (mla_has_fixed_pieces(schedule)) continue;
    std::int64_t total = 0;
    const std::int64_t place = cuts + scan_block(cut.count > 1 ? 1 : 0, &total);
    cuts += total;
    if (cut.count > 1) schedule.cuts[place] = cut;
  }
  return cuts;
}

/// Loops keep the code short, which comes from memory at every call, slowly.
__device__ void make_schedule(const MlaArgs& args) {
  __shared__ std::int64_t tiles_near[2][kThreads];
  __shared__ std::int64_t cost_near[2][kThreads];
  __shared__ Before befores[2];
  const MlaSchedule& schedule = args.schedule;
  const int roles = args.rest_apart ? 2 : 1;
  if (threadIdx.x < 2) {
    const auto role = static_cast<int>(threadIdx.x);
    const bool near = schedule.lines <= kThreads;
    const std::int64_t far = std::int64_t{role} * schedule.lines;
    befores[role] = {near ? tiles_near[role] : schedule.tiles_before + far,
                     near ? cost_near[role] : schedule.cost_before + far, 0, 0,
                     role == 0 ? args.tile : MlaPolicy::kFewTile};
  }
  if (args.params.sparse.entries != nullptr) find_sequences<kThreads>(args);
  __syncthreads();
#pragma unroll 1
  for (int role = 0; role < roles; ++role) lay_lines(args, befores[role]);
  const std::int32_t rest_workers =
      roles == 1 ? 0
                 : workers_of_rest(schedule.workers, befores[0].cost_total, befores[1].cost_total);
  const std::int32_t full_workers = schedule.workers - rest_workers;
  std::int64_t cuts = 0;
#pragma unroll 1
  for (int role = 0; role < roles; ++role) {
    cuts = cut_line(args, befores[role], static_cast<MlaRole>(role), role == 0 ? 0 : full_workers,
                    role == 0 ? full_workers : rest_workers, cuts);
  }
  if (threadIdx.x == 0) *schedule.cut_count = static_cast<std::int32_t>(cuts);
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

__global__ void __launch_bounds__(kThreads) schedule_kernel(const __grid_constant__ MlaArgs args) {
  let_next_kernel_start();
  wait_for_kernel_before();
  if (blockIdx.x == 0) {
    make_schedule(args);
  } else {
    make_words(args, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
  }
}

}  // namespace

const void* mla_schedule_kernel() {
  return reinterpret_cast<const void*>(&schedule_kernel);
}

dim3 mla_schedule_grid(const MlaArgs& args) {
  constexpr int kWordBlocksMax = 512;
  const int batch = args.params.batch;
  const int word_blocks =
      args.schedule.words == nullptr ? 0 : (batch < kWordBlocksMax ? batch : kWordBlocksMax);
  return dim3(1U + static_cast<unsigned>(word_blocks));
}

}  // namespace packstone::kernels
