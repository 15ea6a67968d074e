// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A block's walk over its share of the line of tiles, and where the rows of a tile's tokens are.

#include "kernels/mla_args.hpp"

#include <cstdint>

namespace packstone::kernels::mla {

/// The lengths of one line: a sequence, or with sparse lists one query token of it.
struct Line {
  std::int32_t query;      ///< first query token of the sequence
  std::int32_t node;       ///< first node of the line: 0, or the query token's own
  std::int32_t nodes;      ///< nodes of the line
  std::int32_t prefix;     ///< tokens of the prefix, or entries of the list
  std::int32_t end;        ///< prefix and, behind it, the tail
  std::int32_t tail_from;  ///< what turns a token of the tail into a position of the table, or into
                           ///< a row of the separate tail
  std::int64_t table;      ///< first table entry
  std::int32_t tiles;      ///< of each segment, at least 1
  std::int32_t segments;
};

__device__ inline Line load_line(const MlaArgs& args, std::int32_t index, std::int32_t rows,
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
  line.segments = (line.nodes * p.heads + rows - 1) / rows;
  return line;
}

/// Tiles of a piece of a line; the line's whole length where shares are cut anywhere.
__device__ inline std::int32_t piece_tiles_of(const MlaSchedule& schedule, std::int32_t tiles) {
  if (schedule.splits > 0) return (tiles + schedule.splits - 1) / schedule.splits;
  return schedule.piece_tiles > 0 ? schedule.piece_tiles : tiles;
}

/// The last index i with before[i] <= value, for before[0] <= value < before[count]; the whole warp
/// works on it, 32 probes a step, so that even 2^20 lines take four dependent loads.
__device__ inline std::int32_t find_line(const std::int64_t* before, std::int32_t count,
                                         std::int64_t value) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x & 31U);
  std::int32_t low = 0;
  std::int32_t high = count;  // before[low] <= value < before[high]
  while (high - low > 1) {
    const std::int32_t step = (high - low + 31) / 32;
    const std::int32_t probe = min(low + lane * step, high);
    const std::uint32_t below = __ballot_sync(0xFFFFFFFFU, before[probe] <= value);
    // Lane 0 probes `low`, so at least its bit is set; the set bits are the low ones.
    const std::int32_t last = 31 - __clz(static_cast<int>(below));
    const std::int32_t next_low = min(low + last * step, high);
    high = min(low + (last + 1) * step, high);
    low = next_low;
  }
  return low;
}

/// Position in the line of tiles.
struct Cursor {
  Line line;
  std::int32_t index;      ///< of the line
  std::int32_t segment;    ///< within the line
  std::int32_t tile;       ///< within the segment
  std::int64_t remaining;  ///< tiles of the share, this one included

  /// Steps to the next tile; true when it is the first of another segment.
  __device__ bool advance(const MlaArgs& args, std::int32_t rows, std::int32_t tile_tokens) {
    --remaining;
    if (++tile < line.tiles) return false;
    tile = 0;
    if (++segment < line.segments || remaining <= 0) return true;
    segment = 0;
    do {
      line = load_line(args, ++index, rows, tile_tokens);
    } while (line.segments == 0);  // remaining > 0, so a line with work follows
    return true;
  }
};

/// What a tile costs with so many rows, in eighths: without rows, a group of 16 only copies.
__device__ inline std::int32_t tile_cost(std::int32_t rows) {
  constexpr std::uint32_t kCosts = 0x8877;  // a digit each for one to four groups
  const std::int32_t groups = (rows + 15) / 16;
  return static_cast<std::int32_t>(kCosts >> (4 * (groups - 1)) & 15U);
}
/// Of a tile of the line's last segment; the others have all rows.
__device__ inline std::int32_t last_cost(const MlaArgs& args, const Line& line) {
  return tile_cost(line.nodes * args.params.heads - (line.segments - 1) * args.rows);
}
__device__ inline std::int64_t line_cost(const MlaArgs& args, const Line& line) {
  if (line.segments == 0) return 0;
  return static_cast<std::int64_t>(line.tiles) *
         ((line.segments - 1) * tile_cost(args.rows) + last_cost(args, line));
}

/// A token's row before its table entry has arrived: kept in two registers over one step of the
/// pipeline, so that nothing waits for the load.
struct PendingRow {
  enum Kind : std::int32_t { none, page, slot, tail };
  std::int32_t kind_and_offset;  ///< 4 * offset in the page + kind
  std::int32_t number;           ///< page, slot or row of the tail, by kind
};

/// Page ids fit 31 bits, so the low word of a 64-bit entry is the whole of it.
__device__ inline const std::int32_t* table_entry(const TokenTable& table, std::int64_t index) {
  return static_cast<const std::int32_t*>(table.entries) +
         (table.type == IndexType::int64 ? 2 * index : index);
}

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

/// Bits of the tile's tokens that a node sees: bit i is token `first` + i of the line.
__device__ inline std::uint32_t visible_tokens(const MlaArgs& args, const Line& line,
                                               std::int32_t node, std::int32_t first) {
  const std::int32_t ahead = line.end - first;  // tokens from `first` to the end
  const std::uint32_t limit = ahead >= 32 ? 0xFFFFFFFFU : (ahead <= 0 ? 0U : (1U << ahead) - 1U);
  const std::int32_t start =
      first - line.prefix;  // in nodes; negative while prefix tokens are left
  if (start <= -32 || args.params.mask.kind == MaskKind::full) return limit;
  if (args.params.mask.kind == MaskKind::causal) {
    const std::int32_t seen = node - start + 1;
    return limit & (seen >= 32 ? 0xFFFFFFFFU : (seen <= 0 ? 0U : (1U << seen) - 1U));
  }
  const bool made = args.params.mask.kind == MaskKind::parents;
  const std::uint64_t* words = made ? args.schedule.words : args.params.mask.words;
  const std::int64_t stride = made ? args.schedule.words_stride : args.params.mask.words_stride;
  const std::uint64_t* row = words + static_cast<std::int64_t>(line.query + node) * stride;
  if (start < 0) {
    const std::uint64_t low = line.end > line.prefix ? row[0] : 0;
    const auto prefix_bits = (1U << static_cast<std::uint32_t>(-start)) - 1U;
    return limit &
           (prefix_bits | static_cast<std::uint32_t>(low << static_cast<std::uint32_t>(-start)));
  }
  if (first >= line.end) return 0;
  const std::int32_t word = start >> 6;
  const auto shift = static_cast<std::uint32_t>(start & 63);
  std::uint64_t bits = row[word] >> shift;
  if (shift > 32 && ((word + 1) << 6) < line.end - line.prefix)
    bits |= row[word + 1] << (64U - shift);
  return limit & static_cast<std::uint32_t>(bits);
}

}  // namespace packstone::kernels::mla
