// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/trace_rows.hpp>

#include <cstddef>

namespace packstone::sim {
namespace {

// Columns found by name in a header; the same names in another order are the same table.
class Columns {
 public:
  explicit Columns(std::string_view header) {
    std::vector<std::string_view> names;
    split_csv(header, names);
    for (const std::string_view name : names) names_.emplace_back(name);
  }

  // kAbsent when there is no such column; a fault when it is needed, or there twice.
  std::size_t find(const char* name, bool needed, RowFault& fault) const {
    std::size_t found = kAbsent;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] != name) continue;
      if (found != kAbsent && !fault)
        fault = {"bad_header", fmt::format("two columns are called {}", name)};
      found = i;
    }
    if (found == kAbsent && needed && !fault) {
      fault = {"bad_header", fmt::format("the header has no column {}", name)};
    }
    return found;
  }

  RowFault split(std::string_view line) {
    split_csv(line, fields_);
    if (fields_.size() == names_.size()) return {};
    return {fields_.size() < names_.size() ? "missing_column" : "extra_column",
            fmt::format("the row has {} fields, the header {}", fields_.size(), names_.size())};
  }
  [[nodiscard]] std::string_view operator[](std::size_t column) const { return fields_[column]; }

  static constexpr std::size_t kAbsent = ~std::size_t{0};

 private:
  std::vector<std::string> names_;
  std::vector<std::string_view> fields_;
};

class AzureParser final : public RowParser {
 public:
  AzureParser(std::string_view header, RowFault& fault)
      : columns_(header),
        time_(columns_.find("TIMESTAMP", true, fault)),
        input_(columns_.find("ContextTokens", true, fault)),
        output_(columns_.find("GeneratedTokens", true, fault)) {}

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    if (auto fault = columns_.split(line)) return fault;
    if (auto fault = parse_timestamp(columns_[time_], "TIMESTAMP", request.arrival_ns)) {
      return fault;
    }
    if (auto fault = parse_tokens(columns_[input_], "ContextTokens", request.prompt_tokens)) {
      return fault;
    }
    return parse_tokens(columns_[output_], "GeneratedTokens", request.output_tokens);
  }

 private:
  Columns columns_;
  std::size_t time_;
  std::size_t input_;
  std::size_t output_;
};

class BurstGptParser final : public RowParser {
 public:
  BurstGptParser(std::string_view header, RowFault& fault)
      : columns_(header),
        time_(columns_.find("Timestamp", true, fault)),
        input_(columns_.find("Request tokens", true, fault)),
        output_(columns_.find("Response tokens", true, fault)),
        session_(columns_.find("Session ID", false, fault)) {}

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    if (auto fault = columns_.split(line)) return fault;
    if (auto fault = parse_nanos(columns_[time_], "Timestamp", 9, request.arrival_ns)) {
      return fault;
    }
    if (auto fault = parse_tokens(columns_[input_], "Request tokens", request.prompt_tokens)) {
      return fault;
    }
    if (auto fault = parse_tokens(columns_[output_], "Response tokens", request.output_tokens)) {
      return fault;
    }
    // API calls have no session; an empty field is then no fault.
    if (session_ != Columns::kAbsent && !columns_[session_].empty()) {
      request.session_id = names_.number_of(columns_[session_]);
    }
    return {};
  }

 private:
  Columns columns_;
  std::size_t time_;
  std::size_t input_;
  std::size_t output_;
  std::size_t session_;
  SessionNames names_;
};

// input_len counts the tokens appended in this round and prefix_len those kept of the round before;
// arrival_time is that of the session, in ms.
class TraceLabCsvParser final : public RowParser {
 public:
  TraceLabCsvParser(std::string_view header, const TraceOptions& options, RowFault& fault)
      : options_(options),
        columns_(header),
        session_(columns_.find("session_id", false, fault)),
        time_(columns_.find("arrival_time", true, fault)),
        round_(columns_.find("round_idx", true, fault)),
        prefix_(columns_.find("prefix_len", true, fault)),
        input_(columns_.find("input_len", true, fault)),
        output_(columns_.find("output_len", true, fault)),
        wait_(columns_.find("tool_wait_after_ms", true, fault)) {
    if (session_ == Columns::kAbsent) session_ = columns_.find("id", true, fault);
  }

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    SessionRounds::Round round;
    std::int64_t appended = 0;
    if (auto fault = columns_.split(line)) return fault;
    if (columns_[session_].empty()) return {"missing_field", "the session id is missing"};
    constexpr std::int64_t kRoundsMax = std::int64_t{1} << 40;
    if (auto fault = parse_whole(columns_[round_], "round_idx", kRoundsMax, round.index)) {
      return fault;
    }
    if (auto fault = parse_nanos(columns_[time_], "arrival_time", 6, request.arrival_ns)) {
      return fault;
    }
    if (auto fault = parse_tokens(columns_[prefix_], "prefix_len", round.prefix_tokens)) {
      return fault;
    }
    if (auto fault = parse_tokens(columns_[input_], "input_len", appended)) return fault;
    if (auto fault = parse_tokens(columns_[output_], "output_len", request.output_tokens)) {
      return fault;
    }
    if (auto fault = parse_nanos(columns_[wait_], "tool_wait_after_ms", 6, round.wait_after_ns)) {
      return fault;
    }
    request.prompt_tokens = round.prefix_tokens + appended;
    if (request.prompt_tokens > kRequestTokensMax) {
      return {"out_of_range",
              fmt::format("prefix_len and input_len add up to {} tokens", request.prompt_tokens)};
    }
    if (auto fault = check_lengths(request)) return fault;
    round.session = names_.number_of(columns_[session_]);
    request.session_id = round.session;
    rounds_.add(round);
    return {};
  }

  std::string finish(RequestList& list) override { return rounds_.apply(list, options_); }

 private:
  TraceOptions options_;
  Columns columns_;
  std::size_t session_;
  std::size_t time_;
  std::size_t round_;
  std::size_t prefix_;
  std::size_t input_;
  std::size_t output_;
  std::size_t wait_;
  SessionNames names_;
  SessionRounds rounds_;
};

}  // namespace

std::unique_ptr<RowParser> make_csv_parser(TraceFormat format, std::string_view header,
                                           const TraceOptions& options, RowFault& fault) {
  switch (format) {
    case TraceFormat::azure:
      return std::make_unique<AzureParser>(header, fault);
    case TraceFormat::burstgpt:
      return std::make_unique<BurstGptParser>(header, fault);
    case TraceFormat::tracelab_csv:
      return std::make_unique<TraceLabCsvParser>(header, options, fault);
    default:
      break;
  }
  PACKSTONE_ASSERT(false && "no CSV format");
  return nullptr;
}

}  // namespace packstone::sim
