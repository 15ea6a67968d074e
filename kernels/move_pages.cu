// SPDX-License-Identifier: Apache-2.0
// Page moves: every plane of every move in one persistent launch.
//
// The unit is one page of one plane; units of a class are numbered plane after plane. A *tile* is
// what a warp copies at a time: a group of whole small pages, or a chunk of a large one. Warps
// claim tiles in order, so that at any time the device works on neighbouring units, and
// multiprocessors that are nearer to memory do more of them.
#include "kernels/bulk_copy.cuh"
#include "kernels/pool_launch.hpp"
#include "kernels/shared_limit.cuh"

#include <cuda_runtime.h>

namespace packstone::kernels {

namespace {

constexpr int kWarp = 32;

enum class Widths { all, vectors, narrow };

/// Walks the tiles of one warp in ascending order. All lanes hold the same cursor.
struct TileCursor {
  const MovePagesArguments& arguments;
  Widths widths;              // classes of other widths are passed over
  std::int64_t n;             // moves
  std::int64_t tile;          // of the whole launch
  std::int64_t step;          // between this warp's tiles
  std::int64_t tile_base{0};  // tiles of the classes before `index`
  std::int64_t first{0};      // of the class's units
  std::int64_t last{0};
  std::int64_t tiles{0};
  int index{-1};
  MoveClass current{};

  /// Finds the class of `tile`; false past the end.
  __device__ bool settle() {
    while (index < 0 || tile >= tile_base + tiles) {
      tile_base += tiles;
      if (++index >= arguments.class_count) return false;
      current = arguments.classes[index];
      const std::int64_t base = current.unit_prefix * n;
      const std::int64_t units = current.planes * n;
      first = min(max(arguments.first_unit - base, std::int64_t{0}), units);
      last = min(max(arguments.last_unit - base, first), units);
      tiles = current.chunks > 1 ? (last - first) * current.chunks
                                 : (last - first + current.group - 1) / current.group;
      if (widths != Widths::all && (current.width == 16) != (widths == Widths::vectors)) tiles = 0;
    }
    return true;
  }
};

/// One lane's share of a tile, before its move has arrived from memory.
struct Piece {
  PageMove move{};
  std::int64_t plane{0};
  std::int64_t linear{0};  // offset on a linear side
  std::int64_t offset{0};  // within the page
  std::uint32_t bytes{0};  // 0: the lane has none
};

__device__ Piece piece_of(const TileCursor& cursor, std::int64_t unit, std::int64_t offset,
                          std::uint32_t bytes) {
  const MoveClass& c = cursor.current;
  const std::int64_t plane = unit / cursor.n;
  const std::int64_t i = unit - plane * cursor.n;
  Piece piece;
  piece.move = cursor.arguments.moves[i];
  piece.plane = c.first_plane + plane;
  piece.linear = c.linear_prefix * cursor.n + unit * c.page_bytes + offset;
  piece.offset = offset;
  piece.bytes = bytes;
  return piece;
}

/// The piece that lane `lane` copies by itself.
[[maybe_unused]] __device__ Piece lane_piece(const TileCursor& cursor, int lane) {
  const MoveClass& c = cursor.current;
  const std::int64_t local = cursor.tile - cursor.tile_base;
  if (c.chunks > 1) {
    if (lane != 0) return {};
    const std::int64_t unit = local / c.chunks;
    const std::int64_t offset = (local - unit * c.chunks) * c.chunk_bytes;
    const std::int64_t bytes = min(std::int64_t{c.chunk_bytes}, c.page_bytes - offset);
    return piece_of(cursor, cursor.first + unit, offset, static_cast<std::uint32_t>(bytes));
  }
  const std::int64_t unit = cursor.first + local * c.group + lane;
  if (lane >= c.group || unit >= cursor.last) return {};
  return piece_of(cursor, unit, 0, static_cast<std::uint32_t>(c.page_bytes));
}

__device__ std::uint64_t source_of(const MovePagesArguments& arguments, const Piece& piece) {
  if (arguments.source == nullptr) {
    return arguments.source_linear + static_cast<std::uint64_t>(piece.linear);
  }
  const PagePlane plane = arguments.source[piece.plane];
  return plane.base + static_cast<std::uint64_t>(
                          static_cast<std::int64_t>(piece.move.from) * plane.stride + piece.offset);
}

__device__ std::uint64_t destination_of(const MovePagesArguments& arguments, const Piece& piece) {
  if (arguments.destination == nullptr) {
    return arguments.destination_linear + static_cast<std::uint64_t>(piece.linear);
  }
  const PagePlane plane = arguments.destination[piece.plane];
  return plane.base + static_cast<std::uint64_t>(
                          static_cast<std::int64_t>(piece.move.to) * plane.stride + piece.offset);
}

// ---- through registers: any alignment, any compute capability ----

template <typename Vector>
__device__ void copy_tile(const TileCursor& cursor, int lane) {
  constexpr int kUnroll = 8;
  const MoveClass& c = cursor.current;
  const std::int64_t local = cursor.tile - cursor.tile_base;
  const bool chunked = c.chunks > 1;
  const std::int64_t first = cursor.first + (chunked ? local / c.chunks : local * c.group);
  const std::int64_t offset = chunked ? local % c.chunks * c.chunk_bytes : 0;
  const std::int64_t bytes =
      chunked ? min(std::int64_t{c.chunk_bytes}, c.page_bytes - offset) : c.page_bytes;
  const auto units =
      static_cast<std::uint32_t>(chunked ? 1 : min(std::int64_t{c.group}, cursor.last - first));
  const auto per_unit = static_cast<std::uint32_t>(bytes / static_cast<int>(sizeof(Vector)));
  const std::uint32_t total = units * per_unit;
  for (std::uint32_t start = static_cast<std::uint32_t>(lane); start < total;
       start += kWarp * kUnroll) {
    Vector values[kUnroll];
    Vector* targets[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint32_t element = start + static_cast<std::uint32_t>(u * kWarp);
      targets[u] = nullptr;
      if (element >= total) continue;
      const std::uint32_t unit = element / per_unit;
      const std::int64_t within =
          offset + std::int64_t{element - unit * per_unit} * static_cast<int>(sizeof(Vector));
      const Piece piece = piece_of(cursor, first + unit, within, 0);
      values[u] = *reinterpret_cast<const Vector*>(source_of(cursor.arguments, piece));
      targets[u] = reinterpret_cast<Vector*>(destination_of(cursor.arguments, piece));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (targets[u] != nullptr) *targets[u] = values[u];
    }
  }
}

__device__ void copy_tile_by_width(const TileCursor& cursor, int lane) {
  switch (cursor.current.width) {
    case 16:
      return copy_tile<uint4>(cursor, lane);
    case 8:
      return copy_tile<std::uint64_t>(cursor, lane);
    case 4:
      return copy_tile<std::uint32_t>(cursor, lane);
    case 2:
      return copy_tile<std::uint16_t>(cursor, lane);
    default:
      return copy_tile<std::uint8_t>(cursor, lane);
  }
}

__device__ std::int64_t count_of(const MovePagesArguments& arguments) {
  return min(max(*arguments.count, 0), arguments.count_max);
}

__device__ void stamp_moves(const MovePagesArguments& arguments, std::int64_t n) {
  if (arguments.stamps == nullptr) return;
  const std::uint32_t generation = *arguments.generation;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const PageMove move = arguments.moves[i];
    arguments.stamps[static_cast<std::int32_t>(move.from)] = {static_cast<std::int32_t>(move.to),
                                                              generation};
  }
}

__device__ TileCursor cursor_of(const MovePagesArguments& arguments, std::int64_t n,
                                Widths widths) {
  const std::int64_t warp = threadIdx.x / kWarp;
  const std::int64_t warps = blockDim.x / kWarp;
  return TileCursor{.arguments = arguments,
                    .widths = widths,
                    .n = n,
                    .tile = warp * gridDim.x + blockIdx.x,
                    .step = warps * gridDim.x};
}

__global__ void move_pages_registers(const __grid_constant__ MovePagesArguments arguments) {
  const std::int64_t n = count_of(arguments);
  if (n == 0) return;
  stamp_moves(arguments, n);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  TileCursor cursor = cursor_of(arguments, n, Widths::all);
  for (; cursor.settle(); cursor.tile += cursor.step) copy_tile_by_width(cursor, lane);
}

// ---- through shared memory, by the copy engine ----

/// Each warp owns a ring of `stages` stages. Loads run `stages / 2` tiles ahead of the stores, and
/// a stage is loaded again once the store that reads it is `stages / 2` tiles old, so that both
/// directions stay busy. The move of the next tile is fetched while this one's copies are issued:
/// its latency must not stand between two loads.
template <int stages>
__global__ void move_pages_bulk(const __grid_constant__ MovePagesArguments arguments,
                                std::uint32_t stage_bytes, int claim_tiles, cuda::CachePolicy loads,
                                cuda::CachePolicy stores) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int kAhead = stages / 2;
  constexpr int kBehind = stages - kAhead;
  extern __shared__ __align__(128) std::byte shared[];
  const std::int64_t n = count_of(arguments);
  if (n == 0) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int warps = static_cast<int>(blockDim.x / kWarp);
  const std::uint32_t barriers =
      shared_address(shared) + static_cast<std::uint32_t>(warp * stages) * 8U;
  const std::uint32_t ring = shared_address(shared) +
                             static_cast<std::uint32_t>((warps * stages * 8 + 127) / 128 * 128) +
                             static_cast<std::uint32_t>(warp * stages) * stage_bytes;
  if (lane == 0) {
    for (int s = 0; s < stages; ++s) barrier_init(barriers + static_cast<std::uint32_t>(s) * 8U);
    barrier_init_fence();
  }
  __syncwarp();
  stamp_moves(arguments, n);

  const std::uint64_t load_policy = cache_policy(loads);
  const std::uint64_t store_policy = cache_policy(stores);
  TileCursor cursor = cursor_of(arguments, n, Widths::vectors);
  // The first claim is the warp's own number; the next is asked for while this one is worked on.
  std::int64_t claim = cursor.tile;
  std::uint32_t asked = 0;
  int left = 0;
  const auto next_piece = [&](bool& have) {
    if (left == 0) {
      cursor.tile = claim * claim_tiles;
      left = claim_tiles;
    }
    have = cursor.settle();
    if (!have) return Piece{};
    const Piece piece = lane_piece(cursor, lane);
    if (left == claim_tiles && lane == 0) asked = atomicAdd(arguments.claims, 1U);
    ++cursor.tile;
    if (--left == 0) claim = cursor.step + __shfl_sync(0xffffffffU, asked, 0);
    return piece;
  };

  std::uint64_t target[stages];
  std::uint32_t length[stages];
  bool filled[stages];
#pragma unroll
  for (int s = 0; s < stages; ++s) filled[s] = false;
  std::uint32_t parity = 0;
  bool have = false;
  Piece next = next_piece(have);

  const auto load = [&](int s) {
    filled[s] = have;
    if (!have) return;
    const Piece piece = next;
    // Pieces of a tile are equally long, so a lane's place follows from its number.
    const std::uint32_t at = ring + static_cast<std::uint32_t>(s) * stage_bytes +
                             static_cast<std::uint32_t>(lane) * piece.bytes;
    const std::uint32_t barrier = barriers + static_cast<std::uint32_t>(s) * 8U;
    const std::uint32_t total = __reduce_add_sync(0xffffffffU, piece.bytes);
    target[s] = piece.bytes != 0 ? destination_of(arguments, piece) : 0;
    length[s] = piece.bytes;
    if (lane == 0) barrier_expect(barrier, total);
    __syncwarp();
    if (piece.bytes != 0) {
      bulk_load(at, source_of(arguments, piece), piece.bytes, barrier, load_policy);
    }
    next = next_piece(have);
  };

#pragma unroll
  for (int s = 0; s < kAhead; ++s) load(s);
  while (true) {
    bool any = false;
#pragma unroll
    for (int s = 0; s < stages; ++s) {
      // The tile that last used the stage to be loaded was stored kBehind tiles ago.
      bulk_wait_read<kBehind - 1>();
      __syncwarp();
      load((s + kAhead) % stages);
      if (filled[s]) {
        any = true;
        barrier_wait(barriers + static_cast<std::uint32_t>(s) * 8U, parity);
        if (length[s] != 0) {
          bulk_store(target[s],
                     ring + static_cast<std::uint32_t>(s) * stage_bytes +
                         static_cast<std::uint32_t>(lane) * length[s],
                     length[s], store_policy);
        }
        filled[s] = false;
      }
      bulk_commit();
    }
    parity ^= 1U;
    if (!any) break;
  }
  bulk_wait_all();
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(arguments.claims + 1, 1U) == gridDim.x - 1) {
      arguments.claims[0] = 0;
      arguments.claims[1] = 0;
    }
  }

  // Planes that the copy engine cannot take: a few bytes a token (scales).
  TileCursor narrow = cursor_of(arguments, n, Widths::narrow);
  for (; narrow.settle(); narrow.tile += narrow.step) copy_tile_by_width(narrow, lane);
#else
  (void)arguments;
  (void)stage_bytes;
  (void)claim_tiles;
  (void)loads;
  (void)stores;
  __trap();
#endif
}

using BulkKernel = void (*)(MovePagesArguments, std::uint32_t, int, cuda::CachePolicy,
                            cuda::CachePolicy);

BulkKernel bulk_kernel(std::int32_t stages) {
  switch (stages) {
    case 2:
      return move_pages_bulk<2>;
    default:
      return move_pages_bulk<4>;
  }
}

}  // namespace

std::int64_t move_pages_shared_bytes(const MovePagesLaunch& launch) {
  if (!launch.bulk) return 0;
  const std::int64_t rings = std::int64_t{launch.warps} * launch.stages;
  return (rings * 8 + 127) / 128 * 128 + rings * launch.stage_bytes;
}

cudaError_t prepare_move_pages(const MovePagesLaunch& launch, std::int32_t shared_bytes_max) {
  if (!launch.bulk) return cudaSuccess;
  return raise_shared_limit(reinterpret_cast<const void*>(bulk_kernel(launch.stages)),
                            shared_bytes_max);
}

cudaError_t launch_move_pages(const MovePagesArguments& arguments, const MovePagesLaunch& launch,
                              cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(launch.blocks));
  const dim3 threads(static_cast<unsigned>(launch.warps * kWarp));
  if (launch.bulk) {
    bulk_kernel(
        launch.stages)<<<blocks, threads, static_cast<std::size_t>(move_pages_shared_bytes(launch)),
                         stream>>>(arguments, static_cast<std::uint32_t>(launch.stage_bytes),
                                   launch.claim_tiles, launch.loads, launch.stores);
  } else {
    move_pages_registers<<<blocks, threads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace packstone::kernels
