// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Inputs of known results for faults of attention that the oracle and the kernels are held to
/// alike.

#include "tests/support_attention.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace packstone::test {

/// AT-15: MLA rows of eight bits whose latent part and rope part have ranges of their own. Each
/// query token attends one row alone, so that its output is the row and its lse is the score, which
/// is the first latent value plus the first rope value.
struct EightBitRows {
  AttentionInputs inputs;
  std::vector<std::array<double, 512>> latent;  ///< what each query token has to give
  double rope;                                  ///< of every row
};

inline AttentionCase eight_bit_case(KvType type, std::int32_t rows) {
  AttentionCase c;
  c.kv_type = type;
  c.prefix = {rows};
  c.q_len = {rows};
  c.tail = TailPlace::none;
  c.topk = 1;
  c.scale = 1.0F;
  c.out_type = FloatType::fp32;
  c.padded_tokens = 0;
  return c;
}

/// Query token t attends row t alone, with a q of ones in the first value of either part.
inline void read_rows_one_by_one(AttentionInputs& inputs) {
  std::ranges::fill(inputs.q, std::uint8_t{0});
  const std::uint16_t one = encode_bf16(1.0F);
  const std::int64_t head = 2 * inputs.head_dim_k();
  for (std::int64_t row = 0; row < inputs.tokens * inputs.description().heads; ++row) {
    std::memcpy(inputs.q.data() + row * head, &one, 2);
    std::memcpy(inputs.q.data() + row * head + 2 * kMlaLatentDim, &one, 2);
  }
  for (std::int32_t t = 0; t < inputs.tokens; ++t)
    inputs.sparse[static_cast<std::size_t>(t) * 2] = t;
}

/// A scale a tile: neighbours of 1e-4 and 10, a row of zeros, one of outliers, one of 0.05. The
/// tiles of a row differ, too.
inline EightBitRows rows_with_tile_scales() {
  const float scales[] = {1e-4F, 10.0F, 1.0F, 448.0F, 0.05F};
  const std::uint8_t codes[] = {0x38, 0x38, 0, 0x7E, 0x38};  // 1, 1, 0, 448, 1
  EightBitRows rows{.inputs = AttentionInputs(eight_bit_case(KvType::e4m3_tile, 5)),
                    .latent = std::vector<std::array<double, 512>>(5),
                    .rope = 1.0};
  const std::uint16_t one = encode_bf16(1.0F);
  for (std::size_t t = 0; t < 5; ++t) {
    std::uint8_t* row =
        rows.inputs.pool_k.data() +
        rows.inputs.slot_of_token(0, static_cast<std::int64_t>(t)) * rows.inputs.k_row_bytes();
    std::memset(row, codes[t], kMlaLatentDim);
    for (std::int32_t tile = 0; tile < kMlaTiles; ++tile) {
      const float scale = scales[t] * static_cast<float>(tile + 1);
      std::memcpy(row + kMlaTileScaleOffset + 4 * tile, &scale, 4);
    }
    for (std::int64_t d = 0; d < kMlaRopeDim; ++d) {
      std::memcpy(row + mla_latent_bytes(KvType::e4m3_tile) + 2 * d, &one, 2);
    }
    for (std::size_t d = 0; d < kMlaLatentDim; ++d) {
      const double tile = static_cast<double>(d * kMlaTiles / kMlaLatentDim + 1);
      rows.latent[t][d] = double{scales[t]} * tile * double{decode_e4m3(codes[t])};
    }
  }
  read_rows_one_by_one(rows.inputs);
  return rows;
}

/// One scale for the whole pool, found over both parts: latent values about 0.05, rope 1, a row of
/// zeros and one with an outlier of 448 times the others.
inline EightBitRows rows_with_one_scale() {
  AttentionCase c = eight_bit_case(KvType::e4m3, 3);
  c.k_scale = 0.05F;  // the outlier is the largest code, 448
  EightBitRows rows{
      .inputs = AttentionInputs(c), .latent = std::vector<std::array<double, 512>>(3), .rope = 1.0};
  for (std::size_t t = 0; t < 3; ++t) {
    std::uint8_t* row =
        rows.inputs.pool_k.data() +
        rows.inputs.slot_of_token(0, static_cast<std::int64_t>(t)) * rows.inputs.k_row_bytes();
    for (std::size_t d = 0; d < kMlaLatentDim; ++d) {
      double& value = rows.latent[t][d];
      value = t == 1 ? 0.0 : 0.05 * (1.0 + static_cast<double>(d) / 512.0);
      if (t == 2 && d == 0) value = 0.05 * 448.0;
      row[d] = encode_e4m3(static_cast<float>(value) / c.k_scale);
    }
    const std::uint8_t rope = encode_e4m3(1.0F / c.k_scale);
    std::memset(row + mla_latent_bytes(KvType::e4m3), rope, kMlaRopeDim);
  }
  read_rows_one_by_one(rows.inputs);
  return rows;
}

/// What is wrong with results of such rows beyond `relative`, or empty. Zeros are exact.
inline std::string wrong_rows(const EightBitRows& rows, const std::vector<float>& out,
                              const std::vector<float>& lse, double relative) {
  const std::int32_t heads = rows.inputs.description().heads;
  const auto off = [&](double got, double want) {
    return !(std::fabs(got - want) <= relative * std::fabs(want));  // NaN is off
  };
  const std::size_t row_count = rows.latent.size() * static_cast<std::size_t>(heads);
  if (out.size() != row_count * 512 || lse.size() != row_count) return "sizes";
  for (std::size_t row = 0; row < row_count; ++row) {
    const auto& latent = rows.latent[row / static_cast<std::size_t>(heads)];
    const std::string place = " of row " + std::to_string(row);
    if (off(double{lse[row]}, latent[0] + rows.rope)) {
      return "lse" + place + ": " + std::to_string(lse[row]);
    }
    for (std::size_t d = 0; d < 512; ++d) {
      const double got = double{out[row * 512 + d]};
      if (off(got, latent[d])) {
        return "value " + std::to_string(d) + place + ": " + std::to_string(got) + ", not " +
               std::to_string(latent[d]);
      }
    }
  }
  return {};
}

/// MG-03: keys whose scores are all 0; the first `ones` have V = 1, the `nines` behind them 9. So
/// the output is their mean and the lse the logarithm of their number.
inline AttentionInputs ones_and_nines(AttentionCase c, std::int32_t ones, std::int32_t nines) {
  c.prefix = {ones + nines};
  c.q_len = {1};
  c.tail = TailPlace::none;
  c.padded_tokens = 0;
  c.out_type = FloatType::fp32;
  AttentionInputs inputs(c);
  std::ranges::fill(inputs.q, std::uint8_t{0});
  const bool gqa = c.kind == AttentionKind::gqa;
  auto& pool = gqa ? inputs.pool_v : inputs.pool_k;
  const std::int64_t stride = gqa ? inputs.v_row_bytes() : inputs.k_row_bytes();
  for (std::int32_t t = 0; t < ones + nines; ++t) {
    const std::uint16_t value = encode_bf16(t < ones ? 1.0F : 9.0F);
    std::uint8_t* row = pool.data() + inputs.slot_of_token(0, t) * stride;
    for (std::int64_t i = 0; i < stride; i += 2) std::memcpy(row + i, &value, 2);
  }
  return inputs;
}

/// The logarithm of a number of keys in a base.
inline double log_of(std::int32_t keys, LseBase base) {
  return base == LseBase::two ? std::log2(keys) : std::log(keys);
}

}  // namespace packstone::test
