// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the GQA kernels are launched with: shapes as constexpr policy values, the schedule in
/// memory, the arguments.
///
/// ## Schedule
/// A *segment* is a block of rows of one sequence and one group of kv heads, over all of the
/// sequence's tokens; its work is counted in *tiles* of tokens. Segments of all sequences laid end
/// to end are one line of tiles, which is cut into equal shares, one a *worker*, so that all
/// workers end together whatever the lengths ("Stream-K", Osama et al., 2023). A worker keeps its
/// copy pipeline running from one segment into the next. A segment that falls to several workers
/// leaves one partial result at each and is merged by `combine`. A worker can hold at most two
/// partials, so the scratch depends on the number of workers alone. With fixed pieces
/// (VerifyPlanOptions::splits, batch_invariant) shares are rounded to piece boundaries, and each
/// piece of a cut segment leaves a partial.

#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone::kernels {

/// How rows map to warps.
enum class GqaShape : std::uint8_t {
  few_rows,   ///< up to 16 rows a segment: every warp is on its own, with its own stretch of tokens
              ///< or kv head
  many_rows,  ///< 64 rows a segment: four warps of 16 rows share each tile
};

/// A kernel's shape. Everything follows from these three.
struct GqaPolicy {
  std::int32_t head_dim;
  KvType type;
  GqaShape shape;

  static constexpr std::int32_t kWarps = 4;
  [[nodiscard]] constexpr std::int32_t threads() const { return 32 * kWarps; }
  [[nodiscard]] constexpr bool few() const { return shape == GqaShape::few_rows; }
  /// Rows of a segment.
  [[nodiscard]] constexpr std::int32_t rows() const { return few() ? 16 : 16 * kWarps; }
  /// Bytes of one row of one head.
  [[nodiscard]] constexpr std::int32_t row_bytes() const {
    return head_dim * (type == KvType::e4m3 ? 1 : 2);
  }
  /// Tokens of a tile. 32 is as many as a warp has lanes to hold addresses; 16 is one step of the
  /// second product, taken where registers (head_dim 256) or the number of stages (256-byte rows,
  /// each warp with its own) ask for it.
  [[nodiscard]] constexpr std::int32_t tile_tokens() const {
    if (head_dim == 256) return 16;
    return few() && row_bytes() >= 256 ? 16 : 32;
  }
  /// Bytes of a ring unit: K or V of a tile.
  [[nodiscard]] constexpr std::int32_t unit_bytes() const { return tile_tokens() * row_bytes(); }
  /// Two blocks share a multiprocessor, so that each scheduler has two warps to choose from. But 8
  /// KB units of single warps (head_dim 256 in 16 bits) leave room for three units a warp only in a
  /// block that has it to itself, and e4m3 rows of 64 values, whose widening is the most work a
  /// byte, take three blocks, for which registers suffice.
  [[nodiscard]] constexpr std::int32_t blocks_per_multiprocessor() const {
    if (few() && unit_bytes() > 4096) return 1;
    return few() && row_bytes() == 64 ? 3 : 2;
  }
  /// Shared memory behind the rings: two cursors a warp, of at most 64 bytes each.
  [[nodiscard]] constexpr std::int32_t cursor_bytes() const { return 128 * kWarps; }
  /// Units of one ring, at most 8: what fits into the 100 KiB of a multiprocessor of compute
  /// capability 12.0, of which each block has 1 KiB reserved.
  [[nodiscard]] constexpr std::int32_t units() const {
    const std::int32_t block_bytes = 102'400 / blocks_per_multiprocessor() - 1'024 - cursor_bytes();
    const std::int32_t fits = block_bytes / (few() ? kWarps : 1) / unit_bytes();
    return fits < 8 ? fits : 8;
  }
  /// Bytes of all rings of a block.
  [[nodiscard]] constexpr std::int32_t ring_bytes() const {
    return units() * unit_bytes() * (few() ? kWarps : 1);
  }
  [[nodiscard]] constexpr std::int32_t shared_bytes() const {
    return ring_bytes() + cursor_bytes();
  }
};

/// Per-block limit of compute capability 12.0, which is also within those of 8.0 (166,912), 8.9
/// and 9.0 (232,448).
inline constexpr std::int32_t kSharedBytesMax = 101'376;

constexpr bool gqa_fits(const GqaPolicy& policy) {
  return policy.units() >= 3 && policy.shared_bytes() <= kSharedBytesMax;
}
constexpr bool gqa_fits(std::int32_t head_dim) {
  return gqa_fits({head_dim, KvType::bf16, GqaShape::few_rows}) &&
         gqa_fits({head_dim, KvType::bf16, GqaShape::many_rows}) &&
         gqa_fits({head_dim, KvType::e4m3, GqaShape::few_rows}) &&
         gqa_fits({head_dim, KvType::e4m3, GqaShape::many_rows});
}
static_assert(gqa_fits(64) && gqa_fits(128) && gqa_fits(256));

/// A segment that has partials to merge.
struct GqaCut {
  std::int32_t line;
  std::int32_t segment;
  std::int32_t count;  ///< partials; below 2: none
};

/// The schedule, written by the schedule kernel and read by the others.
struct GqaSchedule {
  std::int64_t*
      tiles_before;  ///< [lines + 1] tiles of the segments of earlier lines; the last is the total
  std::int64_t* parts_before;  ///< [lines + 1] partials of earlier lines; only with fixed pieces
  std::int64_t* cuts_before;  ///< [lines + 1] cut segments of earlier lines; only with fixed pieces
  GqaCut* cuts;               ///< [workers] what begins in a worker's share and ends in another's
  std::int32_t* line_sequence;  ///< [lines] with sparse lists: sequence of a query token, -1 where
                                ///< it has none
  std::uint64_t* words;         ///< [tokens_max, words_stride] ancestor words made of parents
  std::int32_t words_stride;    ///< words
  std::int32_t lines;  ///< sequences, or query tokens with sparse lists (each has its own tokens)
  std::int32_t workers;
  std::int32_t
      worker_tiles_min;  ///< a worker's least share, below which merging costs more than it saves
  std::int32_t splits;   ///< > 0: pieces of a segment
  std::int32_t piece_tiles;  ///< > 0: tiles of a piece; both 0: shares cut anywhere
};

/// Arguments of every GQA kernel.
struct GqaArgs {
  VerifyParams params;
  GqaSchedule schedule;
  std::int32_t group;       ///< heads a kv head
  std::int32_t page_shift;  ///< page_size is 2 to this; -1: no power of two
  std::int32_t head_block;  ///< kv heads that neighbouring warps of a block take at the same tokens
                            ///< (few rows): 4, 2, 1
  float softmax_scale;  ///< of scores within the softmax: score_scale, or 1 where scores are scaled
                        ///< before
  bool scale_before;    ///< with a logit cap, or a scale that is not positive and would turn maxima
                        ///< round
  float score_scale;    ///< what a dot product is multiplied with: to base 2, or to the argument of
                        ///< tanh
  float cap_scale;      ///< logit_cap in base 2
  float* partial_out;   ///< [parts, rows, head_dim], normalised
  float* partial_lse;   ///< [parts, rows], base 2
};

/// Whether pieces are of a fixed length, so that bits do not depend on the other lines.
constexpr bool gqa_has_fixed_pieces(const GqaSchedule& schedule) {
  return schedule.splits > 0 || schedule.piece_tiles > 0;
}

/// Parts that the scratch has room for.
constexpr std::int64_t gqa_parts_max(const GqaSchedule& schedule, std::int64_t segments_max,
                                     std::int64_t tiles_max) {
  if (schedule.splits > 0) return segments_max * schedule.splits;
  if (schedule.piece_tiles > 0) {
    return segments_max * ((tiles_max + schedule.piece_tiles - 1) / schedule.piece_tiles);
  }
  return std::int64_t{2} * schedule.workers;
}

}  // namespace packstone::kernels
