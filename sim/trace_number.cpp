// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/request.hpp>
#include <sim/trace_number.hpp>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace packstone::sim {
namespace {

constexpr std::int64_t kNanosMax = std::int64_t{1} << 62;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

RowFault missing(const char* field) {
  return {"missing_field", fmt::format("{} is missing", field)};
}
RowFault bad_time(const char* field, std::string_view text) {
  return {"bad_time", fmt::format("{} is {}, which is no time", field, in_quotes(text))};
}
RowFault negative(const char* field, std::string_view text) {
  return {"negative", fmt::format("{} is {}, which is negative", field, in_quotes(text))};
}
RowFault too_large(const char* field, std::string_view text) {
  return {"out_of_range", fmt::format("{} is {}, which is too large", field, in_quotes(text))};
}

// A decimal number taken apart: digits * 10^exponent.
struct Decimal {
  std::uint64_t digits{0};
  std::int64_t exponent{0};
  bool valid{false};
};

Decimal parse_decimal(std::string_view text) {
  Decimal number;
  // 18 digits fit 64 bits with room for one more; digits past them are below the resolution of a
  // nanosecond.
  constexpr std::uint64_t kDigitsFull = 1'000'000'000'000'000'000U;
  std::size_t i = 0;
  bool any = false;
  bool fraction = false;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !fraction)); ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    any = true;
    if (number.digits < kDigitsFull) {
      number.digits = number.digits * 10 + static_cast<std::uint64_t>(text[i] - '0');
      number.exponent -= fraction ? 1 : 0;
    } else {
      number.exponent += fraction ? 0 : 1;
    }
  }
  if (!any) return number;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && text[i] == '+') ++i;
    std::int64_t exponent = 0;
    const auto [rest, code] = std::from_chars(text.data() + i, text.data() + text.size(), exponent);
    if (code == std::errc::invalid_argument) return number;
    // An exponent too long for 64 bits is as good as this one.
    if (code == std::errc::result_out_of_range) exponent = text[i] == '-' ? -100'000 : 100'000;
    number.exponent += std::clamp<std::int64_t>(exponent, -100'000, 100'000);
    i = static_cast<std::size_t>(rest - text.data());
  }
  number.valid = i == text.size();
  return number;
}

// Reads `width` digits and the separator after them, if there is one to expect.
bool take_number(std::string_view& text, std::size_t width, std::string_view separators,
                 std::int64_t& out) {
  if (text.size() < width) return false;
  out = 0;
  for (std::size_t i = 0; i < width; ++i) {
    if (!is_digit(text[i])) return false;
    out = out * 10 + (text[i] - '0');
  }
  text.remove_prefix(width);
  if (separators.empty()) return true;
  if (text.empty() || separators.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// Days from 1970-01-01 to a date of the proleptic Gregorian calendar: whole 400-year eras of
// 146,097 days, years counted from March, so that the leap day is the last of its year.
std::int64_t days_since_epoch(std::int64_t year, std::int64_t month, std::int64_t day) {
  const std::int64_t march_year = year - (month <= 2 ? 1 : 0);
  const std::int64_t march_month = (month + 9) % 12;
  const std::int64_t day_of_year = (153 * march_month + 2) / 5 + day - 1;
  return march_year * 365 + march_year / 4 - march_year / 100 + march_year / 400 + day_of_year -
         719'468;
}

bool take_fraction(std::string_view& text, std::int64_t& nanos) {
  if (text.empty() || text.front() != '.') return true;
  text.remove_prefix(1);
  std::int64_t unit = kNanosPerSecond;
  bool any = false;
  while (!text.empty() && is_digit(text.front())) {
    unit /= 10;
    if (unit == 0) return false;
    nanos += unit * (text.front() - '0');
    text.remove_prefix(1);
    any = true;
  }
  return any;
}

bool take_zone(std::string_view& text, std::int64_t& offset_s) {
  if (text.empty() || text == "Z") {
    text = {};
    return true;
  }
  const bool west = text.front() == '-';
  if (!west && text.front() != '+') return false;
  text.remove_prefix(1);
  std::int64_t hours = 0;
  std::int64_t minutes = 0;
  if (!take_number(text, 2, ":", hours) || !take_number(text, 2, "", minutes)) return false;
  if (hours > 23 || minutes > 59) return false;
  offset_s = (west ? -1 : 1) * (hours * 3600 + minutes * 60);
  return true;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  shown += text.size() > kShown ? "...'" : "'";
  return shown;
}

RowFault parse_whole(std::string_view text, const char* field, std::int64_t high,
                     std::int64_t& out) {
  if (text.empty()) return missing(field);
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, out);
  if (code == std::errc::invalid_argument || rest != end) {
    return {"bad_number",
            fmt::format("{} is {}, which is no whole number", field, in_quotes(text))};
  }
  if (text.front() == '-') return negative(field, text);
  if (code == std::errc::result_out_of_range || out > high) return too_large(field, text);
  return {};
}

RowFault parse_tokens(std::string_view text, const char* field, std::int64_t& out) {
  return parse_whole(text, field, kRequestTokensMax, out);
}

RowFault parse_nanos(std::string_view text, const char* field, int unit_exponent,
                     std::int64_t& out) {
  if (text.empty()) return missing(field);
  const bool minus = text.front() == '-';
  Decimal number = parse_decimal(text.substr(minus ? 1 : 0));
  if (!number.valid) return bad_time(field, text);
  if (minus && number.digits != 0) return negative(field, text);
  number.exponent += unit_exponent;
  if (number.digits == 0 || number.exponent < -19) {
    out = 0;
    return {};
  }
  std::uint64_t value = number.digits;
  for (; number.exponent > 0; --number.exponent) {
    if (value > static_cast<std::uint64_t>(kNanosMax) / 10) return too_large(field, text);
    value *= 10;
  }
  for (; number.exponent < -1; ++number.exponent) value /= 10;
  if (number.exponent == -1) value = (value + 5) / 10;
  if (value > static_cast<std::uint64_t>(kNanosMax)) return too_large(field, text);
  out = static_cast<std::int64_t>(value);
  return {};
}

RowFault parse_timestamp(std::string_view text, const char* field, std::int64_t& out) {
  if (text.empty()) return missing(field);
  std::string_view rest = text;
  std::int64_t year = 0;
  std::int64_t month = 0;
  std::int64_t day = 0;
  std::int64_t hour = 0;
  std::int64_t minute = 0;
  std::int64_t second = 0;
  std::int64_t nanos = 0;
  std::int64_t offset_s = 0;
  const bool read = take_number(rest, 4, "-", year) && take_number(rest, 2, "-", month) &&
                    take_number(rest, 2, " T", day) && take_number(rest, 2, ":", hour) &&
                    take_number(rest, 2, ":", minute) && take_number(rest, 2, "", second) &&
                    take_fraction(rest, nanos) && take_zone(rest, offset_s) && rest.empty();
  // 60 is a leap second; it counts as the first second of the next minute, as POSIX time has it.
  if (!read || year < 1970 || year > 2100 || month < 1 || month > 12 || day < 1 || day > 31 ||
      hour > 23 || minute > 59 || second > 60) {
    return bad_time(field, text);
  }
  const std::int64_t seconds =
      days_since_epoch(year, month, day) * 86'400 + hour * 3600 + minute * 60 + second - offset_s;
  out = seconds * kNanosPerSecond + nanos;
  return {};
}

}  // namespace packstone::sim
