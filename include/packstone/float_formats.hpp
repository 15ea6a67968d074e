// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The 16-bit and 8-bit floating-point formats of KV rows, on the CPU: exact to float, and from
/// float rounded to nearest, ties to even.
///
/// bf16 is the upper half of an IEEE binary32; fp16 is IEEE binary16; e4m3 is the "fn" variant of
/// the OCP 8-bit specification: bias 7, no infinities, NaN is 0x7F and 0xFF, largest value 448.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace packstone {

constexpr float decode_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

inline std::uint16_t encode_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Decodes a small format with `exponent_bits` and `mantissa_bits`, without infinities or NaN.
constexpr float decode_small_float(std::uint32_t bits, std::uint32_t exponent_bits,
                                   std::uint32_t mantissa_bits) {
  const std::uint32_t sign = (bits >> (exponent_bits + mantissa_bits)) & 1U;
  const std::uint32_t exponent = (bits >> mantissa_bits) & ((1U << exponent_bits) - 1U);
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const std::uint32_t bias = (1U << (exponent_bits - 1U)) - 1U;
  if (exponent == 0) {
    // A subnormal: mantissa * 2^(1 - bias - mantissa_bits); that power of two is a normal binary32.
    const auto unit = std::bit_cast<float>((127U + 1U - bias - mantissa_bits) << 23U);
    return (sign != 0 ? -1.0F : 1.0F) * static_cast<float>(mantissa) * unit;
  }
  return std::bit_cast<float>((sign << 31U) | ((exponent + 127U - bias) << 23U) |
                              (mantissa << (23U - mantissa_bits)));
}

constexpr float decode_fp16(std::uint16_t bits) {
  if ((bits & 0x7C00U) == 0x7C00U) {
    const std::uint32_t sign = (std::uint32_t{bits} & 0x8000U) << 16U;
    return std::bit_cast<float>(sign | 0x7F800000U | ((std::uint32_t{bits} & 0x3FFU) << 13U));
  }
  return decode_small_float(bits, 5, 10);
}

constexpr float decode_e4m3(std::uint8_t bits) {
  if ((bits & 0x7FU) == 0x7FU) return std::numeric_limits<float>::quiet_NaN();
  return decode_small_float(bits, 4, 3);
}

inline std::uint16_t encode_fp16(float value) {
  const auto sign =
      static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) >> 16U) & 0x8000U);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00U);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x1p-14F) {
    // Subnormals are multiples of 2^-24; nearbyint rounds ties to even. 1024 units are the first
    // normal.
    return static_cast<std::uint16_t>(
        sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24F)));
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0xFFFU + ((bits >> 13U) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13U) - (112U << 10U)));
}

/// Saturates to +-448, as the conversion of the GPU does.
inline std::uint8_t encode_e4m3(float value) {
  const auto sign = static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(value) >> 24U) & 0x80U);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7FU);
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0F) return static_cast<std::uint8_t>(sign | 0x7EU);
  if (magnitude < 0x1p-6F) {
    return static_cast<std::uint8_t>(sign |
                                     static_cast<std::uint8_t>(std::nearbyint(magnitude * 512.0F)));
  }
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0x7FFFFU + ((bits >> 20U) & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20U) - (120U << 3U)));
}

}  // namespace packstone
