// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Numbers and times out of trace text, exact: no locale, no double on the way to an integer or a
/// time.

#include <cstdint>
#include <string>
#include <string_view>

namespace packstone::sim {

/// Why a row is unusable. `reason` is the fixed word it is counted under, `detail` a sentence for a
/// person. False when nothing is wrong.
struct RowFault {
  const char* reason{nullptr};
  std::string detail{};
  explicit operator bool() const { return reason != nullptr; }
};

/// The text for an error message: quoted, cut at 40 bytes, unprintable bytes as '?'.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// A whole decimal number in [low, high]. Faults: missing_field (empty), bad_number, negative,
/// out_of_range.
[[nodiscard]] RowFault parse_whole(std::string_view text, const char* field, std::int64_t high,
                                   std::int64_t& out);

/// A token count, 0 to kRequestTokensMax.
[[nodiscard]] RowFault parse_tokens(std::string_view text, const char* field, std::int64_t& out);

/// A decimal number of units of 10^unit_exponent ns (9: seconds, 6: milliseconds) as nanoseconds,
/// rounded half up. Fractions and exponents are fine. Faults: missing_field, bad_time (NaN,
/// infinity, text), negative, out_of_range (past 2^62 ns, which is 146 years).
[[nodiscard]] RowFault parse_nanos(std::string_view text, const char* field, int unit_exponent,
                                   std::int64_t& out);

/// `2023-11-16 18:17:03.9799600`, `2024-05-10 00:00:00.009930+00:00`, `2026-08-25T00:00:01Z`:
/// nanoseconds since 1970, up to 9 fraction digits, no zone is UTC. Faults: missing_field,
/// bad_time.
[[nodiscard]] RowFault parse_timestamp(std::string_view text, const char* field, std::int64_t& out);

}  // namespace packstone::sim
