// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What both MLA kernels share: a block's walk over its share of the line of tiles, the copies
/// ahead of it, and masks.

#include "kernels/mla_line.cuh"
#include "kernels/mla_ring.cuh"
#include "kernels/primitives.cuh"

#include <cstdint>
#include <type_traits>

namespace packstone::kernels::mla {

/// Places in the part of shared memory behind the ring and the exchange buffers, in bytes.
struct SmallMap {
  static constexpr std::uint32_t kFull = 0;    ///< [8] barriers: the stage is filled
  static constexpr std::uint32_t kEmpty = 64;  ///< [8] barriers, many rows: the stage is read
  static constexpr std::uint32_t kIssued =
      64;  ///< [8] few rows: tile that the stage is filled with
  static constexpr std::uint32_t kQueries = 96;      ///< barrier, few rows: queries are in the ring
  static constexpr std::uint32_t kBad = 128;         ///< [4] tokens of a tile that are not finite
  static constexpr std::uint32_t kTiles = 144;       ///< tiles of the share
  static constexpr std::uint32_t kCursors = 152;     ///< [16] cursors: one a warp, then the copies'
  static constexpr std::uint32_t kCursorBytes = 72;  ///< with the limits of a piece
  static constexpr std::uint32_t kSeen = 1344;       ///< [256] pairs of words: tokens that rows see
  static constexpr std::uint32_t kPlaces =
      kSeen + 8 * MlaPolicy::kThreads;  ///< [8][32] places of the warps' rows to come
  static constexpr std::uint32_t kEnd = kPlaces + 8 * 32 * 16;
};
static_assert(SmallMap::kEnd == MlaPolicy::small_bytes());
static_assert(sizeof(Cursor) == 64 && SmallMap::kCursorBytes == 72);
static_assert(SmallMap::kCursors + 16 * SmallMap::kCursorBytes <= SmallMap::kSeen);

/// Waits for the schedule, and gives the block's share.
__device__ inline MlaStart start_block(const MlaArgs& args) {
  wait_for_kernel_before();
  let_next_kernel_start();  // which reads the schedule at once
  return args.schedule.starts[blockIdx.x];
}

template <KvType type, MlaShape shape>
class Walk {
 public:
  static constexpr MlaPolicy policy{type, shape};
  static constexpr int kTile = policy.tile();
  static constexpr bool kEightBit = policy.eight_bit();
  static constexpr bool kTileScales = type == KvType::e4m3_tile;
  static constexpr auto kPitch = static_cast<std::uint32_t>(policy.pitch());
  static constexpr auto kStageBytes = static_cast<std::uint32_t>(policy.stage_bytes());
  static constexpr auto kStages = static_cast<std::uint32_t>(policy.stages());
  static constexpr auto kRopeAt = static_cast<std::uint32_t>(mla_latent_bytes(type));
  static constexpr std::uint32_t kAll = 0xFFFFFFFFU;
  using Math = std::conditional_t<type == KvType::bf16, Bf16, Fp16>;
  /// Weights are exp2(score - base). A row's base is its highest score, less kShift because small
  /// weights would else vanish in fp16, of when it last followed the scores: it does so only when
  /// they pass it by kRoom, so that few tiles rescale; weights then reach 2^kRoom, within the range
  /// of fp16.
  static constexpr float kShift = type == KvType::bf16 ? 0.0F : 5.0F;
  static constexpr float kRoom = 8.0F + kShift;

 protected:
  /// Thread and address of shared memory are kept from the compiler, which would else derive them
  /// anew, slowly, at every use, or keep every address that follows from them in a register.
  __device__ explicit Walk(const MlaArgs& args) : args_(args), thread_(threadIdx.x) {
    origin_ = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory()));
    forget();
  }
  /// Here the compiler must let go of everything that it derived from thread and address.
  __device__ void forget() { asm volatile("" : "+r"(thread_), "+r"(origin_)); }
  __device__ std::uint32_t lane() const { return thread_ & 31U; }
  /// The lane anew, for what is used once a piece: else it would be kept, and spilled, meanwhile.
  __device__ std::uint32_t lane_anew() const {
    std::uint32_t lane = thread_ & 31U;
    asm volatile("" : "+r"(lane));
    return lane;
  }
  __device__ std::uint32_t warp() const { return thread_ >> 5U; }

  /// The block's dynamic shared memory: an address that the compiler knows, so no register holds
  /// it.
  __device__ static std::uint8_t* memory() {
    extern __shared__ __align__(128) std::uint8_t mla_shared[];
    return mla_shared;
  }
  __device__ static std::uint8_t* small_memory() {
    return memory() + policy.ring_bytes() + policy.exchange_bytes();
  }
  __device__ std::uint32_t shared() const { return origin_; }
  __device__ std::uint32_t small() const {
    return shared() + static_cast<std::uint32_t>(policy.ring_bytes() + policy.exchange_bytes());
  }
  __device__ std::uint32_t exchange_buffer() const {
    return shared() + static_cast<std::uint32_t>(policy.ring_bytes());
  }
  __device__ std::uint32_t stage(std::uint32_t tile) const {
    return shared() + tile % kStages * kStageBytes;
  }
  __device__ std::uint32_t full(std::uint32_t tile) const {
    return small() + SmallMap::kFull + 8U * (tile % kStages);
  }
  __device__ std::uint32_t empty(std::uint32_t tile) const {
    return small() + SmallMap::kEmpty + 8U * (tile % kStages);
  }
  /// Parity of the phase in which the stage of `tile` (counted over the share) is used.
  __device__ static std::uint32_t parity(std::uint32_t tile) { return tile / kStages & 1U; }
  __device__ static Cursor& cursor(std::uint32_t i) {
    return *reinterpret_cast<Cursor*>(small_memory() + SmallMap::kCursors +
                                      SmallMap::kCursorBytes * i);
  }
  /// The warp's own: of the piece, and of the rows that it looks up next.
  __device__ Cursor& now() const { return cursor(warp()); }
  __device__ Cursor& ahead() const { return cursor(8 + warp()); }

  /// Tiles of the share.
  __device__ static std::uint32_t& tiles() {
    return *reinterpret_cast<std::uint32_t*>(small_memory() + SmallMap::kTiles);
  }
  __device__ std::uint32_t tiles_of_share() const {
    std::uint32_t tiles;
    asm volatile("ld.shared.u32 %0, [%1];"
                 : "=r"(tiles)
                 : "r"(small() + SmallMap::kTiles)
                 : "memory");
    return tiles;
  }

  /// The pair's number, and the warp's half of the head dimension. The two are on different
  /// schedulers, so that one pair alone has two of them.
  __device__ std::uint32_t pair() const { return warp() >> 1U; }
  __device__ std::uint32_t half() const { return warp() & 1U; }
  /// A barrier of the pair.
  __device__ void sync_pair() const {
    asm volatile("bar.sync %0, 64;" ::"r"(1U + pair()) : "memory");
  }
  /// A barrier of those who read the same tile.
  __device__ void sync_team() const {
    if constexpr (policy.few()) {
      sync_pair();
    } else {
      __syncthreads();
    }
  }

  /// Few rows: waits until copies of `tile` into its stage have begun. Only then does the parity of
  /// the stage's barrier say whether they are done: who has not read the tiles before in that stage
  /// cannot tell one phase from the next but one.
  __device__ void wait_issued(std::uint32_t tile) const {
    std::uint32_t issued;
    do {
      asm volatile("ld.volatile.shared.u32 %0, [%1];"
                   : "=r"(issued)
                   : "r"(small() + SmallMap::kIssued + 4U * (tile % kStages))
                   : "memory");
    } while (issued != tile);
  }
  __device__ void tell_issued(std::uint32_t tile) const {
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(small() + SmallMap::kIssued +
                                                          4U * (tile % kStages)),
                 "r"(tile)
                 : "memory");
  }

  /// Sets up barriers and cursors for the block's share.
  __device__ void begin_share(const MlaStart& at) {
    const Cursor start{at.lengths, at.line, at.segment, at.tile, -1, at.end - at.before};
    if (lane() == 0) now() = ahead() = start;
    if (threadIdx.x == 0) {
      tiles() = static_cast<std::uint32_t>(at.end - at.before);
      for (std::uint32_t i = 0; i < kStages; ++i) {
        barrier_init(full(i), copy_arrivals(policy.few() ? 2 : 8));
        if (policy.few()) {
          tell_issued(i);
          if (i == 0) barrier_init(small() + SmallMap::kQueries, MlaPolicy::kFewRows);
        } else {
          barrier_init(empty(i), MlaPolicy::kThreads / 32);
        }
      }
      fence_for_copies();
    }
    __syncthreads();
  }

  /// Of a tile a warp copies `kCopyRows` rows, from `copy_first` on; it looks up the rows of
  /// `kBatch` of its tiles at once, which lie `kStep` apart.
  static constexpr std::uint32_t kCopyRows = policy.few() ? kTile / 2 : kTile / 8;
  static constexpr std::uint32_t kBatch = 32 / kCopyRows;
  static constexpr std::uint32_t kStep = policy.few() ? 4 : 1;
  __device__ std::uint32_t copy_first() const {
    return kCopyRows * (policy.few() ? half() : warp());
  }
  /// Starts the loads that tell where the rows of the warp's next tiles are, `count` of them: lane
  /// i those of row i % kCopyRows of the i / kCopyRows-th.
  __device__ PendingRow find_rows(std::uint32_t count = kBatch) {
    PendingRow row{PendingRow::none, 0};
    Cursor& at = ahead();
    const std::uint32_t own = lane() / kCopyRows;
    const std::uint32_t first = copy_first() + lane() % kCopyRows;
#pragma unroll 1
    for (std::uint32_t i = 0; i < count;) {
      // All at once, unless the segment ends meanwhile.
      const auto left = static_cast<std::int32_t>(kStep * (count - i));
      const std::uint32_t end = at.tile + left < at.line.tiles ? count : i + 1;
      if (own >= i && own < end) {
        row = find_row(args_, at.line,
                       (at.tile + static_cast<std::int32_t>(kStep * (own - i))) * kTile +
                           static_cast<std::int32_t>(first));
      }
      __syncwarp();
      if (lane() == 0) step_ahead(at, kStep * (end - i));
      __syncwarp();
      i = end;
    }
    return row;
  }
  __device__ void store_rows(const PendingRow& row) {
    store_place(places(), lane(), place_of<type>(args_, row));
    __syncwarp();
  }
  /// Copies the warp's rows of `tile`, whose places are the `i`-th of the batch.
  __device__ void copy_own_rows(std::uint32_t tile, std::uint32_t i) {
    copy_rows<type, kCopyRows>(args_, places() + kPlaceBytes * kCopyRows * i, copy_first(),
                               stage(tile), full(tile));
  }
  __device__ std::uint32_t places() const {
    return small() + SmallMap::kPlaces + 512U * warp();
  }

  __device__ void step_ahead(Cursor& at, std::int64_t steps) {
    if (at.tile + steps < at.line.tiles) {
      at.tile += static_cast<std::int32_t>(steps);
      at.remaining -= steps;
      return;
    }
    for (std::int64_t i = 0; i < steps && at.remaining > 0; ++i) at.advance(args_, kTile);
  }

  /// Enters the piece that begins at `now()`.
  __device__ void start_piece() {
    const Cursor& at = now();
    const std::int32_t masked_from =
        args_.params.sparse.entries != nullptr ? 0 : at.line.prefix / kTile;
    const std::int32_t piece = piece_tiles_of(args_.schedule, at.line.tiles);
    const std::int32_t end = min((at.tile / piece + 1) * piece, at.line.tiles);
    const std::uint32_t first = piece_first();
    const auto tiles =
        static_cast<std::uint32_t>(min(static_cast<std::int64_t>(end - at.tile), at.remaining));
    const auto unmasked = static_cast<std::uint32_t>(max(0, masked_from - at.tile));
    if constexpr (kLimitsInMemory) {
      if (lane() == 0) {
        limit(0) = first + tiles;
        limit(1) = first + unmasked;
      }
      __syncwarp();
    } else {
      piece_end_ = first + tiles;
      masked_from_ = first + unmasked;
    }
  }
  /// The piece's first tile, and how many there are. `now()` stays at the first until the next.
  __device__ std::uint32_t piece_first() const {
    return tiles_of_share() - static_cast<std::uint32_t>(now().remaining);
  }
  __device__ std::uint32_t piece_tiles() const {
    return piece_end() - piece_first();
  }
  /// A tile's number in its segment.
  __device__ std::int32_t tile_of(std::uint32_t at) const {
    return now().tile + static_cast<std::int32_t>(at - piece_first());
  }
  /// Steps `now()` past the piece; false when the share is done.
  __device__ bool next_piece() {
    const auto tiles = static_cast<std::int32_t>(piece_tiles());
    __syncwarp();
    if (lane() == 0) {
      Cursor& at = now();
      at.remaining -= tiles - 1;
      at.tile += tiles - 1;
      const Cursor& next = ahead();
      if (next.previous == at.index && at.tile + 1 == at.line.tiles &&
          at.segment + 1 == at.line.segments) {
        // The line whose rows are looked up already: loading it takes long when memory is busy.
        at.line = next.line;
        at.previous = at.index;
        at.index = next.index;
        at.segment = first_segment(args_, at.line, kTile);
        at.tile = 0;
        --at.remaining;
      } else {
        at.advance(args_, kTile);
      }
    }
    __syncwarp();
    return now().remaining > 0;
  }

  /// Of an address that each lane has for row `lane` % 16, the one for row g (`h` 0) or g + 8 of
  /// the lane's products.
  template <typename T>
  __device__ T* of_row(T* own, int h) const {
    return from_lane(own, (lane_anew() >> 2U) + 8U * static_cast<std::uint32_t>(h));
  }
  /// The address that lane `from` has.
  template <typename T>
  __device__ static T* from_lane(T* own, std::uint32_t from) {
    return reinterpret_cast<T*>(
        __shfl_sync(kAll, reinterpret_cast<unsigned long long>(own), static_cast<int>(from)));
  }

  /// The value of row `lane` % 16, of what the first lanes of quads have for rows g and g + 8.
  __device__ static float of_lane(const float (&x)[2], std::uint32_t lane) {
    const auto from = static_cast<int>(4U * (lane & 7U));
    const float low = __shfl_sync(kAll, x[0], from);
    const float high = __shfl_sync(kAll, x[1], from);
    return (lane & 8U) == 0 ? low : high;
  }

  /// Row of the line for row `row` of the segment, or -1.
  __device__ std::int32_t line_row(std::int32_t row) const {
    const Cursor& at = now();
    const std::int32_t in_line = at.segment * args_.rows + row;
    return row < args_.rows && in_line < at.line.nodes * args_.params.heads ? in_line : -1;
  }

  /// Query token of a row of the line.
  __device__ std::int64_t token_of(std::int32_t in_line) const {
    const Cursor& at = now();
    return at.line.query + at.line.node + in_line / args_.params.heads;
  }

  /// Address of a row's query, or of zeros.
  __device__ const char* query_of(std::int32_t row) const {
    const std::int32_t in_line = line_row(row);
    if (in_line < 0) return reinterpret_cast<const char*>(kZeroRow);
    const VerifyParams& p = args_.params;
    const std::int64_t token = token_of(in_line);
    return static_cast<const char*>(p.q.data) + token * p.q.stride_token +
           in_line % args_.params.heads * p.q.stride_head;
  }

  __device__ static std::uint32_t load_word(const char* at) {
    std::uint32_t word;
    asm volatile("ld.u32 %0, [%1];" : "=r"(word) : "l"(at));
    return word;
  }

  /// Query operands of 16 x 16: `half` 0 for row g, 1 for row g + 8; step `k` of slice `slice`, 8
  /// being the rope part. e4m3 rows are read 16 bytes a lane, and the query follows their order.
  __device__ void load_query(std::uint32_t (&a)[4], const char* row, int half, int k,
                             std::uint32_t slice) const {
    const std::uint32_t quad = lane_anew() & 3U;
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    if (k < 8 || args_.params.rope_dim != 0) {
      const bool packed = kEightBit && (k < 8 || !kTileScales);
      if (packed) {
        const std::uint32_t step = static_cast<std::uint32_t>(k);
        const std::uint32_t value =
            k < 8 ? 128U * slice + 64U * (step / 4U) + 16U * quad + 4U * (step % 4U)
                  : 512U + 16U * slice + 4U * quad;
        if constexpr (policy.few() || !kTileScales) {
          // One by one: a pair of registers would be taken apart again for every product.
          low = load_word(row + 2U * value);
          high = load_word(row + 2U * value + 4U);
        } else {  // where registers do not reach for that
          const uint2 pair = *reinterpret_cast<const uint2*>(row + 2U * value);
          low = pair.x;
          high = pair.y;
        }
      } else {
        const std::uint32_t value =
            k < 8 ? 128U * slice + 16U * static_cast<std::uint32_t>(k) : 512U + 16U * slice;
        const auto* at = reinterpret_cast<const std::uint32_t*>(row + 2U * (value + 2U * quad));
        low = at[0];
        high = at[4];
      }
      if (kEightBit && args_.params.q.type == FloatType::bf16) {
        low = bf16_to_fp16(low);
        high = bf16_to_fp16(high);
      }
    }
    a[half] = low;
    a[half + 2] = high;
  }

  /// The scale of token `token` of a stage for a slice's latent values.
  __device__ float tile_scale(std::uint32_t stage, std::uint32_t token, std::uint32_t slice) const {
    float scale;
    asm volatile(
        "ld.shared.f32 %0, [%1];"
        : "=f"(scale)
        : "r"(stage + token * kPitch + static_cast<std::uint32_t>(kMlaTileScaleOffset) + 4U * slice)
        : "memory");
    return scale;
  }

  /// Limits of the piece: its end, and the first tile that needs a mask. In shared memory where
  /// registers do not reach. Here and below tiles are counted over the share.
  static constexpr bool kLimitsInMemory = !policy.few() && (kTileScales || type == KvType::fp16);
  __device__ std::uint32_t volatile& limit(std::uint32_t i) const {
    return reinterpret_cast<std::uint32_t volatile*>(small_memory() + SmallMap::kCursors +
                                                     SmallMap::kCursorBytes * warp() + 64U)[i];
  }
  __device__ std::uint32_t piece_end() const {
    return kLimitsInMemory ? limit(0) : piece_end_;
  }
  /// Whether some row of the tile may not see some token of it.
  __device__ bool masked(std::uint32_t tile) const {
    return tile >= (kLimitsInMemory ? limit(1) : masked_from_);
  }
  /// Tokens of the tile that a row of the segment sees, as bits.
  __device__ std::uint32_t seen(std::int32_t tile, std::int32_t row) const {
    const Cursor& at = now();
    const std::int32_t first = tile * kTile;
    std::uint32_t listed = kAll;
    if (args_.params.sparse.entries != nullptr) {
      const std::int32_t token = first + static_cast<std::int32_t>(lane());
      bool is_listed = true;
      if (lane() < kTile && token < at.line.prefix) {
        const std::int64_t list =
            static_cast<std::int64_t>(at.line.query + at.line.node) * args_.params.sparse.stride;
        is_listed = args_.params.sparse.entries[list + token] >= 0;
      }
      listed = __ballot_sync(kAll, is_listed);
    }
    const std::int32_t in_line = line_row(row);
    if (in_line < 0) return 0;
    const std::int32_t node = at.line.node + in_line / args_.params.heads;
    return listed & visible_tokens(args_, at.line, node, first);
  }

  /// Notes which tokens of the tile the lane's rows see, `first_row` and 8 after it: looked up
  /// while few registers are in use, and read by `seen_tokens` when many are.
  __device__ void note_seen(std::int32_t tile, std::int32_t first_row) const {
    auto* words = reinterpret_cast<std::uint32_t*>(small_memory() + SmallMap::kSeen) + 2 * thread_;
#pragma unroll 1  // instructions that are seldom needed come from memory, slowly
    for (std::int32_t h = 0; h < 2; ++h) words[h] = seen(tile, first_row + 8 * h);
  }
  __device__ uint2 seen_tokens() const {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(words.x), "=r"(words.y)
                 : "r"(small() + SmallMap::kSeen + 8U * thread_)
                 : "memory");
    return words;
  }
  /// Scores of pairs of columns 8 n + 2 q and on, of row g (`h` 0) or g + 8: -inf where the row
  /// does not see the token, NaN where it sees one that is not finite.
  template <int count>
  __device__ void mask_row(float (&s)[count][4], int h, std::uint32_t seen_bits,
                           std::uint32_t bad) const {
    const std::uint32_t quad = 2U * (lane() & 3U);
    seen_bits >>= quad;
    bad >>= quad;
#pragma unroll
    for (int n = 0; n < count; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[n][2 * h + j];
        if ((bad >> (8 * n + j) & 1U) != 0) score = NAN;
        if ((seen_bits >> (8 * n + j) & 1U) == 0) score = -INFINITY;
      }
    }
  }

  /// In a stage that not all rows see in full, zeroes the values of V that are not finite, because
  /// 0 * NaN would reach rows that do not attend them; `bad_tokens` are the tokens concerned until
  /// the next call.  Called after the stage has been filled and before anyone reads
  /// it; all warps that read the stage call.
  __device__ void clean_stage(std::uint32_t tile) {
    constexpr std::uint32_t kPieces = kEightBit ? 33 : 64;  // with the four scales
    constexpr std::uint32_t kTeam = policy.few() ? 64 : MlaPolicy::kThreads;
    const std::uint32_t member = policy.few() ? 32U * half() + lane() : thread_;
    std::uint32_t bad = 0;
    for (std::uint32_t i = member; i < kTile * kPieces; i += kTeam) {
      const std::uint32_t row = i / kPieces;
      const std::uint32_t piece = i % kPieces;
      if (piece == 32 && kEightBit && !kTileScales) continue;
      auto* at = reinterpret_cast<uint4*>(memory() + tile % kStages * kStageBytes + row * kPitch +
                                          16 * piece);
      const uint4 words = *at;
      if (piece != 32 && !maybe_not_finite(words)) continue;
      const uint4 clean{finite_part(words.x, piece == 32), finite_part(words.y, piece == 32),
                        finite_part(words.z, piece == 32), finite_part(words.w, piece == 32)};
      if (((words.x ^ clean.x) | (words.y ^ clean.y) | (words.z ^ clean.z) | (words.w ^ clean.w)) ==
          0)
        continue;
      *at = clean;
      bad |= 1U << row;
    }
    sync_team();
    if (member == 0) *bad_word() = 0;
    sync_team();
    if (bad != 0) {
      atomicOr(bad_word(), bad);
      fence_for_copies();
    }
    sync_team();
  }
  __device__ std::uint32_t bad_tokens() const {
    return *bad_word();
  }
  __device__ std::uint32_t* bad_word() const {
    return reinterpret_cast<std::uint32_t*>(small_memory() + SmallMap::kBad) +
           (policy.few() ? pair() : 0U);
  }
  /// Whether some value of 16 bytes of a row may be not finite, from a few instructions: adding one
  /// to an exponent of ones carries into the sign's place. Of e4m3 also the largest numbers pass.
  __device__ static bool maybe_not_finite(const uint4& words) {
    constexpr std::uint32_t kExponent =
        kEightBit ? 0x78787878U : (type == KvType::bf16 ? 0x7F807F80U : 0x7C007C00U);
    constexpr std::uint32_t kOne =
        kEightBit ? 0x08080808U : (type == KvType::bf16 ? 0x00800080U : 0x04000400U);
    const std::uint32_t carries = ((words.x & kExponent) + kOne) | ((words.y & kExponent) + kOne) |
                                  ((words.z & kExponent) + kOne) | ((words.w & kExponent) + kOne);
    return (carries & (kEightBit ? 0x80808080U : 0x80008000U)) != 0;
  }
  __device__ static std::uint32_t finite_part(std::uint32_t word, bool is_scale) {
    if constexpr (kEightBit) {
      if (is_scale) return (word & 0x7F800000U) == 0x7F800000U ? 0U : word;
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        if ((word >> (8 * byte) & 0x7FU) == 0x7FU) word &= ~(0xFFU << (8 * byte));
      }
      return word;
    } else {
      constexpr std::uint32_t kExponent = type == KvType::bf16 ? 0x7F80U : 0x7C00U;
      if ((word & kExponent) == kExponent) word &= 0xFFFF0000U;
      if ((word >> 16U & kExponent) == kExponent) word &= 0xFFFFU;
      return word;
    }
  }

  /// Scores from sums of products, in base 2, where the softmax does not scale them. tanh x = 1 -
  /// 2 / (exp 2x + 1), to about 1e-7.
  template <int count>
  __device__ void finish_scores(float (&s)[count][4]) const {
    if (!args_.finish_scores) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= args_.score_scale;
    }
    const float cap = args_.params.logit_cap;
    if (cap <= 0.0F) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float power = exp2_fast(2.8853900817779268F * s[i][j]);
        s[i][j] = cap * 1.4426950408889634F * (1.0F - __fdividef(2.0F, power + 1.0F));
      }
    }
  }

  /// For rows with scales, the operand's weights times the scales of 16 tokens, in units of
  /// 2^exponent, which is at least the largest scale of the slice so far. Gives what the output
  /// must be multiplied with when that unit grew, else 1.
  __device__ float scale_weights(std::uint32_t (&p)[4], std::uint32_t stage, std::uint32_t slice,
                                 std::int32_t& exponent) const {
    const float own = tile_scale(stage, lane() & 15U, slice);
    const std::uint32_t top = __reduce_max_sync(kAll, __float_as_uint(fabsf(own))) >> 23U;
    float factor = 1.0F;
    // Exponents stay where 2^-exponent is a normal number.
    const auto wanted = static_cast<std::int32_t>(min(max(top, 30U), 250U)) - 126;
    if (wanted > exponent) {
      factor = exponent == kNoExponent ? 1.0F : exp2f(static_cast<float>(exponent - wanted));
      exponent = wanted;
    }
    const float unit = exp2f(static_cast<float>(-exponent));
    const std::uint32_t token = 2U * (lane() & 3U);
#pragma unroll
    for (std::uint32_t side = 0; side < 2; ++side) {
      const std::uint32_t pair = pack(Fp16{}, tile_scale(stage, token + 8U * side, slice) * unit,
                                      tile_scale(stage, token + 8U * side + 1U, slice) * unit);
      p[2 * side] = multiply_half2(p[2 * side], pair);
      p[2 * side + 1] = multiply_half2(p[2 * side + 1], pair);
    }
    return factor;
  }
  __device__ static std::uint32_t multiply_half2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t c;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
  }
  static constexpr std::int32_t kNoExponent = -1000;
  const MlaArgs& args_;
  std::uint32_t thread_;
  std::uint32_t origin_;  ///< of shared memory
  std::uint32_t piece_end_{0};
  std::uint32_t masked_from_{0};
};

}  // namespace packstone::kernels::mla
