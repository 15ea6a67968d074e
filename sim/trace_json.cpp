// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sim/trace_rows.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

namespace packstone::sim {
namespace {

// A scalar of a row. Numbers keep their text where it matters: times are read from it, not through
// a double.
struct Scalar {
  enum class Kind : std::uint8_t { absent, null, boolean, whole, negative, real, text, structure };
  Kind kind{Kind::absent};
  std::uint64_t whole{0};  // of `whole`, and of `boolean`
  std::string text;        // of `negative`, `real` and `text`
};

// Receives the events of one JSON line: the scalars under the wanted top-level keys, one array of
// whole numbers, and the scalars under one key of the objects inside a top-level array. Everything
// else passes by.
class RowHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Nested {
    const char* array;
    const char* key;
    std::vector<Scalar> values;
  };

  RowHandler(std::span<const char* const> wanted, const char* ids_key, std::vector<Nested> nested)
      : wanted_(wanted), ids_key_(ids_key), nested_(std::move(nested)) {
    scalars_.resize(wanted.size());
  }

  RowFault read(std::string_view line, std::vector<std::uint64_t>& ids) {
    fault_ = {};
    depth_ = 0;
    ids_ = &ids;
    in_ids_ = false;
    has_ids_ = false;
    slot_ = kNone;
    nested_slot_ = kNone;
    nested_key_ = false;
    for (Scalar& scalar : scalars_) scalar.kind = Scalar::Kind::absent;
    for (Nested& nested : nested_) nested.values.clear();
    const bool read = nlohmann::json::sax_parse(line.begin(), line.end(), this);
    if (!read && !fault_) fault_ = {"bad_json", "is no JSON object"};
    return fault_;
  }

  [[nodiscard]] const Scalar& operator[](std::size_t wanted) const { return scalars_[wanted]; }
  [[nodiscard]] bool has_ids() const { return has_ids_; }
  [[nodiscard]] const std::vector<Scalar>& nested(std::size_t which) const {
    return nested_[which].values;
  }

  bool null() override { return scalar(Scalar::Kind::null, 0, {}); }
  bool boolean(bool value) override { return scalar(Scalar::Kind::boolean, value ? 1U : 0U, {}); }
  bool number_integer(number_integer_t value) override {
    return scalar(Scalar::Kind::negative, 0, fmt::format("{}", value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (in_ids_ && depth_ == 2) {
      ids_->push_back(value);
      return true;
    }
    return scalar(Scalar::Kind::whole, value, {});
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return scalar(Scalar::Kind::real, 0, text);
  }
  bool string(string_t& text) override { return scalar(Scalar::Kind::text, 0, text); }
  bool binary(binary_t& /*value*/) override { return refuse("bad_json", "is no JSON text"); }

  bool start_object(std::size_t /*elements*/) override { return open(false); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*elements*/) override { return open(true); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      slot_ = kNone;
      nested_slot_ = kNone;
      ids_next_ = false;
      for (std::size_t i = 0; i < wanted_.size(); ++i) {
        if (name != wanted_[i]) continue;
        slot_ = i;
        if (scalars_[i].kind != Scalar::Kind::absent) return repeated(name);
      }
      for (std::size_t i = 0; i < nested_.size(); ++i) {
        if (name == nested_[i].array) nested_slot_ = i;
      }
      if (ids_key_ != nullptr && name == ids_key_) {
        if (has_ids_) return repeated(name);
        has_ids_ = true;
        ids_next_ = true;
      }
    } else if (depth_ == 3) {
      nested_key_ = nested_slot_ != kNone && name == nested_[nested_slot_].key;
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    fault_ = {"bad_json", fmt::format("is no valid JSON at byte {} of the line", position)};
    return false;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  // Rows of the known formats nest four deep.
  static constexpr std::size_t kDepthMax = 64;

  bool refuse(const char* reason, std::string detail) {
    fault_ = {reason, std::move(detail)};
    return false;
  }
  bool repeated(const std::string& name) {
    return refuse("duplicate_key", fmt::format("the key {} comes twice", name));
  }

  bool scalar(Scalar::Kind kind, std::uint64_t whole, std::string_view text) {
    if (depth_ == 0) return refuse("bad_json", "is no JSON object");
    if (in_ids_ || (ids_next_ && depth_ == 1)) {
      return refuse("bad_id", "hash_ids holds something that is no whole number of 64 bits");
    }
    Scalar* target = nullptr;
    if (depth_ == 1 && slot_ != kNone) {
      target = &scalars_[slot_];
    } else if (depth_ == 3 && nested_key_) {
      target = &nested_[nested_slot_].values.emplace_back();
    }
    if (target != nullptr) {
      target->kind = kind;
      target->whole = whole;
      target->text = text;
    }
    return true;
  }

  bool open(bool array) {
    if (depth_ == 0 && array) return refuse("bad_json", "is no JSON object");
    if (in_ids_) return refuse("bad_id", "hash_ids holds something that is no whole number");
    if (++depth_ > kDepthMax) {
      return refuse("bad_json", fmt::format("nests deeper than {}", kDepthMax));
    }
    if (depth_ == 2) {
      if (ids_next_ && !array) return refuse("bad_id", "hash_ids is no array");
      in_ids_ = ids_next_;
      if (slot_ != kNone) scalars_[slot_].kind = Scalar::Kind::structure;
    }
    nested_key_ = false;
    return true;
  }
  bool close() {
    --depth_;
    in_ids_ = false;
    nested_key_ = false;
    if (depth_ == 1) ids_next_ = false;
    return true;
  }

  std::span<const char* const> wanted_;
  const char* ids_key_;
  std::vector<Nested> nested_;
  std::vector<Scalar> scalars_;
  std::vector<std::uint64_t>* ids_{nullptr};
  RowFault fault_;
  std::size_t depth_{0};
  std::size_t slot_{kNone};
  std::size_t nested_slot_{kNone};
  bool nested_key_{false};
  bool ids_next_{false};
  bool in_ids_{false};
  bool has_ids_{false};
};

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
      const RowFault fault =
          check_ids(request.prompt_tokens, row.ids.size(), block_, floor_, !floor_);
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
