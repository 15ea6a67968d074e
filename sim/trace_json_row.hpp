// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One JSON line taken apart without a document: only the scalars that a reader asks for are kept.

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sim/trace_number.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace packstone::sim {

/// A scalar of a row. Numbers keep their text where it matters: times are read from it, not through
/// a double.
struct Scalar {
  enum class Kind : std::uint8_t { absent, null, boolean, whole, negative, real, text, structure };
  Kind kind{Kind::absent};
  std::uint64_t whole{0};  // of `whole`, and of `boolean`
  std::string text;        // of `negative`, `real` and `text`
};

/// Receives the events of one JSON line: the scalars under the wanted top-level keys, one array of
/// whole numbers, and the scalars under one key of the objects inside a top-level array. Everything
/// else passes by.
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

}  // namespace packstone::sim
