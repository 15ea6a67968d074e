// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A worker's walk over its share of the line of tiles, and where the rows of a tile's tokens are.

#include "kernels/attention_line.cuh"
#include "kernels/gqa_args.hpp"

#include <cstdint>

namespace packstone::kernels::gqa {

/// The lengths of one line: a sequence, or with sparse lists one query token of it.
struct Line {
  std::int32_t prefix;     ///< tokens of the prefix, or entries of the list
  std::int32_t end;        ///< prefix and, behind it, the tail
  std::int32_t tail_from;  ///< what turns a token of the tail into a position of the table, or a
                           ///< row of the tail
  std::int32_t query;      ///< first query token of the sequence
  std::int64_t table;      ///< first table entry
  std::int32_t node;       ///< first node of the line: 0, or the query token's own
  std::int32_t nodes;      ///< nodes of the line
  std::int32_t tiles;      ///< of each segment, at least 1
  std::int32_t segments;
};

__device__ inline Line load_line(const GqaArgs& args, std::int32_t index, std::int32_t rows,
                                 std::int32_t tile_tokens) {
  const VerifyParams& p = args.params;
  const bool sparse = p.sparse.entries != nullptr;
  Line line{};
  const std::int32_t sequence = sparse ? args.schedule.line_sequence[index] : index;
  if (sequence < 0) {
    line.tiles = 1;
    return line;
  }
  line.query = p.q_indptr[sequence];
  const std::int32_t q_len = p.q_indptr[sequence + 1] - line.query;
  const std::int32_t length = p.prefix_lens[sequence];
  line.node = sparse ? index - line.query : 0;
  line.nodes = sparse ? 1 : q_len;
  line.prefix = sparse ? p.sparse.topk : length;
  line.end = line.prefix + (p.tail_place == TailPlace::none ? 0 : q_len);
  line.tail_from = (p.tail_place == TailPlace::separate ? line.query : length) - line.prefix;
  line.table = p.table.indptr != nullptr ? static_cast<std::int64_t>(p.table.indptr[sequence])
                                         : static_cast<std::int64_t>(sequence) * p.table.row_stride;
  line.tiles = max(1, (line.end + tile_tokens - 1) / tile_tokens);
  line.segments = (line.nodes * args.group + rows - 1) / rows * (p.kv_heads / args.head_block);
  return line;
}

/// A segment in the line of tiles; the tile within it is the worker's.
struct Cursor {
  Line line;
  std::int32_t index;      ///< of the line
  std::int32_t segment;    ///< within the line
  std::int32_t kv_head;    ///< first of the segment's kv heads
  std::int32_t row_begin;  ///< first row of the segment

  __device__ void name_rows(const GqaArgs& args, std::int32_t rows) {
    const std::int32_t blocks = args.params.kv_heads / args.head_block;
    kv_head = segment % blocks * args.head_block;
    row_begin = segment / blocks * rows;
  }

  /// Steps to the next segment; there must be one.
  __device__ void next_segment(const GqaArgs& args, std::int32_t rows, std::int32_t tile_tokens) {
    if (++segment >= line.segments) {
      segment = 0;
      do {
        line = load_line(args, ++index, rows, tile_tokens);
      } while (line.segments == 0);
    }
    name_rows(args, rows);
  }
};

/// The segment of tile `at` of the line of tiles, and the tile within it; the whole warp works on
/// it.
__device__ inline Cursor place_cursor(const GqaArgs& args, std::int64_t at, std::int32_t rows,
                                      std::int32_t tile_tokens, std::int32_t* tile) {
  Cursor cursor;
  cursor.index = find_line(args.schedule.tiles_before, args.schedule.lines, at);
  cursor.line = load_line(args, cursor.index, rows, tile_tokens);
  const std::int64_t local = at - args.schedule.tiles_before[cursor.index];
  cursor.segment = static_cast<std::int32_t>(local / cursor.line.tiles);
  *tile = static_cast<std::int32_t>(local % cursor.line.tiles);
  cursor.name_rows(args, rows);
  return cursor;
}

/// Rounds a cut of the line of tiles up to the next start of a piece.
__device__ inline std::int64_t align_to_piece(const GqaArgs& args, std::int64_t at,
                                              std::int64_t total, std::int32_t rows,
                                              std::int32_t tile_tokens) {
  if (at >= total || !gqa_has_fixed_pieces(args.schedule)) return min(at, total);
  const std::int32_t index = find_line(args.schedule.tiles_before, args.schedule.lines, at);
  const Line line = load_line(args, index, rows, tile_tokens);
  const std::int64_t local = at - args.schedule.tiles_before[index];
  const auto tile = static_cast<std::int32_t>(local % line.tiles);
  const std::int32_t piece = piece_tiles_of(args.schedule, line.tiles);
  const std::int32_t aligned = min((tile + piece - 1) / piece * piece, line.tiles);
  return at + (aligned - tile);
}

/// Tiles of a worker's share.
__device__ inline std::int64_t share_of(const GqaSchedule& schedule, std::int64_t total) {
  const std::int64_t share = (total + schedule.workers - 1) / schedule.workers;
  return max(share, static_cast<std::int64_t>(schedule.worker_tiles_min));
}

/// A token's row before its table entry has arrived: kept in registers over one step of the
/// pipeline, so that nothing waits for the load. Hence 32 bits and nothing computed from the entry.
struct PendingRow {
  enum class Kind : std::int32_t { none, page, slot, tail } kind;
  std::int32_t offset;  ///< in the page
  std::int32_t number;  ///< page, slot or row of the tail, by kind
};

__device__ inline PendingRow find_row(const GqaArgs& args, const Line& line, std::int32_t token) {
  const VerifyParams& p = args.params;
  PendingRow row{PendingRow::Kind::none, 0, 0};
  if (token >= line.end) return row;
  std::int32_t position = token;
  if (token >= line.prefix) {
    position += line.tail_from;
    if (p.tail_place == TailPlace::separate) return {PendingRow::Kind::tail, 0, position};
  } else if (p.sparse.entries != nullptr) {
    const std::int64_t list = static_cast<std::int64_t>(line.query + line.node) * p.sparse.stride;
    position = p.sparse.entries[list + token];
    if (position < 0) return row;
    if (p.sparse.unit == SparseUnit::slot) return {PendingRow::Kind::slot, 0, position};
  }
  const auto at = static_cast<std::uint32_t>(position);
  const auto size = static_cast<std::uint32_t>(p.table.page_size);
  const std::uint32_t column =
      args.page_shift >= 0 ? at >> static_cast<std::uint32_t>(args.page_shift) : at / size;
  const std::int32_t* entry = table_entry(p.table, line.table + column);
  row.number = *entry;
  row.offset = static_cast<std::int32_t>(at - column * size);
  row.kind = PendingRow::Kind::page;
  // Entries some tiles on are brought to the L2 cache now: from memory they would take longer than
  // a step.
  constexpr std::uint32_t kEntriesAhead = 64;
  if (p.sparse.entries == nullptr && at + kEntriesAhead * static_cast<std::uint64_t>(size) <
                                         static_cast<std::uint32_t>(line.prefix)) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(
        table_entry(p.table, line.table + column + kEntriesAhead)));
  }
  return row;
}

/// Addresses of a token's K and V of one kv head; 0: no token.
struct RowAddress {
  std::uint64_t k;
  std::uint64_t v;
};

__device__ inline RowAddress address_of(const GqaArgs& args, const PendingRow& row,
                                        std::int32_t kv_head) {
  if (row.kind == PendingRow::Kind::none) return {0, 0};
  const KvRows& rows = row.kind == PendingRow::Kind::tail ? args.params.tail : args.params.pool;
  const std::int64_t number =
      row.kind == PendingRow::Kind::page
          ? static_cast<std::int64_t>(row.number) * args.params.table.page_size + row.offset
          : static_cast<std::int64_t>(row.number);
  return {
      reinterpret_cast<std::uint64_t>(rows.k) +
          static_cast<std::uint64_t>(number * rows.k_stride_row + kv_head * rows.k_stride_head),
      reinterpret_cast<std::uint64_t>(rows.v) +
          static_cast<std::uint64_t>(number * rows.v_stride_row + kv_head * rows.v_stride_head)};
}

}  // namespace packstone::kernels::gqa
