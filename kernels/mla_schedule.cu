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

/// The threads that lay and cut the line of one role: the whole block, or a half of it for each of
/// the two, which then work side by side.
class Team {
 public:
  __device__ explicit Team(int roles)
      : threads_(kThreads / roles),
        number_(static_cast<int>(threadIdx.x) / threads_),
        thread_(static_cast<int>(threadIdx.x) % threads_) {}
  __device__ int number() const { return number_; }
  __device__ int thread() const { return thread_; }
  __device__ int threads() const { return threads_; }
  __device__ void sync() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + number_), "r"(threads_) : "memory");
  }

 private:
  int threads_;
  int number_;
  int thread_;
};

/// Two sums at once.
struct Sums {
  std::int64_t x;
  std::int64_t y;
};

/// Sums over the lanes up to this one.
__device__ Sums scan_warp(Sums value) {
  const unsigned lane = threadIdx.x & 31U;
#pragma unroll 1
  for (unsigned step = 1; step < 32; step *= 2) {
    const Sums other{__shfl_up_sync(0xFFFFFFFFU, value.x, step),
                     __shfl_up_sync(0xFFFFFFFFU, value.y, step)};
    if (lane >= step) value = {value.x + other.x, value.y + other.y};
  }
  return value;
}

/// Sums over the team's threads before this one; `total` gets those over all. Two barriers.
__device__ Sums scan_team(const Team& team, Sums value, Sums* total) {
  __shared__ Sums warp_sums[kWarps];
  const unsigned lane = threadIdx.x & 31U;
  const int warp = team.thread() / 32;
  const int warps = team.threads() / 32;
  Sums* sums = warp_sums + team.number() * warps;
  const Sums sum = scan_warp(value);
  if (lane == 31) sums[warp] = sum;
  team.sync();
  const Sums all = scan_warp(static_cast<int>(lane) < warps ? sums[lane] : Sums{0, 0});
  team.sync();
  *total = {__shfl_sync(0xFFFFFFFFU, all.x, 31), __shfl_sync(0xFFFFFFFFU, all.y, 31)};
  const int last = max(warp - 1, 0);
  const Sums before{__shfl_sync(0xFFFFFFFFU, all.x, last), __shfl_sync(0xFFFFFFFFU, all.y, last)};
  return {(warp > 0 ? before.x : 0) + sum.x - value.x, (warp > 0 ? before.y : 0) + sum.y - value.y};
}

/// What earlier lines have and cost in one role: in shared memory where it fits, else where the
/// schedule keeps it.
struct Before {
  std::int64_t* tiles;
  std::int64_t* cost;
  std::int32_t* next_line;  ///< of the schedule
  std::int64_t tiles_total;
  std::int64_t cost_total;
  std::int32_t tile_tokens;
};

/// The last line with no more than `value` before it: one with tiles (or cost) of its own, unless
/// no line from there on has any.
__device__ std::int32_t last_line(const std::int64_t* before, std::int32_t lines,
                                  std::int64_t value) {
  std::int32_t low = 0;
  std::int32_t high = lines;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (before[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The next line after `index` with tiles of the role; any where there is none.
__device__ std::int32_t line_after(const Before& before, std::int32_t lines, std::int32_t index) {
  const std::int32_t next = index + 1;
  if (next + 1 >= lines || before.tiles[next + 1] != before.tiles[next]) return next;
  return last_line(before.tiles, lines, before.tiles[next]);
}

/// The whole team works on it.
__device__ void lay_lines(const MlaArgs& args, const Team& team, Before& before) {
  const MlaSchedule& schedule = args.schedule;
  const std::int32_t tile_tokens = before.tile_tokens;
  Sums base{0, 0};  // tiles and cost
  std::int64_t parts_base = 0;
  const bool fixed = mla_has_fixed_pieces(schedule);
  for (int first = 0; first < schedule.lines; first += team.threads()) {
    const int index = first + team.thread();
    const bool exists = index < schedule.lines;
    Sums own{0, 0};
    std::int64_t parts = 0;
    if (exists) {
      const Line line = load_line(args, index, tile_tokens);
      const std::int64_t segments = line.segments - mla::first_segment(args, line, tile_tokens);
      own = {segments * line.tiles, mla::line_cost(args, line, tile_tokens)};
      if (fixed) {
        const int piece = piece_tiles_of(schedule, line.tiles);
        const int pieces = (line.tiles + piece - 1) / piece;
        parts = pieces > 1 ? segments * pieces : 0;
      }
    }
    Sums total{};
    const Sums sums = scan_team(team, own, &total);
    if (exists) {
      before.tiles[index] = base.x + sums.x;
      before.cost[index] = base.y + sums.y;
    }
    base = {base.x + total.x, base.y + total.y};
    if (fixed) {
      const std::int64_t parts_before = parts_base + scan_team(team, {parts, 0}, &total).x;
      parts_base += total.x;
      if (exists) schedule.parts_before[index] = parts_before;
    }
  }
  if (team.thread() == 0) {
    before.tiles_total = base.x;
    before.cost_total = base.y;
    if (fixed) schedule.parts_before[schedule.lines] = parts_base;
  }
}

/// Workers for the rest, of all: the least even number with which it is not the slower of both
/// roles. Blocks follow each other in pairs of neighbouring multiprocessors, and one for many rows
/// beside one for few takes 3 % longer (measured on an H200).
__device__ std::int32_t workers_of_rest(std::int32_t workers, std::int64_t full,
                                        std::int64_t rest) {
  if (rest == 0) return 0;
  if (full == 0) return workers;
  const std::int64_t wanted = (rest * workers + full + rest - 1) / (full + rest);
  const std::int64_t even = (wanted + 1) / 2 * 2;
  return static_cast<std::int32_t>(
      min(max(even, std::int64_t{1}), static_cast<std::int64_t>(workers - 1)));
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
    return {{before.tiles_total, 0, {}, schedule.lines, 0, 0, role}, 0, 0, 0};
  std::int32_t index = last_line(before.cost, schedule.lines, at);
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
  // Behind the last tile the next segment's first follows.
  std::int32_t tile = min(max(0, in_segment - mla::kStartCost + cost - 1) / cost, line.tiles);
  if (mla_has_fixed_pieces(schedule)) {
    const std::int32_t piece = piece_tiles_of(schedule, line.tiles);
    tile = min((tile + piece - 1) / piece * piece, line.tiles);
  }
  Cut cut{{before.tiles[index] + static_cast<std::int64_t>(number) * line.tiles + tile, 0, line,
           index, segment, tile, role},
          line.query + line.node,
          line.nodes * args.params.heads,
          at - in_segment + mla::kStartCost + static_cast<std::int64_t>(line.tiles - 1) * cost};
  if (tile == line.tiles) {
    tile = 0;
    if (++segment == line.segments) {
      index = line_after(before, schedule.lines, index);
      segment = 0;
      if (index < schedule.lines) {
        cut.start.lengths = load_line(args, index, before.tile_tokens);
        segment = mla::first_segment(args, cut.start.lengths, before.tile_tokens);
      }
    }
    cut.start.line = index;
    cut.start.segment = segment;
    cut.start.tile = tile;
  }
  return cut;
}

/// Cuts a role's line of tiles into shares for workers `first_worker` and on, and lists the
/// segments that are cut. The whole team works on it, a thread on a cut: its `edges` pass on where.
__device__ void cut_line(const MlaArgs& args, const Team& team, const Before& before,
                         std::int64_t* edges, std::int32_t first_worker, std::int32_t workers,
                         std::int32_t* cut_count) {
  const MlaSchedule& schedule = args.schedule;
  const auto role = static_cast<MlaRole>(team.number());
  const std::int64_t least = static_cast<std::int64_t>(schedule.worker_tiles_min) *
                             mla::tile_cost(before.tile_tokens, args.rows);
  const std::int64_t share = max((before.cost_total + workers - 1) / max(workers, 1), least);
  for (int first = 0; first < workers; first += team.threads() - 1) {
    const int id = first + team.thread();
    Cut cut{};
    if (id <= workers) cut = cut_at(args, before, id * share, role);
    edges[team.thread()] = cut.start.before;
    team.sync();
    if (id < workers && team.thread() + 1 < team.threads()) {
      cut.start.end = edges[team.thread() + 1];
      schedule.starts[first_worker + id] = cut.start;
    }
    // The segment that begins in the share before the cut and ends in another's. One that starts
    // just at the cut is not cut; one that began before that share belongs to an earlier worker.
    if (id <= workers && team.thread() > 0 && cut.start.tile != 0 &&
        !mla_has_fixed_pieces(schedule) &&
        cut.start.before - cut.start.tile >= edges[team.thread() - 1]) {
      const std::int32_t worker = first_worker + id - 1;
      MlaCut& listed = schedule.cuts[atomicAdd(cut_count, 1)];
      listed.token = cut.token;
      listed.row = cut.start.segment * args.rows;
      listed.rows = cut.rows;
      listed.count = static_cast<std::int32_t>(cut.last_tile / share) - id + 2;
      listed.head = 2 * worker + 1;
      listed.first = 2 * worker;
      listed.step = 2;
    }
    team.sync();
  }
}

__device__ void make_schedule(const MlaArgs& args) {
  __shared__ std::int64_t tiles_near[2][kThreads];
  __shared__ std::int64_t cost_near[2][kThreads];
  __shared__ std::int64_t edges[kThreads];
  __shared__ Before befores[2];
  __shared__ std::int32_t cut_count;
  const MlaSchedule& schedule = args.schedule;
  const int roles = args.rest_apart ? 2 : 1;
  const Team team(roles);
  const int role = team.number();
  if (team.thread() == 0) {
    const bool near = schedule.lines <= kThreads;
    const std::int64_t far = std::int64_t{role} * schedule.lines;
    befores[role] = {.tiles = near ? tiles_near[role] : schedule.tiles_before + far,
                     .cost = near ? cost_near[role] : schedule.cost_before + far,
                     .next_line = schedule.next_line + far,
                     .tiles_total = 0,
                     .cost_total = 0,
                     .tile_tokens = role == 0 ? args.tile : MlaPolicy::kFewTile};
    if (role == 0) cut_count = 0;
  }
  if (args.params.sparse.entries != nullptr) find_sequences<kThreads>(args);
  __syncthreads();
  lay_lines(args, team, befores[role]);
  __syncthreads();
  const std::int32_t rest_workers =
      roles == 1 ? 0
                 : workers_of_rest(schedule.workers, befores[0].cost_total, befores[1].cost_total);
  const std::int32_t full_workers = schedule.workers - rest_workers;
  for (int line = team.thread(); line < schedule.lines; line += team.threads())
    befores[role].next_line[line] = line_after(befores[role], schedule.lines, line);
  cut_line(args, team, befores[role], edges + role * team.threads(), role == 0 ? 0 : full_workers,
           role == 0 ? full_workers : rest_workers, &cut_count);
  __syncthreads();
  if (threadIdx.x == 0) *schedule.cut_count = cut_count;
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
