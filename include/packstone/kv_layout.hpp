// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The bytes of one KV row, by element type: the only place where these numbers are written down.
///
/// A row is what one token keeps in one buffer of one layer. An MLA row is the latent part (which
/// is also V) and the rope part; a GQA row is `head_dim` values of one K head or one V head.

#include <cstdint>

namespace packstone {

/// How q and out store their values.
enum class FloatType : std::uint8_t { bf16, fp16, fp32 };

/// How a KV row stores its values.
enum class KvType : std::uint8_t {
  bf16,
  fp16,
  e4m3,       ///< one byte a value, one scale a tensor (VerifyParams::k_scale, v_scale)
  e4m3_tile,  ///< MLA only: the 656-byte row of kMlaTileRow* below
};

/// How a table stores its entries.
enum class IndexType : std::uint8_t { int32, int64 };

constexpr std::int64_t bytes_of(FloatType type) {
  return type == FloatType::fp32 ? 4 : 2;
}
constexpr std::int64_t bytes_of(IndexType type) {
  return type == IndexType::int64 ? 8 : 4;
}

inline constexpr std::int32_t kMlaLatentDim =
    512;                                         ///< latent values of an MLA row; also head_dim_v
inline constexpr std::int32_t kMlaRopeDim = 64;  ///< rope values of an MLA row that has them
inline constexpr std::int32_t kMlaKeyDim = kMlaLatentDim + kMlaRopeDim;

/// Every row, and every stride between rows, is a multiple of this: kernels copy in units of 16
/// bytes.
inline constexpr std::int64_t kRowAlignment = 16;

/// The e4m3_tile row: 512 e4m3 values, then 4 fp32 scales (scale t multiplies values 128 t to 128 t
/// + 127), then 64 bf16 rope values that have no scale. The layout that DeepSeek published for its
/// fp8 cache.
inline constexpr std::int32_t kMlaTileDim = 128;
inline constexpr std::int32_t kMlaTiles = kMlaLatentDim / kMlaTileDim;
inline constexpr std::int64_t kMlaTileScaleOffset = kMlaLatentDim;
inline constexpr std::int64_t kMlaTileRopeOffset =
    kMlaTileScaleOffset + std::int64_t{4} * kMlaTiles;
inline constexpr std::int64_t kMlaTileRowBytes = kMlaTileRopeOffset + std::int64_t{2} * kMlaRopeDim;
static_assert(kMlaTileRowBytes == 656 && kMlaTileRowBytes % kRowAlignment == 0);

/// Bytes of `dim` values of a plain type; e4m3_tile has no such figure outside its whole row.
constexpr std::int64_t value_bytes(KvType type, std::int32_t dim) {
  return (type == KvType::bf16 || type == KvType::fp16) ? 2 * std::int64_t{dim} : std::int64_t{dim};
}

/// Bytes of the latent part of an MLA row: the 16-byte aligned piece that `KvRows::k` addresses.
/// For e4m3_tile it includes the four scales.
constexpr std::int64_t mla_latent_bytes(KvType type) {
  return type == KvType::e4m3_tile ? kMlaTileRopeOffset : value_bytes(type, kMlaLatentDim);
}

/// Bytes of the rope part of an MLA row: bf16 in an e4m3_tile row, else of the row's own type.
constexpr std::int64_t mla_rope_bytes(KvType type) {
  return type == KvType::e4m3_tile ? 2 * std::int64_t{kMlaRopeDim} : value_bytes(type, kMlaRopeDim);
}

/// Bytes of a whole MLA row with rope: 1,152, 1,152, 576 and 656.
constexpr std::int64_t mla_row_bytes(KvType type) {
  return mla_latent_bytes(type) + mla_rope_bytes(type);
}
static_assert(mla_row_bytes(KvType::bf16) == 1152 && mla_row_bytes(KvType::e4m3) == 576);
static_assert(mla_row_bytes(KvType::e4m3_tile) == kMlaTileRowBytes);

constexpr const char* to_string(KvType type) {
  switch (type) {
    case KvType::bf16:
      return "bf16";
    case KvType::fp16:
      return "fp16";
    case KvType::e4m3:
      return "e4m3";
    case KvType::e4m3_tile:
      return "e4m3_tile";
  }
  return "unknown";
}

constexpr const char* to_string(FloatType type) {
  switch (type) {
    case FloatType::bf16:
      return "bf16";
    case FloatType::fp16:
      return "fp16";
    case FloatType::fp32:
      return "fp32";
  }
  return "unknown";
}

}  // namespace packstone
