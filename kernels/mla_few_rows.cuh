// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for up to 16 rows: decode and short chains, bound by memory. The four pairs of
/// warps have the same rows and take tiles of 16 tokens in turn, each with a softmax of its own, so
/// that nothing of a tile waits for another; at the end of a piece their results are merged. A pair
/// refills the stage that it has read.

#include "kernels/mla_pairs.cuh"

#include <cstdint>

namespace packstone::kernels::mla {

template <KvType type>
class FewRows : public Pairs<type, MlaShape::few_rows> {
  using Pair = Pairs<type, MlaShape::few_rows>;
  using Base = Walk<type, MlaShape::few_rows>;
  using Base::args_;
  using Base::kStages;
  using Base::kTile;
  using Pair::at_;
  using Pair::base_;
  using Pair::exponent_;
  using Pair::half;
  using Pair::out_;
  using Pair::pair;
  using Pair::total_;

 public:
  __device__ explicit FewRows(const MlaArgs& args) : Pair(args) {}

  __device__ void run(const MlaStart& start) {
    this->begin_share(start);
    if (this->lane() == 0) this->step_ahead(this->ahead(), pair());
    __syncwarp();
    const PendingRow row = this->find_rows((kStages + kPairs - 1 - pair()) / kPairs);
    this->start_piece();
    const char* query = this->own_query();
    if (kBulkCopy) query = stage_queries(query);
    fill_ring(row);
    this->find_addresses();
#pragma unroll 1
    for (bool staged = kBulkCopy;; staged = false) {
      if (staged) barrier_wait(this->small() + SmallMap::kQueries, 0);
      this->start_rows(query);
      if (staged) {
        fence_for_copies();
        __syncthreads();
        fill_stages(kFirstFilled, kStages);
      }
      run_piece();
      if (!this->next_piece()) break;
      this->start_piece();
      query = this->own_query();
    }
  }

 private:
  static constexpr std::uint32_t kPairs = 4;
  /// Whether a stage only ever has tiles of one pair, which thus sees all of its phases.
  static constexpr bool kOwnStages = kStages % kPairs == 0;

  /// The first piece's queries come through the last stages of the ring, which are filled later: a
  /// load of four bytes a lane touches eight rows, and eight warps with 72 of them take 2.5 us.
  static constexpr auto kQueryPitch =
      static_cast<std::uint32_t>(MlaPolicy{KvType::bf16, MlaShape::few_rows}.pitch());
  static constexpr std::uint32_t kFirstFilled =
      kBulkCopy ? kStages - (MlaPolicy::kFewRows * kQueryPitch - 1) / Base::kStageBytes - 1
                : kStages;

  /// Starts copies of the rows' queries and gives where the lane's will be; a warp for two rows.
  __device__ const char* stage_queries(const char* own) {
    const std::uint32_t bytes = args_.params.rope_dim == 0 ? 1024 : 1152;
    const std::uint32_t at = kFirstFilled * Base::kStageBytes;
    const std::uint32_t barrier = this->small() + SmallMap::kQueries;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t row = 2U * this->warp() + i;
      const char* from = reinterpret_cast<const char*>(__shfl_sync(
          Base::kAll, reinterpret_cast<unsigned long long>(own), static_cast<int>(row)));
      // Zeros for a missing row are read where they lie: all blocks would copy the same ones.
      const bool exists = from != reinterpret_cast<const char*>(kZeroRow);
      copy_row(this->shared() + at + row * kQueryPitch, from, exists ? bytes : 0, barrier);
    }
    return own == reinterpret_cast<const char*>(kZeroRow)
               ? own
               : reinterpret_cast<const char*>(Base::memory()) + at +
                     kQueryPitch * (this->lane_anew() & 15U);
  }

  /// Fills stages from `first` up to `end`: the pair's tiles of them.
  __device__ void fill_stages(std::uint32_t first, std::uint32_t end) {
    const std::uint32_t tiles = min(this->tiles_of_share(), end);
#pragma unroll 1
    for (std::uint32_t tile = first + ((pair() - first) & (kPairs - 1)); tile < tiles;
         tile += kPairs)
      this->copy_own_rows(tile, tile / kPairs);
  }
  /// Fills the ring but for the stages with queries.
  __device__ void fill_ring(const PendingRow& row) {
    this->store_rows(row);
    fill_stages(0, kFirstFilled);
    // What it copies next follows in the stage of its first.
    if (this->lane() == 0) {
      this->ahead() = this->now();
      this->step_ahead(this->ahead(), pair() + kStages);
    }
    __syncwarp();
    pending_ = this->find_rows();
  }
  /// Both warps of the pair have left the tiles before.
  __device__ void leave() const {
    fence_for_copies();
    this->sync_pair();
  }
  /// Refills the stage of a tile that the pair has left.
  __device__ void refill(std::uint32_t tile) {
    const std::uint32_t next = tile + kStages;
    if (next >= this->tiles_of_share()) return;
    const std::uint32_t i = tile / kPairs % Base::kBatch;
    if (i == 0) this->store_rows(pending_);
    this->copy_own_rows(next, i);
    if (!kOwnStages && half() == 0 && this->lane() == 0) this->tell_issued(next);
    if (i == Base::kBatch - 1) pending_ = this->find_rows();
  }

  __device__ void run_piece() {
    for (at_ += (pair() - at_) & (kPairs - 1); at_ < this->piece_end(); at_ += kPairs) {
      this->forget();
      if (!kOwnStages) this->wait_issued(at_);
      barrier_wait(this->full(at_), Base::parity(at_));
      if (this->masked(at_)) {
        this->clean_stage(at_);
        this->note_seen(this->tile_of(at_), this->first_row());
      }
      typename Pair::Scores s;
      this->score_tile(s, [] {});
      this->exchange(s);
      if (kOwnStages) {
        // The exchange has told that the pair has left the tile before, whose stage is refilled
        // while the softmax waits for its operands. Neither warp puts scores where the other may
        // still read: it waits for the stage that the other refills behind its read, or here.
        if (at_ >= this->piece_first() + kPairs) {
          __syncwarp();
          refill(at_ - kPairs);
        } else {
          this->sync_pair();
        }
      }
      typename Pair::Weights weights;
      this->soften(s, weights);
      this->accumulate(weights);
      if (!kOwnStages && at_ + kPairs < this->piece_end()) {
        leave();
        refill(at_);
      }
    }
    at_ = this->piece_end();
    finish_piece();
    if (const std::uint32_t last = last_of(pair()); last != kNone) {
      leave();
      refill(last);
    }
  }

  /// The pair that took the `c`-th tile of the piece that ends at `at_`. Sums over pairs go in this
  /// order, so that bits do not depend on what the share has before the piece.
  __device__ std::uint32_t nth_pair(std::uint32_t c) const {
    return (this->piece_first() + c) & (kPairs - 1);
  }
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  /// A pair's last tile of the piece that ends at `at_`, or kNone.
  __device__ std::uint32_t last_of(std::uint32_t pair) const {
    const std::uint32_t back = (at_ - 1 - pair) & (kPairs - 1);
    return this->piece_tiles() > back ? at_ - 1 - back : kNone;
  }

  /// Merges the pairs' results, the outputs through the stages that they have read last.
  __device__ void finish_piece() {
    // In the place of the masks, those of the warp that writes.
    auto* states = reinterpret_cast<float2*>(Base::small_memory() + SmallMap::kSeen);
    const std::uint32_t lane = this->lane_anew();
    float totals[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      totals[h] = row_sum(total_[h]);
      if (half() == 0 && (lane & 3U) == 0)
        states[64U * pair() + (lane & ~3U) + h] = make_float2(base_[h], totals[h]);
    }
    __syncthreads();
    const bool whole = this->whole();
    float base[2];
    float total[2];
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      base[h] = -INFINITY;
#pragma unroll
      for (std::uint32_t p = 0; p < kPairs; ++p)
        base[h] = fmaxf(base[h], states[64U * p + (lane & ~3U) + h].x);
      total[h] = 0.0F;
#pragma unroll
      for (std::uint32_t c = 0; c < kPairs; ++c) {
        const float2 state = states[64U * nth_pair(c) + (lane & ~3U) + h];
        if (state.y != 0.0F) total[h] += state.y * exp2_fast(state.x - base[h]);
      }
      scale[h] = totals[h] == 0.0F ? 0.0F : exp2_fast(base_[h] - base[h]) / total[h];
    }
    const auto own = static_cast<std::int32_t>(lane & 15U);
    const float own_total = this->of_lane(total, lane);
    const float own_base = this->of_lane(base, lane);
    if (this->warp() == 0 && lane < 16) {
      this->store_lse(own, whole, own_total == 0.0F ? -INFINITY : own_base + log2f(own_total));
    }
    // Of the rows that the lane sums: 2 p and 2 p + 1 of pair p's half of the columns, of which the
    // upper 16 lanes have rows 8 further on.
    char* target = this->target(own, whole);
    char* to[2];
#pragma unroll
    for (std::uint32_t k = 0; k < 2; ++k)
      to[k] = this->from_lane(target, 2U * pair() + k + (lane >> 4U) * 8U);
    const FloatType format = this->format(whole);
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      put_round(round, scale);
      __syncthreads();
#pragma unroll 1
      for (std::uint32_t i = 0; i < kQuads / 8; ++i)
        add_up(static_cast<std::uint32_t>(round), i, to, format);
      __syncthreads();
    }
  }
  /// Registers of the output in a round, times 4: as many as the stage has room for.
  static constexpr int kQuads = Base::kStageBytes >= 16384 ? 16 : 8;
  static constexpr std::uint32_t kRoundBytes = 512U * kQuads;
  static constexpr int kRounds = 32 / kQuads;

  /// Puts the round's part of the output, scaled, where the others find it: quads one after the
  /// other, lanes of quad q in the order lane ^ q, so that reading a row meets all banks.
  __device__ void put_round(int round, const float (&scale)[2]) {
    const std::uint32_t last = last_of(pair());
    if (last == kNone) return;
    const std::uint32_t to = this->stage(last) + kRoundBytes * half() + 16U * this->lane_anew();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (r != round) continue;
      const float unit = this->value_scale(exponent_[r / (kRounds / 2)]);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int i = kQuads * r + q;
        asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(
                         (to ^ 16U * static_cast<std::uint32_t>(q % 8)) +
                         512U * static_cast<std::uint32_t>(q)),
                     "f"(out_[i][0] * (scale[0] * unit)), "f"(out_[i][1] * (scale[0] * unit)),
                     "f"(out_[i][2] * (scale[1] * unit)), "f"(out_[i][3] * (scale[1] * unit))
                     : "memory");
      }
    }
  }
  /// The round's `i`-th 64 columns of the half, summed over the pairs: of each of its two rows a
  /// lane has four neighbouring ones, so that 16 lanes store 256 bytes of a partial's row.
  __device__ void add_up(std::uint32_t round, std::uint32_t i, char* const (&to)[2],
                         FloatType format) {
    const std::uint32_t lane = this->lane_anew();
    const std::uint32_t four = lane & 15U;
    // Two quads of 8 columns, two values of each; or two lanes of one quad.
    const std::uint32_t quad = Base::kEightBit ? four / 4U * 2U : four / 2U;
    const std::uint32_t place = 8U * pair() + (Base::kEightBit ? four % 4U : four % 2U * 2U);
    const std::uint32_t upper = 8U * (lane >> 4U);
    const std::uint32_t first = 512U * quad + 16U * (place ^ quad) + upper;
    const std::uint32_t second = Base::kEightBit
                                     ? 512U * (quad + 1U) + 16U * (place ^ (quad + 1U)) + upper
                                     : 512U * quad + 16U * ((place + 1U) ^ quad) + upper;
    float4 sum[2] = {};
#pragma unroll
    for (std::uint32_t c = 0; c < kPairs; ++c) {
      const std::uint32_t last = last_of(nth_pair(c));
      if (last == kNone) continue;
      const std::uint32_t from = this->stage(last) + kRoundBytes * half() + 4096U * i;
#pragma unroll
      for (std::uint32_t k = 0; k < 2; ++k) {
        const float2 x = load_floats(from + (first ^ 64U * k));
        const float2 y = load_floats(from + (second ^ 64U * k));
        const float4 next =
            Base::kEightBit ? make_float4(x.x, y.x, x.y, y.y) : make_float4(x.x, x.y, y.x, y.y);
        sum[k] =
            make_float4(sum[k].x + next.x, sum[k].y + next.y, sum[k].z + next.z, sum[k].w + next.w);
      }
    }
    const std::uint32_t column = 256U * half() + 8U * kQuads * round + 64U * i + 4U * four;
    Pair::with_format(format, [&](auto is) {
#pragma unroll
      for (std::uint32_t k = 0; k < 2; ++k) {
        if (to[k] != nullptr) store_four(is(), to[k] + Pair::bytes_of(is()) * column, sum[k]);
      }
    });
  }
  __device__ static float2 load_floats(std::uint32_t from) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
  }

  PendingRow pending_{PendingRow::none, 0};  ///< places to come, from when the last batch is used
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kThreads, 1)
    few_rows_kernel(const __grid_constant__ MlaArgs args) {
  const MlaStart start = start_block(args);
  if (start.before >= start.end) return;
  FewRows<type> worker(args);
  worker.run(start);
}

}  // namespace packstone::kernels::mla
