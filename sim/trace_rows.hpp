// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the readers of the formats share: a parser turns one line into one row, the loop in
/// trace.cpp counts rows and applies OnBadRow and the limits, and `finish` does what needs all
/// rows.

#include <sim/trace.hpp>
#include <sim/trace_number.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace packstone::sim {

struct Row {
  Request request;
  std::vector<std::uint64_t> ids;
};

class RowParser {
 public:
  RowParser() = default;
  RowParser(const RowParser&) = delete;
  RowParser& operator=(const RowParser&) = delete;
  virtual ~RowParser() = default;

  /// Fills `row`, which comes in empty. Unless a fault comes back, the row is emitted.
  [[nodiscard]] virtual RowFault parse(std::string_view line, Row& row) = 0;
  /// Called once after the last row with all emitted requests in file order.
  /// Returns what a limit forbids, or an empty text.
  [[nodiscard]] virtual std::string finish(RequestList& /*list*/) { return {}; }
};

/// For a CSV format; `header` is its first line. A fault when a column is missing.
[[nodiscard]] std::unique_ptr<RowParser> make_csv_parser(TraceFormat format,
                                                         std::string_view header,
                                                         const TraceOptions& options,
                                                         RowFault& fault);
[[nodiscard]] std::unique_ptr<RowParser> make_json_parser(TraceFormat format,
                                                          const TraceOptions& options);

/// The format of the input whose first line is `line`; automatic when it looks like none.
[[nodiscard]] TraceFormat detect_format(std::string_view line);

/// The fields of a CSV line; quotes around a field are taken off, a comma inside quotes does not
/// separate.
void split_csv(std::string_view line, std::vector<std::string_view>& fields);

/// Faults of a row's lengths as a whole: empty_request (0 and 0), zero_input.
[[nodiscard]] RowFault check_lengths(const Request& request);

/// Whether a fault is one of the data rather than of the file, so that it is dropped and counted
/// under every OnBadRow: published traces log failed requests as rows of 0 and 0.
[[nodiscard]] bool always_dropped(const RowFault& fault);

/// Numbers for session names: a name that is a number below 2^62 keeps it, others count up from
/// 2^62.
class SessionNames {
 public:
  [[nodiscard]] std::int64_t number_of(std::string_view name);

 private:
  std::unordered_map<std::string, std::int64_t> numbers_;
};

/// Rounds of closed-loop sessions, as TraceLab has them: prefix and wait lengths turned into block
/// ids and think times once all rounds are known.
class SessionRounds {
 public:
  struct Round {
    std::int64_t session{0};
    std::int64_t index{0};  ///< orders the rounds of a session
    std::int64_t prefix_tokens{
        0};                     ///< leading tokens of the prompt that the previous round had too
    std::int64_t begin_ns{-1};  ///< when its first event was, -1 when unknown
    std::int64_t end_ns{-1};    ///< when its last event was, -1 when unknown
    std::int64_t wait_after_ns{0};  ///< used when the times are unknown
  };
  /// One call for each emitted request, in file order.
  void add(const Round& round) { rounds_.push_back(round); }
  /// Sets think times, arrivals, order and block ids. A limit as text, or empty.
  [[nodiscard]] std::string apply(RequestList& list, const TraceOptions& options) const;

 private:
  std::vector<Round> rounds_;
};

}  // namespace packstone::sim
