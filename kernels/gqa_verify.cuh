// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The GQA attention kernel. Rows (node, head of a kv head) stand in the M dimension of mma.sync
/// m16n8k16, 16 a warp. Q and the output are in registers for a whole segment; K and V tiles pass
/// through a ring in shared memory, filled row by row with 16-byte asynchronous copies from their
/// slots, so page size and placement do not change the code. The softmax is the online one in base
/// 2, with rescaling only when a maximum rises (as in FlashAttention-2, Dao, 2023).
///
/// e4m3 rows are multiplied as fp16. The order of the head dimension within a step of the first
/// product is free as long as Q follows it, so a lane reads 16 adjacent bytes of a K row for four
/// steps at once; V goes through a transposed ldmatrix of byte pairs, whose even and odd bytes are
/// two tiles of the output with interleaved columns.

#include "kernels/gqa_cursor.cuh"
#include "kernels/gqa_output.cuh"
#include "kernels/gqa_primitives.cuh"

#include <cstdint>
#include <type_traits>

namespace packstone::kernels::gqa {

template <int head_dim, KvType type, GqaShape shape>
class Worker {
 public:
  __device__ Worker(const GqaArgs& args, std::uint8_t* memory)
      : args_(args),
        lane_(threadIdx.x & 31U),
        warp_(threadIdx.x >> 5U),
        now_(reinterpret_cast<Cursor*>(memory + policy.ring_bytes())[2 * (threadIdx.x >> 5U)]),
        ahead_(
            reinterpret_cast<Cursor*>(memory + policy.ring_bytes())[2 * (threadIdx.x >> 5U) + 1]) {
    const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
    ring_ = shared + (kFew ? warp_ * kUnits * kUnitBytes : 0U);
  }

  __device__ void run() {
    const GqaSchedule& schedule = args_.schedule;
    const std::int64_t total = schedule.tiles_before[schedule.lines];
    const std::int64_t share = share_of(schedule, total);
    const std::int64_t begin = align_to_piece(args_, id() * share, total, kRows, kTile);
    const std::int64_t end = align_to_piece(args_, (id() + 1) * share, total, kRows, kTile);
    if (begin >= end) return;
    std::int32_t tile = 0;
    const Cursor start = place_cursor(args_, begin, kRows, kTile, &tile);
    if (lane_ == 0) now_ = ahead_ = start;
    __syncwarp();
    tile_ = ahead_tile_ = tile;
    left_ = ahead_left_ = static_cast<std::int32_t>(end - begin);
    find_rows();
    fill_ring<0>();
    start_segment();
    start_piece();
    while (true) {
      step();
      ++tile_;
      --left_;
      if (tile_ == piece_end_ || left_ == 0) {
        finish_piece();
        if (left_ == 0) break;
        if (tile_ == now_.line.tiles) {
          tile_ = 0;
          next_segment(now_);
          start_segment();
        }
        start_piece();
      }
    }
    copy_wait<0>();
  }

 private:
  static constexpr GqaPolicy policy{head_dim, type, shape};
  static constexpr bool kFew = policy.few();
  static constexpr bool kEightBit = type == KvType::e4m3;
  static constexpr int kDim = head_dim;
  static constexpr int kRowBytes = policy.row_bytes();
  static constexpr int kTile = policy.tile_tokens();
  static constexpr int kUnits = policy.units();
  static constexpr std::uint32_t kUnitBytes = static_cast<std::uint32_t>(policy.unit_bytes());
  static constexpr int kRows = policy.rows();
  static constexpr int kSteps = kDim / 16;
  static constexpr int kCopyThreads = kFew ? 32 : policy.threads();
  static constexpr int kPieces = kRowBytes / 16;  ///< 16-byte pieces of a row
  using Math = std::conditional_t<type == KvType::bf16, Bf16, Fp16>;

  __device__ static void sync() {
    if constexpr (kFew) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  /// The lane, of which the compiler knows nothing where registers are short: else it keeps every
  /// address that follows from it in a register of its own over the whole loop, and spills.
  __device__ std::uint32_t own_lane() const {
    std::uint32_t lane = lane_;
    if constexpr (kDim == 256) asm volatile("" : "+r"(lane));
    return lane;
  }

  /// Lane 0 steps a cursor that the whole warp reads.
  __device__ void next_segment(Cursor& cursor) {
    __syncwarp();
    if (lane_ == 0) cursor.next_segment(args_, kRows, kTile);
    __syncwarp();
  }

  __device__ void advance_ahead() {
    --ahead_left_;
    if (++ahead_tile_ == ahead_.line.tiles && ahead_left_ > 0) {
      ahead_tile_ = 0;
      next_segment(ahead_);
    }
  }

  __device__ std::int32_t kv_head_of(const Cursor& cursor) const {
    return cursor.kv_head + head_in_block();
  }
  __device__ std::int32_t head_in_block() const {
    return kFew ? static_cast<std::int32_t>(warp_) % args_.head_block : 0;
  }
  /// Number of the worker.
  __device__ std::int32_t id() const {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    return kFew ? (block * GqaPolicy::kWarps + static_cast<std::int32_t>(warp_)) / args_.head_block
                : block;
  }
  /// The lane's two rows in the line, and their nodes; -1 past the last row.
  __device__ std::int32_t row_of(int half) const {
    return first_row() + static_cast<std::int32_t>(lane_ >> 2U) + 8 * half;
  }
  __device__ std::int32_t node_of(int half) const {
    const std::int32_t row = row_of(half);
    return row < line_rows() ? now_.line.node + row / args_.group : -1;
  }
  /// First row of the warp within its line.
  __device__ std::int32_t first_row() const {
    return now_.row_begin + (kFew ? 0 : static_cast<std::int32_t>(warp_) * 16);
  }
  __device__ std::int32_t line_rows() const { return now_.line.nodes * args_.group; }

  /// Copies the next unit, K or V of the tile ahead, into ring place `unit`. Always commits a
  /// group, empty past the share's end, so that counting groups counts units.
  template <bool is_v>
  __device__ void issue(std::uint32_t unit) {
    if (ahead_left_ > 0) {
      if constexpr (is_v) {
        copy_unit(unit, address_of_v_);
        advance_ahead();
        if (ahead_left_ > 0) find_rows();
      } else {
        const RowAddress address = address_of(args_, pending_, kv_head_of(ahead_));
        address_of_v_ = address.v;
        copy_unit(unit, address.k);
      }
    }
    copy_commit();
  }

  /// Starts the loads that tell where the rows of the tile ahead are: lane l has token l.
  __device__ void find_rows() {
    const auto lane = static_cast<std::int32_t>(lane_);
    if (lane < kTile) pending_ = find_row(args_, ahead_.line, ahead_tile_ * kTile + lane);
  }

  __device__ void copy_unit(std::uint32_t place, std::uint64_t row_address) {
    const std::uint32_t unit = ring_ + place * kUnitBytes;
    const std::uint32_t thread = kFew ? own_lane() : threadIdx.x;
    if (__all_sync(0xFFFFFFFFU, row_address != 0 || thread % 32U >= kTile)) {
      copy_rows<false>(unit, row_address, thread);
    } else {
      copy_rows<true>(unit, row_address, thread);
    }
  }

  /// `gaps`: some rows are no tokens, and become zeros.
  template <bool gaps>
  __device__ void copy_rows(std::uint32_t unit, std::uint64_t row_address, std::uint32_t thread) {
    constexpr int kRowsAtOnce = kCopyThreads / kPieces;
    static_assert(kTile % kRowsAtOnce == 0);
    const std::uint32_t first_row = thread / kPieces;
    const std::uint32_t piece = thread % kPieces;
    const std::uint32_t first = unit + tile_offset<kRowBytes>(first_row, piece);
#pragma unroll
    for (std::uint32_t row = 0; row < kTile; row += kRowsAtOnce) {
      const std::uint64_t from =
          __shfl_sync(0xFFFFFFFFU, row_address, static_cast<int>(row | first_row));
      // `row` and `first_row` share no bit, so the exchange of pieces splits into one part that is
      // known here.
      const std::uint32_t to = (first ^ (tile_turn<kRowBytes>(row) << 4U)) + row * kRowBytes;
      if constexpr (gaps) {
        copy_async_16(to, from + 16U * piece, from != 0 ? 16U : 0U);
      } else {
        copy_async_16(to, from + 16U * piece);
      }
    }
  }

  /// Makes the next unit readable, K or V of the current tile, refills the one before it, and gives
  /// its address.
  template <bool is_v>
  __device__ std::uint32_t acquire() {
    copy_wait<kUnits - 2>();
    sync();
    const std::uint32_t free_unit = read_unit_ == 0 ? kUnits - 1 : read_unit_ - 1;
    const std::uint32_t unit = ring_ + read_unit_ * kUnitBytes;
    read_unit_ = read_unit_ + 1 == kUnits ? 0 : read_unit_ + 1;
    // The unit kUnits - 1 ahead is V where this one is V and the distance is even, or neither.
    issue<is_v == (kUnits % 2 == 1)>(free_unit);
    return unit;
  }

  template <int unit>
  __device__ void fill_ring() {
    if constexpr (unit < kUnits - 1) {
      issue<unit % 2 == 1>(unit);
      fill_ring<unit + 1>();
    }
  }

  __device__ void start_piece() {
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) out_[i][0] = out_[i][1] = out_[i][2] = out_[i][3] = 0.0F;
    peak_[0] = peak_[1] = -INFINITY;
    total_[0] = total_[1] = 0.0F;
    const std::int32_t piece = piece_tiles_of(args_.schedule, now_.line.tiles);
    piece_begin_ = tile_;
    piece_end_ = min((tile_ / piece + 1) * piece, now_.line.tiles);
  }

  __device__ void start_segment() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_query(half);
    }
  }

  __device__ void load_query(int half) {
    const VerifyParams& p = args_.params;
    const std::int32_t row = row_of(half);
    const std::int32_t node = node_of(half);
    const bool live = node >= 0;
    const std::int64_t token = live ? now_.line.query + node : 0;
    const std::int64_t head = kv_head_of(now_) * args_.group + (live ? row % args_.group : 0);
    const char* from =
        static_cast<const char*>(p.q.data) + token * p.q.stride_token + head * p.q.stride_head;
    const std::uint32_t quad = lane_ & 3U;
    if constexpr (kEightBit) {
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // Two loads of four bytes: one of eight would tie registers that belong into different
          // fragments.
          const auto* at =
              reinterpret_cast<const std::uint32_t*>(from + 2U * (64U * i + 16U * quad + 4U * j));
          const std::uint32_t low = live ? at[0] : 0U;
          const std::uint32_t high = live ? at[1] : 0U;
          const bool bf16 = p.q.type == FloatType::bf16;
          query_[4 * i + j][half] = bf16 ? bf16_to_fp16(low) : low;
          query_[4 * i + j][half + 2] = bf16 ? bf16_to_fp16(high) : high;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const auto* at = reinterpret_cast<const std::uint32_t*>(from + 2U * (16U * i + 2U * quad));
        query_[i][half] = live ? at[0] : 0U;
        query_[i][half + 2] = live ? at[4] : 0U;
      }
    }
  }

  __device__ void score_tile(std::uint32_t unit, float (&s)[kTile / 8][4]) {
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0F;
    std::uint32_t b[4];
    const std::uint32_t lane = own_lane();
    if constexpr (kEightBit) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < kDim / 64; ++i) {
          load_shared_16(
              b, unit + tile_offset<kRowBytes>(8U * n + (lane >> 2U), 4U * i + (lane & 3U)));
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            multiply_add(Math{}, s[n], query_[4 * i + j], widen_e4m3(b[j] & 0xFFFFU),
                         widen_e4m3(b[j] >> 16U));
          }
        }
      }
    } else {
      const std::uint32_t row = (lane & 7U) + ((lane >> 4U) << 3U);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int n = 0; n < kTile / 16; ++n) {
          load_matrices(b,
                        unit + tile_offset<kRowBytes>(16U * n + row, 2U * i + ((lane >> 3U) & 1U)));
          multiply_add(Math{}, s[2 * n], query_[i], b[0], b[1]);
          multiply_add(Math{}, s[2 * n + 1], query_[i], b[2], b[3]);
        }
      }
    }
  }

  /// Tokens of the tile that exist in a sparse list: the same for every row of the line.
  __device__ std::uint32_t listed_tokens(std::int32_t first) const {
    const std::int32_t token = first + static_cast<std::int32_t>(lane_);
    bool listed = true;
    if (token < now_.line.prefix) {
      const std::int64_t list =
          static_cast<std::int64_t>(now_.line.query + now_.line.node) * args_.params.sparse.stride;
      listed = args_.params.sparse.entries[list + token] >= 0;
    }
    return __ballot_sync(0xFFFFFFFFU, listed);
  }

  __device__ void mask_tile(float (&s)[kTile / 8][4], std::int32_t first) {
    const std::uint32_t listed =
        args_.params.sparse.entries != nullptr ? listed_tokens(first) : 0xFFFFFFFFU;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t node = node_of(half);
      std::uint32_t seen = node >= 0 ? listed & visible_tokens(args_, now_.line, node, first) : 0U;
      seen >>= 2U * (lane_ & 3U);
#pragma unroll
      for (int i = 0; i < kTile / 8; ++i) {
        if ((seen >> (8 * i) & 1U) == 0) s[i][2 * half] = -INFINITY;
        if ((seen >> (8 * i + 1) & 1U) == 0) s[i][2 * half + 1] = -INFINITY;
      }
    }
  }

  /// One online softmax step; leaves the weights, as operands of the second product, in `weights`.
  __device__ void soften(float (&s)[kTile / 8][4], std::uint32_t (&weights)[kTile / 16][4]) {
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
      top[0] = fmaxf(top[0], fmaxf(s[i][0], s[i][1]));
      top[1] = fmaxf(top[1], fmaxf(s[i][2], s[i][3]));
    }
    const float scale = args_.softmax_scale;
    top[0] = fmaxf(peak_[0], scale * row_max(top[0]));
    top[1] = fmaxf(peak_[1], scale * row_max(top[1]));
    if (__any_sync(0xFFFFFFFFU, top[0] > peak_[0] || top[1] > peak_[1])) {
      // A peak of -inf has nothing to rescale; the factor 0 keeps -inf - -inf out.
      const float keep0 = peak_[0] == -INFINITY ? 0.0F : exp2_fast(peak_[0] - top[0]);
      const float keep1 = peak_[1] == -INFINITY ? 0.0F : exp2_fast(peak_[1] - top[1]);
      total_[0] *= keep0;
      total_[1] *= keep1;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        out_[i][0] *= keep0;
        out_[i][1] *= keep0;
        out_[i][2] *= keep1;
        out_[i][3] *= keep1;
      }
      peak_[0] = top[0];
      peak_[1] = top[1];
    }
    const float base0 = top[0] == -INFINITY ? 0.0F : top[0];
    const float base1 = top[1] == -INFINITY ? 0.0F : top[1];
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
      const float a = exp2_fast(fmaf(s[i][0], scale, -base0));
      const float b = exp2_fast(fmaf(s[i][1], scale, -base0));
      const float c = exp2_fast(fmaf(s[i][2], scale, -base1));
      const float d = exp2_fast(fmaf(s[i][3], scale, -base1));
      total_[0] += a + b;
      total_[1] += c + d;
      weights[i / 2][(i & 1) * 2] = pack(Math{}, a, b);
      weights[i / 2][(i & 1) * 2 + 1] = pack(Math{}, c, d);
    }
  }

  /// Adds weights * V. In a tile with a mask (`guard`), a V value that is not finite counts as 0,
  /// and its token's bit is returned: the rows that attend such a token are set to NaN by the
  /// caller, and no other row is.
  template <bool guard>
  __device__ std::uint32_t accumulate(std::uint32_t unit,
                                      const std::uint32_t (&weights)[kTile / 16][4]) {
    std::uint32_t bad = 0;
    const std::uint32_t lane = own_lane();
    const std::uint32_t row = (lane & 7U) + (((lane >> 3U) & 1U) << 3U);
    std::uint32_t b[4];
#pragma unroll
    for (int n = 0; n < kTile / 16; ++n) {
#pragma unroll
      for (int i = 0; i < kPieces / 2; ++i) {
        load_matrices_transposed(
            b, unit + tile_offset<kRowBytes>(16U * n + row, 2U * i + (lane >> 4U)));
        if constexpr (guard) {
#pragma unroll
          for (int j = 0; j < 4; ++j) bad |= clean(&b[j]) << (16 * n + 8 * (j & 1));
        }
        if constexpr (kEightBit) {
          // Bytes 0 and 2 are an even column of two tokens, bytes 1 and 3 the odd one.
#pragma unroll
          for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (std::uint32_t odd = 0; odd < 2; ++odd) {
              const std::uint32_t pick = odd == 0 ? 0x4420U : 0x4431U;
              multiply_add(Math{}, out_[4 * i + 2 * j + odd], weights[n],
                           widen_e4m3(__byte_perm(b[2 * j], 0, pick)),
                           widen_e4m3(__byte_perm(b[2 * j + 1], 0, pick)));
            }
          }
        } else {
          multiply_add(Math{}, out_[2 * i], weights[n], b[0], b[1]);
          multiply_add(Math{}, out_[2 * i + 1], weights[n], b[2], b[3]);
        }
      }
    }
    return bad;
  }

  /// Zeroes the values of a fragment register that are not finite; gives two bits for the tokens 2
  /// q and 2 q + 1 of the lane's quad position q, shifted to their place among eight.
  __device__ std::uint32_t clean(std::uint32_t* pair) const {
    std::uint32_t bits = 0;
    if constexpr (kEightBit) {
#pragma unroll
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        if ((*pair >> (8 * byte) & 0x7FU) == 0x7FU) {
          *pair &= ~(0xFFU << (8 * byte));
          bits |= 1U << (byte / 2);
        }
      }
    } else {
      constexpr std::uint32_t kExponent = type == KvType::bf16 ? 0x7F80U : 0x7C00U;
#pragma unroll
      for (std::uint32_t half = 0; half < 2; ++half) {
        if ((*pair >> (16 * half) & kExponent) == kExponent) {
          *pair &= ~(0xFFFFU << (16 * half));
          bits |= 1U << half;
        }
      }
    }
    return bits << (2U * (lane_ & 3U));
  }

  /// Sets to NaN the rows that give a token of `bad` a weight.
  __device__ void spread_nan(std::uint32_t bad, const std::uint32_t (&weights)[kTile / 16][4]) {
    bad = __reduce_or_sync(0xFFFFFFFFU, bad);
    if (bad == 0) return;
    const std::uint32_t mine = bad >> (2U * (lane_ & 3U));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bool hit = false;
#pragma unroll
      for (int i = 0; i < kTile / 8; ++i) {
        const std::uint32_t pair = weights[i / 2][(i & 1) * 2 + half];
        hit = hit || ((mine >> (8 * i) & 1U) != 0 && (pair & 0xFFFFU) != 0);
        hit = hit || ((mine >> (8 * i + 1) & 1U) != 0 && (pair >> 16U) != 0);
      }
      const std::uint32_t votes = __ballot_sync(0xFFFFFFFFU, hit);
      if ((votes >> (lane_ & 28U) & 15U) == 0) continue;
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) out_[i][2 * half] = out_[i][2 * half + 1] = NAN;
    }
  }

  /// Attends the current tile.
  __device__ void step() {
    float s[kTile / 8][4];
    std::uint32_t weights[kTile / 16][4];
    score_tile(acquire<false>(), s);
    if (args_.scale_before) {
      const bool capped = args_.params.logit_cap > 0.0F;
#pragma unroll
      for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] *= args_.score_scale;
          if (capped) s[i][j] = args_.cap_scale * tanhf(s[i][j]);
        }
      }
    }
    const std::int32_t first = tile_ * kTile;
    const bool masked = first + kTile > now_.line.prefix || args_.params.sparse.entries != nullptr;
    if (masked) mask_tile(s, first);
    soften(s, weights);
    const std::uint32_t unit = acquire<true>();
    if (masked) {
      spread_nan(accumulate<true>(unit, weights), weights);
    } else {
      accumulate<false>(unit, weights);
    }
  }

  /// Place of a partial that does not cover its whole segment.
  __device__ std::int64_t part() const {
    const GqaSchedule& schedule = args_.schedule;
    if (!gqa_has_fixed_pieces(schedule))
      return std::int64_t{2} * id() + (piece_begin_ == 0 ? 1 : 0);
    const std::int32_t piece = piece_tiles_of(schedule, now_.line.tiles);
    const std::int32_t pieces = (now_.line.tiles + piece - 1) / piece;
    return schedule.parts_before[now_.index] + static_cast<std::int64_t>(now_.segment) * pieces +
           piece_begin_ / piece;
  }

  __device__ void finish_piece() {
    const float total[2] = {row_sum(total_[0]), row_sum(total_[1])};
    const bool whole = piece_begin_ == 0 && tile_ == now_.line.tiles;
    const std::int64_t place = whole ? 0 : part() * args_.head_block + head_in_block();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = row_of(half);
      const float scale =
          total[half] == 0.0F ? 0.0F : (kEightBit ? args_.params.v_scale : 1.0F) / total[half];
      const float lse = total[half] == 0.0F ? -INFINITY : peak_[half] + log2f(total[half]);
      if (whole) {
        if (row < line_rows()) store_row(half, row, scale, lse);
      } else {
        store_partial(half, place * kRows + row % kRows, scale, lse);
      }
    }
  }

  __device__ void store_row(int half, std::int32_t row, float scale, float lse) {
    const OutputView& output = args_.params.output;
    const std::int64_t token = now_.line.query + now_.line.node + row / args_.group;
    const std::int64_t head = kv_head_of(now_) * args_.group + row % args_.group;
    store_pairs(output.type, output_row(output, token, head), half, scale);
    if ((lane_ & 3U) == 0) store_lse(output, token, head, lse);
  }

  __device__ void store_partial(int half, std::int64_t row, float scale, float lse) {
    store_pairs(FloatType::fp32, reinterpret_cast<char*>(args_.partial_out + row * kDim), half,
                scale);
    if ((lane_ & 3U) == 0) args_.partial_lse[row] = lse;
  }

  __device__ void store_pairs(FloatType to_type, char* row, int half, float scale) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        store_pair(
            to_type, row,
            pair_of<kEightBit>(out_, i, pair, half, static_cast<std::int32_t>(lane_ & 3U), scale));
      }
    }
  }

  const GqaArgs& args_;
  std::uint32_t lane_;
  std::uint32_t warp_;
  std::uint32_t ring_;
  Cursor& now_;    ///< in shared memory, one a warp: it would cost a dozen registers
  Cursor& ahead_;  ///< likewise
  PendingRow pending_;
  std::uint64_t address_of_v_;
  std::uint32_t read_unit_{0};
  std::int32_t tile_;        ///< within the segment
  std::int32_t left_;        ///< tiles of the share, this one included
  std::int32_t ahead_tile_;  ///< likewise of the copies
  std::int32_t ahead_left_;
  std::int32_t piece_begin_;
  std::int32_t piece_end_;
  std::uint32_t query_[kSteps][4];
  float out_[2 * kSteps][4];
  float peak_[2];
  float total_[2];
};

template <int head_dim, KvType type, GqaShape shape>
__global__ void __launch_bounds__(GqaPolicy{head_dim, type, shape}.threads(),
                                  GqaPolicy{head_dim, type, shape}.blocks_per_multiprocessor())
    verify_kernel(const __grid_constant__ GqaArgs args) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  Worker<head_dim, type, shape> worker(args, shared);
  worker.run();
}

}  // namespace packstone::kernels::gqa
