// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A block's walk over its share of the line of tiles, and where the rows of a tile's tokens are.

#include "kernels/attention_line.cuh"
#include "kernels/mla_args.hpp"

#include <cstdint>

namespace packstone::kernels::mla {

using Line = MlaLine;

/// Whether tiles of so many tokens are those of MlaRole::rest.
__device__ inline bool is_rest(const MlaArgs& args, std::int32_t tile_tokens) {
  return args.rest_apart && tile_tokens == MlaPolicy::kFewTile;
}

/// The rows of the line's last segment.
__device__ inline std::int32_t last_rows(const MlaArgs& args, const Line& line) {
  return min(line.nodes * args.params.heads - (line.segments - 1) * args.rows, args.rows);
}

__device__ inline Line load_line(const MlaArgs& args, std::int32_t index,
                                 std::int32_t tile_tokens) {
  const VerifyParams& p = args.params;
  const bool sparse = p.sparse.entries != nullptr;
  const std::int32_t sequence = sparse ? args.schedule.line_sequence[index] : index;
  Line line{};
  line.tiles = 1;
  if (sequence < 0) return line;
  line.query = p.q_indptr[sequence];
  const std::int32_t q_len = p.q_indptr[sequence + 1] - line.query;
  const std::int32_t length = p.prefix_lens[sequence];
  line.node = sparse ? index - line.query : 0;
  line.nodes = sparse ? 1 : q_len;
  line.prefix = sparse ? p.sparse.topk : length;
  line.end = line.prefix + (p.tail_place == TailPlace::none ? 0 : q_len);
  line.tail_from = (p.tail_place == TailPlace::separate ? line.query : length) - line.prefix;
  line.table = p.table.indptr != nullptr ? static_cast<std::int64_t>(p.table.indptr[sequence])
                                         : sequence * p.table.row_stride;
  line.tiles = max(1, (line.end + tile_tokens - 1) / tile_tokens);
  line.segments = (line.nodes * p.heads + args.rows - 1) / args.rows;
  if (args.rest_apart && line.segments > 0) {
    const bool has_rest = last_rows(args, line) <= MlaPolicy::kFewRows;
    if (tile_tokens != MlaPolicy::kFewTile) {
      line.segments -= has_rest ? 1 : 0;
    } else if (!has_rest) {
      line.segments = 0;
    }
  }
  return line;
}

/// The first of the line's segments with the role of such tiles.
__device__ inline std::int32_t first_segment(const MlaArgs& args, const Line& line,
                                             std::int32_t tile_tokens) {
  return is_rest(args, tile_tokens) ? max(0, line.segments - 1) : 0;
}

/// Position in the line of tiles.
struct Cursor {
  Line line;
  std::int32_t index;      ///< of the line
  std::int32_t segment;    ///< within the line
  std::int32_t tile;       ///< within the segment
  std::int32_t previous;   ///< index of the line before, once there was one; else -1
  std::int64_t remaining;  ///< tiles of the share, this one included

  /// Steps to the next tile; true when it is the first of another segment.
  __device__ bool advance(const MlaArgs& args, std::int32_t tile_tokens) {
    --remaining;
    if (++tile < line.tiles) return false;
    tile = 0;
    if (++segment < line.segments || remaining <= 0) return true;
    previous = index;
    // remaining > 0, so there is one
    index = args.schedule.next_line[(is_rest(args, tile_tokens) ? args.schedule.lines : 0) + index];
    line = load_line(args, index, tile_tokens);
    segment = first_segment(args, line, tile_tokens);
    return true;
  }
};

/// Costs are in units of a 64th of what a full tile of 32 tokens takes a block on an H200, 32 ns.
///
/// What a tile costs with so many rows: without rows, a group of 16 only copies.
__device__ inline std::int32_t tile_cost(std::int32_t tile_tokens, std::int32_t rows) {
  if (tile_tokens == MlaPolicy::kFewTile) return 14;
  return rows <= 32 ? 56 : 64;
}
/// What a segment costs besides its tiles: to start it within a share where another one has ended,
/// and for the masks of its last tiles.
inline constexpr std::int32_t kStartCost = 288;
inline constexpr std::int32_t kEndCost = 160;
inline constexpr std::int32_t kSegmentCost = kStartCost + kEndCost;

__device__ inline std::int64_t line_cost(const MlaArgs& args, const Line& line,
                                         std::int32_t tile_tokens) {
  const std::int32_t segments = line.segments - first_segment(args, line, tile_tokens);
  if (segments == 0) return 0;
  return static_cast<std::int64_t>(line.tiles) *
             ((segments - 1) * tile_cost(tile_tokens, args.rows) +
              tile_cost(tile_tokens, last_rows(args, line))) +
         static_cast<std::int64_t>(segments) * kSegmentCost;
}

/// A token's row before its table entry has arrived: kept in two registers over one step of the
/// pipeline, so that nothing waits for the load.
struct PendingRow {
  enum Kind : std::int32_t { none, page, slot, tail };
  std::int32_t kind_and_offset;  ///< 4 * offset in the page + kind
  std::int32_t number;           ///< page, slot or row of the tail, by kind
};

__device__ inline PendingRow find_row(const MlaArgs& args, const Line& line, std::int32_t token) {
  const VerifyParams& p = args.params;
  if (token >= line.end) return {PendingRow::none, 0};
  std::int32_t position = token;
  if (token >= line.prefix) {
    position += line.tail_from;
    if (p.tail_place == TailPlace::separate) return {PendingRow::tail, position};
  } else if (p.sparse.entries != nullptr) {
    const std::int64_t list = static_cast<std::int64_t>(line.query + line.node) * p.sparse.stride;
    position = p.sparse.entries[list + token];
    if (position < 0) return {PendingRow::none, 0};
    if (p.sparse.unit == SparseUnit::slot) return {PendingRow::slot, position};
  }
  const auto at = static_cast<std::uint32_t>(position);
  const auto size = static_cast<std::uint32_t>(p.table.page_size);
  const std::uint32_t column =
      args.page_shift >= 0 ? at >> static_cast<std::uint32_t>(args.page_shift) : at / size;
  const std::int32_t* entry = table_entry(p.table, line.table + column);
  // Entries some tiles on are brought to the L2 cache now: from memory they would take longer than
  // a step.
  constexpr std::uint32_t kEntriesAhead = 128;
  if (p.sparse.entries == nullptr &&
      at + std::uint64_t{kEntriesAhead} * size < static_cast<std::uint32_t>(line.prefix)) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(
        table_entry(p.table, line.table + column + kEntriesAhead)));
  }
  return {static_cast<std::int32_t>(4 * (at - column * size)) + PendingRow::page, *entry};
}

}  // namespace packstone::kernels::mla
