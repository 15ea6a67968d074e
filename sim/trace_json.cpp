// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/trace_json_row.hpp>
#include <sim/trace_rows.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_set>

namespace packstone::sim {
namespace {

RowFault not_a_number(const char* field) {
  return {"bad_number", fmt::format("{} is no whole number", field)};
}

RowFault take_whole(const Scalar& scalar, const char* field, std::uint64_t high,
                    std::int64_t& out) {
  switch (scalar.kind) {
    case Scalar::Kind::absent:
    case Scalar::Kind::null:
      return {"missing_field", fmt::format("{} is missing", field)};
    case Scalar::Kind::negative:
      return {"negative", fmt::format("{} is {}, which is negative", field, scalar.text)};
    case Scalar::Kind::whole:
      if (scalar.whole > high) {
        return {"out_of_range", fmt::format("{} is {}, which is too large", field, scalar.whole)};
      }
      out = static_cast<std::int64_t>(scalar.whole);
      return {};
    case Scalar::Kind::real:
    case Scalar::Kind::text:
      return {"bad_number",
              fmt::format("{} is {}, which is no whole number", field, in_quotes(scalar.text))};
    default:
      return not_a_number(field);
  }
}

RowFault take_tokens(const Scalar& scalar, const char* field, std::int64_t& out) {
  return take_whole(scalar, field, static_cast<std::uint64_t>(kRequestTokensMax), out);
}

RowFault take_nanos(const Scalar& scalar, const char* field, int unit_exponent, std::int64_t& out) {
  switch (scalar.kind) {
    case Scalar::Kind::absent:
    case Scalar::Kind::null:
      return {"missing_field", fmt::format("{} is missing", field)};
    case Scalar::Kind::whole:
      return parse_nanos(fmt::format("{}", scalar.whole), field, unit_exponent, out);
    case Scalar::Kind::negative:
    case Scalar::Kind::real:
      return parse_nanos(scalar.text, field, unit_exponent, out);
    default:
      return {"bad_time", fmt::format("{} is no number", field)};
  }
}

constexpr std::uint64_t kIdMax =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Whether the ids of a row cover its prompt, by the block size that the user or the format gives.
RowFault check_ids(std::int64_t prompt, std::size_t ids, std::int64_t block, bool floor,
                   bool ceiling) {
  const std::int64_t whole = prompt / block;
  const std::int64_t all = pages_for(prompt, block);
  const auto count = static_cast<std::int64_t>(ids);
  if ((floor && count == whole) || (ceiling && count == all)) return {};
  return {"ids_and_length",
          fmt::format("hash_ids holds {} ids, but {} tokens in blocks of {} take {}; is the block "
                      "size right?",
                      count, prompt, block, ceiling ? all : whole)};
}

class MooncakeParser final : public RowParser {
 public:
  explicit MooncakeParser(const TraceOptions& options)
      : block_(options.block_tokens),
        floor_(options.full_blocks_only),
        handler_(kWanted, "hash_ids", {}) {}

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    if (auto fault = handler_.read(line, row.ids)) return fault;
    if (auto fault = take_nanos(handler_[0], "timestamp", 6, request.arrival_ns)) return fault;
    if (auto fault = take_tokens(handler_[1], "input_length", request.prompt_tokens)) {
      return fault;
    }
    if (auto fault = take_tokens(handler_[2], "output_length", request.output_tokens)) {
      return fault;
    }
    if (handler_.has_ids()) {
      RowFault fault = check_ids(request.prompt_tokens, row.ids.size(), block_, floor_, !floor_);
      if (fault) return fault;
    }
    if (auto fault = parse_extra(row)) return fault;
    if (request.session_id >= 0) sessions_.insert(request.session_id);
    return {};
  }

 private:
  static constexpr std::array kWanted{
      "timestamp",   "input_length", "output_length", "session_id",      "think_time",
      "abort_after", "request_id",   "client",        "unshared_blocks", "abort_at"};

  [[nodiscard]] bool has(std::size_t wanted) const {
    return handler_[wanted].kind != Scalar::Kind::absent;
  }

  RowFault parse_extra(Row& row) {
    Request& request = row.request;
    std::int64_t client = -1;
    std::int64_t unshared = 0;
    if (has(3)) {
      if (handler_[3].kind == Scalar::Kind::text) {
        request.session_id = names_.number_of(handler_[3].text);
      } else if (auto fault = take_whole(handler_[3], "session_id", kIdMax, request.session_id)) {
        return fault;
      }
    }
    if (has(4)) {
      if (auto fault = take_nanos(handler_[4], "think_time", 6, request.think_ns)) return fault;
      if (sessions_.count(request.session_id) == 0) {
        return {"bad_session", "think_time is given, but no earlier row has this session_id"};
      }
    }
    if (has(5)) {
      if (auto fault = take_tokens(handler_[5], "abort_after", request.abort_after_tokens)) {
        return fault;
      }
    }
    if (has(6)) {
      if (auto fault = take_whole(handler_[6], "request_id", kIdMax, request.source_id)) {
        return fault;
      }
    }
    if (has(7)) {
      constexpr std::uint64_t kClientMax = std::numeric_limits<std::int32_t>::max();
      if (auto fault = take_whole(handler_[7], "client", kClientMax, client)) return fault;
      request.client = static_cast<std::int32_t>(client);
    }
    if (has(8)) {
      if (auto fault = take_whole(handler_[8], "unshared_blocks", row.ids.size(), unshared)) {
        return fault;
      }
      row.ids.resize(row.ids.size() - static_cast<std::size_t>(unshared));
    }
    if (has(9)) {
      if (auto fault = take_nanos(handler_[9], "abort_at", 6, request.abort_at_ns)) return fault;
    }
    return check_lengths(request);
  }

  std::int64_t block_;
  bool floor_;
  RowHandler handler_;
  SessionNames names_;
  std::unordered_set<std::int64_t> sessions_;
};

// Rows of one chat form a session, named by the chat at its root.
class BailianParser final : public RowParser {
 public:
  explicit BailianParser(const TraceOptions& options)
      : block_(options.block_tokens), handler_(kWanted, "hash_ids", {}) {}

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    std::int64_t parent = -1;
    if (auto fault = handler_.read(line, row.ids)) return fault;
    if (auto fault = take_nanos(handler_[0], "timestamp", 9, request.arrival_ns)) return fault;
    if (auto fault = take_tokens(handler_[1], "input_length", request.prompt_tokens)) {
      return fault;
    }
    if (auto fault = take_tokens(handler_[2], "output_length", request.output_tokens)) {
      return fault;
    }
    if (auto fault = take_whole(handler_[3], "chat_id", kIdMax, request.source_id)) return fault;
    const Scalar& given = handler_[4];
    const bool root = given.kind == Scalar::Kind::absent || given.kind == Scalar::Kind::null ||
                      (given.kind == Scalar::Kind::negative && given.text == "-1");
    if (!root) {
      if (auto fault = take_whole(given, "parent_chat_id", kIdMax, parent)) return fault;
    }
    if (!handler_.has_ids()) return {"missing_field", "hash_ids is missing"};
    if (auto fault = check_ids(request.prompt_tokens, row.ids.size(), block_, true, true)) {
      return fault;
    }
    if (auto fault = check_lengths(request)) return fault;
    request.session_id = root_of(request.source_id, parent);
    return {};
  }

 private:
  static constexpr std::array kWanted{"timestamp", "input_length", "output_length", "chat_id",
                                      "parent_chat_id"};

  // A parent before the start of the trace is a root that was not seen.
  std::int64_t root_of(std::int64_t chat, std::int64_t parent) {
    std::int64_t root = chat;
    if (parent >= 0) {
      const auto known = roots_.find(parent);
      root = known == roots_.end() ? parent : known->second;
    }
    roots_[chat] = root;
    return root;
  }

  std::int64_t block_;
  RowHandler handler_;
  std::unordered_map<std::int64_t, std::int64_t> roots_;
};

class TraceLabJsonParser final : public RowParser {
 public:
  explicit TraceLabJsonParser(const TraceOptions& options)
      : options_(options),
        handler_(kWanted, nullptr,
                 {{"timing_events", "timestamp", {}}, {"tools", "tool_wall_latency_ms", {}}}) {}

  RowFault parse(std::string_view line, Row& row) override {
    Request& request = row.request;
    SessionRounds::Round round;
    if (auto fault = handler_.read(line, row.ids)) return fault;
    const Scalar& session = handler_[0];
    if (session.kind != Scalar::Kind::text || session.text.empty()) {
      return {"missing_field", "session_id is missing, or no text"};
    }
    if (auto fault = take_whole(handler_[1], "round_index", kIdMax, round.index)) return fault;
    if (auto fault = take_tokens(handler_[2], "input_tokens_total", request.prompt_tokens)) {
      return fault;
    }
    if (auto fault = take_tokens(handler_[3], "prefix_tokens", round.prefix_tokens)) return fault;
    if (auto fault = take_tokens(handler_[4], "output_tokens", request.output_tokens)) {
      return fault;
    }
    if (round.prefix_tokens > request.prompt_tokens) {
      return {"ids_and_length", "prefix_tokens is more than input_tokens_total"};
    }
    if (auto fault = take_times(round)) return fault;
    if (round.begin_ns < 0) {
      return {"missing_field", "timing_events has no timestamp"};
    }
    request.arrival_ns = round.begin_ns;
    if (auto fault = check_lengths(request)) return fault;
    round.session = names_.number_of(session.text);
    request.session_id = round.session;
    rounds_.add(round);
    return {};
  }

  std::string finish(RequestList& list) override { return rounds_.apply(list, options_); }

 private:
  static constexpr std::array kWanted{"session_id", "round_index", "input_tokens_total",
                                      "prefix_tokens", "output_tokens"};

  RowFault take_times(SessionRounds::Round& round) const {
    for (const Scalar& stamp : handler_.nested(0)) {
      std::int64_t at = 0;
      if (stamp.kind == Scalar::Kind::null) continue;
      if (stamp.kind != Scalar::Kind::text) return {"bad_time", "a timestamp is no text"};
      if (auto fault = parse_timestamp(stamp.text, "timestamp", at)) return fault;
      round.begin_ns = round.begin_ns < 0 ? at : std::min(round.begin_ns, at);
      round.end_ns = std::max(round.end_ns, at);
    }
    for (const Scalar& latency : handler_.nested(1)) {
      std::int64_t wait = 0;
      if (latency.kind == Scalar::Kind::null) continue;
      if (auto fault = take_nanos(latency, "tool_wall_latency_ms", 6, wait)) return fault;
      // Tools of one round run side by side.
      round.wait_after_ns = std::max(round.wait_after_ns, wait);
    }
    return {};
  }

  TraceOptions options_;
  RowHandler handler_;
  SessionNames names_;
  SessionRounds rounds_;
};

}  // namespace

std::unique_ptr<RowParser> make_json_parser(TraceFormat format, const TraceOptions& options) {
  switch (format) {
    case TraceFormat::mooncake:
      return std::make_unique<MooncakeParser>(options);
    case TraceFormat::bailian:
      return std::make_unique<BailianParser>(options);
    case TraceFormat::tracelab_jsonl:
      return std::make_unique<TraceLabJsonParser>(options);
    default:
      break;
  }
  PACKSTONE_ASSERT(false && "no JSON format");
  return nullptr;
}

}  // namespace packstone::sim
