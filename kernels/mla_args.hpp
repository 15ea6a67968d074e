// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the MLA kernels are launched with: their shapes as constexpr policy values, and arguments.
///
/// ## Schedule
/// A *segment* is a block of rows (node, head) of one sequence over all of the sequence's tokens,
/// counted in *tiles*. Segments of all sequences laid end to end are one line of tiles, which is
/// cut into shares of equal cost, one a block ("Stream-K", Osama et al., 2023), so that blocks end
/// together whatever the lengths. A tile costs less where a segment has few rows, and a segment
/// costs something besides its tiles: its end and the next one's start within a share. A segment
/// that falls to several blocks leaves a partial result at each and is merged afterwards. A block
/// can hold at most two partials, so that the scratch depends on the number of blocks alone. With
/// fixed pieces (VerifyPlanOptions::splits, batch_invariant) shares are rounded to piece
/// boundaries, and each piece of a cut segment leaves a partial.

#include <packstone/kv_layout.hpp>
#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone::kernels {

enum class MlaShape : std::uint8_t {
  few_rows,   ///< up to 16 rows a segment, bound by memory: decode and short chains
  many_rows,  ///< up to 64 rows a segment, bound by arithmetic: trees and many heads
};

/// A kernel's shape. Everything follows from these two.
struct MlaPolicy {
  KvType type;
  MlaShape shape;

  static constexpr std::int32_t kFewRows = 16;
  static constexpr std::int32_t kFewTile = 16;
  static constexpr std::int32_t kThreads = 256;  ///< of a block: eight warps with all registers
  [[nodiscard]] static constexpr std::int32_t threads() { return kThreads; }

  [[nodiscard]] constexpr bool few() const { return shape == MlaShape::few_rows; }
  [[nodiscard]] constexpr bool eight_bit() const {
    return type == KvType::e4m3 || type == KvType::e4m3_tile;
  }
  /// Tokens of a tile: a stage of the ring.
  [[nodiscard]] constexpr std::int32_t tile() const { return few() ? kFewTile : 32; }
  /// Rows of a segment.
  [[nodiscard]] constexpr std::int32_t rows() const { return few() ? kFewRows : 64; }
  /// Distance of two rows in shared memory: an odd multiple of 16 bytes, so that eight rows lie in
  /// different banks.
  [[nodiscard]] constexpr std::int32_t pitch() const {
    const auto bytes = static_cast<std::int32_t>(mla_row_bytes(type));
    return (bytes / 16) % 2 == 1 ? bytes : bytes + 16;
  }
  [[nodiscard]] constexpr std::int32_t stage_bytes() const { return tile() * pitch(); }
  /// Tiles in the ring: what 101,376 bytes leave room for, at most 8.
  [[nodiscard]] constexpr std::int32_t stages() const {
    if (few()) return eight_bit() ? 8 : 5;
    return type == KvType::e4m3 ? 4 : 2;
  }
  [[nodiscard]] constexpr std::int32_t ring_bytes() const { return stages() * stage_bytes(); }
  /// Partial scores in exchange between the warps; none where they lie in the ring.
  [[nodiscard]] constexpr std::int32_t exchange_bytes() const {
    if (few() && !eight_bit()) return 0;
    return kThreads / 32 * 64 * tile();
  }
  /// Barriers, cursors, masks, and places of rows to come.
  [[nodiscard]] static constexpr std::int32_t small_bytes() { return 7488; }
  [[nodiscard]] constexpr std::int32_t shared_bytes() const {
    const std::int32_t own = ring_bytes() + exchange_bytes() + small_bytes();
    if (few()) return own;
    // Some of its blocks do the work of few rows.
    const std::int32_t other = MlaPolicy{type, MlaShape::few_rows}.shared_bytes();
    return own > other ? own : other;
  }
};

/// Per-block limit of compute capability 12.0, which is also within those of 8.0 (166,912), 8.9 and
/// 9.0 (232,448).
inline constexpr std::int32_t kMlaSharedBytesMax = 101'376;
static_assert(MlaPolicy{KvType::bf16, MlaShape::few_rows}.shared_bytes() <= kMlaSharedBytesMax);
static_assert(MlaPolicy{KvType::e4m3_tile, MlaShape::few_rows}.shared_bytes() <=
              kMlaSharedBytesMax);
static_assert(MlaPolicy{KvType::e4m3, MlaShape::many_rows}.shared_bytes() <= kMlaSharedBytesMax);
static_assert(MlaPolicy{KvType::bf16, MlaShape::many_rows}.shared_bytes() <= kMlaSharedBytesMax);
static_assert(MlaPolicy{KvType::e4m3_tile, MlaShape::many_rows}.shared_bytes() <=
              kMlaSharedBytesMax);

/// Whose tiles a block has. Last segments of up to 16 rows, whole sequences of a mixed batch among
/// them, would cost a block for many rows nearly as much as 64 rows: where `MlaArgs::rest_apart`,
/// they make up a line of tiles of their own, with the shape and tiles of few rows, and blocks in
/// proportion to its cost.
enum class MlaRole : std::int32_t { full, rest };

/// A segment that several blocks share: partial i of its `count` is at first + i * step, but
/// partial 0 at `head`.
struct MlaCut {
  std::int32_t token;  ///< first query token of the line
  std::int32_t row;    ///< of the line: the segment's first
  std::int32_t rows;   ///< of the line
  std::int32_t count;  ///< below 2: nothing to merge
  std::int32_t head;
  std::int32_t first;
  std::int32_t step;
  std::int32_t unused;
};

/// The lengths of one line: a sequence, or with sparse lists one query token of it.
struct MlaLine {
  std::int32_t query;      ///< first query token of the sequence
  std::int32_t node;       ///< first node of the line: 0, or the query token's own
  std::int32_t nodes;      ///< nodes of the line
  std::int32_t prefix;     ///< tokens of the prefix, or entries of the list
  std::int32_t end;        ///< prefix and, behind it, the tail
  std::int32_t tail_from;  ///< what turns a token of the tail into a position of the table, or into
                           ///< a row of the separate tail
  std::int64_t table;      ///< first table entry
  std::int32_t tiles;      ///< of each segment, at least 1
  std::int32_t segments;   ///< end of those with the role that the line was loaded for
};

/// A block's share of its line of tiles.
struct MlaStart {
  std::int64_t before;   ///< tiles of all shares before
  std::int64_t end;      ///< tiles of all shares up to this one; `before` or less: no work
  MlaLine lengths;       ///< of the line, so that the block need not look them up
  std::int32_t line;     ///< any when there are no tiles left
  std::int32_t segment;  ///< of the line
  std::int32_t tile;     ///< of the segment
  MlaRole role;
};

/// The schedule, written by the schedule kernel and read by the others.
struct MlaSchedule {
  std::int64_t* tiles_before;   ///< [2, lines] tiles of earlier lines by role, where lines are many
  std::int64_t* cost_before;    ///< [2, lines] what those cost
  std::int32_t* next_line;      ///< [2, lines] the next line with tiles of the role
  MlaStart* starts;             ///< [workers]
  std::int64_t* parts_before;   ///< [lines + 1] partials of earlier lines; only with fixed pieces
  std::int32_t* line_sequence;  ///< [lines] with sparse lists: sequence of a query token, or -1
  MlaCut* cuts;                 ///< [workers] cut segments, without fixed pieces
  std::int32_t* cut_count;      ///< [1]
  std::uint64_t* words;         ///< [tokens_max, words_stride] ancestor words made of parents
  std::int32_t words_stride;    ///< words
  std::int32_t lines;    ///< sequences, or query tokens with sparse lists (each has its own tokens)
  std::int32_t workers;  ///< blocks
  std::int32_t worker_tiles_min;  ///< a block's least share, in tiles of full cost
  std::int32_t splits;            ///< > 0: pieces of a segment
  std::int32_t piece_tiles;       ///< > 0: tiles of a piece; both 0: shares cut anywhere
};

/// Whether pieces are of a fixed length, so that bits do not depend on the other lines.
constexpr bool mla_has_fixed_pieces(const MlaSchedule& schedule) {
  return schedule.splits > 0 || schedule.piece_tiles > 0;
}

/// Arguments of every MLA kernel.
struct MlaArgs {
  VerifyParams params;
  MlaSchedule schedule;
  std::int32_t tile;        ///< tokens: MlaPolicy::tile()
  std::int32_t rows;        ///< of a segment, at most MlaPolicy::rows()
  std::int32_t page_shift;  ///< page_size is 2 to this; -1: no power of two
  bool rest_apart;          ///< see MlaRole
  bool rope_apart;          ///< some rope part is not in the row of its latent part
  /// Of dot products: to base 2 or, with a cap, to the argument of tanh.
  float score_scale;
  /// The same where scores need nothing else and it is a positive normal number, so that the
  /// softmax can take it into its exponents; else 1, and scores are finished first.
  float exponent_scale;
  bool finish_scores;
  float* partial_out;  ///< [parts, rows, 512], normalised
  float* partial_lse;  ///< [parts, rows], base 2
};

}  // namespace packstone::kernels
