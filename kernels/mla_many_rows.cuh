// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// MLA attention for many rows: 64 a block, 16 a pair of warps, over the same tile of 32 tokens.
/// Every warp looks up and copies four rows of each tile. Blocks that have to do with last segments
/// of few rows run as those of FewRows.

#include "kernels/mla_few_rows.cuh"
#include "kernels/mla_pairs.cuh"

#include <cstdint>

namespace packstone::kernels::mla {

template <KvType type>
class ManyRows : public Pairs<type, MlaShape::many_rows> {
  using Pair = Pairs<type, MlaShape::many_rows>;
  using Base = Walk<type, MlaShape::many_rows>;
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
  __device__ explicit ManyRows(const MlaArgs& args) : Pair(args) {}

  __device__ void run(const MlaStart& start) {
    this->begin_share(start);
    const PendingRow row = this->find_rows();
    fill_ring(row);
    // While the first tiles are on their way.
    start_piece();
    this->find_addresses();
    for (;;) {
      run_piece();
      if (!this->next_piece()) break;
      start_piece();
    }
  }

 private:
  /// Copies all tiles but one of the ring.
  __device__ void fill_ring(const PendingRow& row) {
    this->store_rows(row);
    for (std::uint32_t tile = 0; tile + 1 < kStages && tile < this->tiles_of_share(); ++tile)
      this->copy_own_rows(tile, tile);
  }

  __device__ void start_piece() {
    Base::start_piece();
    // Without rows a pair only copies, which its base tells: no register is left for a flag.
    if (this->line_row(static_cast<std::int32_t>(this->rows_from())) >= 0) {
      this->start_rows(this->own_query());
    } else {
      base_[0] = NAN;
    }
  }

  __device__ void run_piece() {
    for (; at_ < this->piece_end(); ++at_) {
      this->forget();
      barrier_wait(this->full(at_), Base::parity(at_));
      if (this->masked(at_)) this->clean_stage(at_);
      if (has_rows()) {
        attend();
      } else {
        copy_ahead();
        if (finds()) this->store_rows(this->find_rows());
      }
      __syncwarp();
      if (this->lane() == 0) barrier_arrive(this->empty(at_));
    }
    if (has_rows()) finish_piece();
  }

  __device__ bool has_rows() const { return base_[0] == base_[0]; }

  __device__ void attend() {
    if (this->masked(at_)) this->note_seen(this->tile_of(at_), this->first_row());
    typename Pair::Scores s;
    // In the middle, when the others have surely left the tile before.
    this->score_tile(s, [&] { copy_ahead(); });
    PendingRow row{PendingRow::none, 0};
    if (finds()) row = this->find_rows();
    this->forget();
    this->exchange(s);
    typename Pair::Weights weights;
    this->soften(s, weights);
    this->forget();
    this->accumulate(weights);
    if (finds()) this->store_rows(row);
  }

  /// Whether the places looked up have all been used, and more rows are to come.
  __device__ bool finds() const {
    return at_ % Base::kBatch == Base::kBatch - kStages && at_ + kStages < this->tiles_of_share();
  }

  /// Refills the stage that the tile before the current one has left. Waiting for all warps to
  /// leave it also lets the scores in exchange be overwritten.
  __device__ void copy_ahead() {
    const std::uint32_t next = at_ + kStages - 1;
    if (at_ > 0) barrier_wait(this->empty(at_ - 1), Base::parity(at_ - 1));
    if (next < this->tiles_of_share()) this->copy_own_rows(next, next % Base::kBatch);
  }

  __device__ void finish_piece() {
    const bool whole = this->whole();
    const std::uint32_t lane = this->lane_anew();
    const auto own = static_cast<std::int32_t>(this->rows_from() + (lane & 15U));
    float total[2];
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] = row_sum(total_[h]);
      scale[h] = total[h] == 0.0F ? 0.0F : 1.0F / total[h];
    }
    const float own_total = this->of_lane(total, lane);
    const float own_base = this->of_lane(base_, lane);
    if (half() == 0 && lane < 16) {
      const float lse = own_total == 0.0F ? -INFINITY : own_base + log2f(own_total);
      this->store_lse(own, whole, lse);
    }
    char* target = this->target(own, whole);
    Pair::with_format(this->format(whole), [&](auto format) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        char* to = this->of_row(target, h);
        if (to == nullptr) continue;
        to += Pair::bytes_of(format()) * this->first_column();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          this->template store_values<format()>(to, i, h, out_[2 * i], out_[2 * i + 1],
                                                scale[h] * this->value_scale(exponent_[i / 8]));
        }
      }
    });
  }
};

template <KvType type>
__global__ void __launch_bounds__(MlaPolicy::kThreads, 1)
    many_rows_kernel(const __grid_constant__ MlaArgs args) {
  const MlaStart start = start_block(args);
  if (start.before >= start.end) return;
  if (start.role == MlaRole::rest) {
    FewRows<type> worker(args);
    worker.run(start);
  } else {
    ManyRows<type> worker(args);
    worker.run(start);
  }
}

}  // namespace packstone::kernels::mla
