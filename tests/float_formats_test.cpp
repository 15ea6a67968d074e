// SPDX-License-Identifier: Apache-2.0
#include <packstone/float_formats.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace packstone {
namespace {

TEST(FloatFormats, EveryFiniteCodeSurvivesARoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    if (!std::isnan(decode_bf16(bits))) {
      EXPECT_EQ(encode_bf16(decode_bf16(bits)), bits);
    }
    if (!std::isnan(decode_fp16(bits))) {
      EXPECT_EQ(encode_fp16(decode_fp16(bits)), bits);
    }
  }
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    if ((code & 0x7FU) == 0x7FU) {
      EXPECT_TRUE(std::isnan(decode_e4m3(bits)));
    } else {
      EXPECT_EQ(encode_e4m3(decode_e4m3(bits)), bits);
    }
  }
}

TEST(FloatFormats, KnownValues) {
  EXPECT_EQ(decode_fp16(0x3C00), 1.0F);
  EXPECT_EQ(decode_fp16(0x0001), 0x1p-24F);
  EXPECT_EQ(decode_fp16(0x7BFF), 65504.0F);
  EXPECT_EQ(decode_fp16(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(decode_e4m3(0x7E), 448.0F);
  EXPECT_EQ(decode_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(decode_e4m3(0xB8), -1.0F);
  EXPECT_EQ(decode_bf16(0xC049), -3.140625F);
}

TEST(FloatFormats, HalfWayGoesToTheEvenNeighbour) {
  for (std::uint32_t code = 0; code < 0x7EU; ++code) {
    const float below = decode_e4m3(static_cast<std::uint8_t>(code));
    const float above = decode_e4m3(static_cast<std::uint8_t>(code + 1));
    const float middle = (below + above) / 2.0F;
    EXPECT_EQ(encode_e4m3(middle), code + (code & 1U));
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, 1e9F)), code + 1);
  }
  for (std::uint32_t code = 0; code < 0x7BFFU; ++code) {
    const float middle = (decode_fp16(static_cast<std::uint16_t>(code)) +
                          decode_fp16(static_cast<std::uint16_t>(code + 1))) /
                         2.0F;
    ASSERT_EQ(encode_fp16(middle), code + (code & 1U));
  }
  EXPECT_EQ(encode_bf16(1.00390625F), 0x3F80);  // 1 + 2^-8 is half way between 1 and 1 + 2^-7.
  EXPECT_EQ(encode_bf16(1.01171875F), 0x3F82);
}

TEST(FloatFormats, OutOfRangeAndNaN) {
  EXPECT_EQ(encode_e4m3(1e9F), 0x7E);
  EXPECT_EQ(encode_e4m3(-1e9F), 0xFE);
  EXPECT_TRUE(std::isnan(decode_fp16(encode_fp16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(decode_bf16(encode_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(encode_fp16(1e9F), 0x7C00);
  EXPECT_EQ(encode_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

}  // namespace
}  // namespace packstone
