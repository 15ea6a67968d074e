// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the schedules and walks of both attention kernels share: `Args` is GqaArgs or MlaArgs,
/// `Line` the one's or the other's, each with the fields named here.

#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone::kernels {

/// Tiles of a piece of a line; the line's whole length where shares are cut anywhere.
template <typename Schedule>
__device__ std::int32_t piece_tiles_of(const Schedule& schedule, std::int32_t tiles) {
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

/// Page ids fit 31 bits, so the low word of a 64-bit entry is the whole of it.
__device__ inline const std::int32_t* table_entry(const TokenTable& table, std::int64_t index) {
  return static_cast<const std::int32_t*>(table.entries) +
         (table.type == IndexType::int64 ? 2 * index : index);
}

/// Which sequence each query token belongs to; -1 for those behind the last. The whole block of
/// `threads` threads works on it.
template <int threads, typename Args>
__device__ void find_sequences(const Args& args) {
  const VerifyParams& p = args.params;
  for (int token = static_cast<int>(threadIdx.x); token < p.tokens; token += threads) {
    int low = 0;
    int high = p.batch;  // the last b with q_indptr[b] <= token
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (p.q_indptr[middle + 1] <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    args.schedule.line_sequence[token] = (low < p.batch && p.q_indptr[low] <= token) ? low : -1;
  }
  __syncthreads();
}

/// Bits of the tile's tokens that a node sees: bit i is token `first` + i of the line.
template <typename Args, typename Line>
__device__ std::uint32_t visible_tokens(const Args& args, const Line& line, std::int32_t node,
                                        std::int32_t first) {
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

}  // namespace packstone::kernels
