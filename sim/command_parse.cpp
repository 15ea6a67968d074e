// SPDX-License-Identifier: Apache-2.0
#include <packstone/draft_tree.hpp>
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/command_parse.hpp>

#include <algorithm>
#include <charconv>

namespace packstone::sim {

namespace {

/// A whole number of all of `text` in [low, high].
std::int64_t whole(const std::string& text, std::int64_t low, std::int64_t high,
                   const char* option) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw InvalidArgument(
        fmt::format("{}: '{}' is not a whole number between {} and {}", option, text, low, high));
  }
  return value;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::vector<std::string> split(const std::string& text, const char* option) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    const auto same = std::count(parts.begin(), parts.end(), parts.back());
    if (parts.back().empty()) throw InvalidArgument(fmt::format("{}: an empty part", option));
    if (same > 1) throw InvalidArgument(fmt::format("{}: {} stands twice", option, parts.back()));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> page_sizes_of(const std::string& text) {
  constexpr std::int64_t kMost = 1 << 20;
  std::vector<std::int64_t> sizes;
  for (const std::string& part : split(text, "--page-size")) {
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc{} || end != part.data() + part.size() || size < 1 || size > kMost) {
      throw InvalidArgument(fmt::format("--page-size: {} is not between 1 and {}", part, kMost));
    }
    sizes.push_back(size);
  }
  return sizes;
}

DraftingOptions speculate_from(const std::string& text) {
  if (text == "off") return {};
  const std::vector<std::string> parts = parts_of(text);
  DraftingOptions options;
  if (parts.size() != 3) throw InvalidArgument("--speculate: '" + text + "' is not MODE:K:Q");
  if (parts[0] == "rollback") {
    options.mode = SpeculationMode::rollback;
  } else if (parts[0] == "reserve") {
    options.mode = SpeculationMode::reserve_tail;
  } else if (parts[0] == "front") {
    options.mode = SpeculationMode::tree_front;
  } else {
    throw InvalidArgument("--speculate: " + parts[0] + " is none of rollback, reserve, front");
  }
  options.nodes =
      static_cast<std::int32_t>(whole(parts[1], 1, DraftTree::kNodesMax, "--speculate"));
  const std::string& q = parts[2];
  const auto [end, error] = std::from_chars(q.data(), q.data() + q.size(), options.acceptance);
  if (error != std::errc{} || end != q.data() + q.size() ||
      !(options.acceptance >= 0.0 && options.acceptance <= 1.0)) {
    throw InvalidArgument("--speculate: the acceptance '" + q + "' is not between 0 and 1");
  }
  return options;
}

void defrag_from(const std::string& text, DefragOptions& options) {
  const std::vector<std::string> parts = parts_of(text);
  if (parts.size() != 2) {
    throw InvalidArgument("--defrag: '" + text + "' is not OBJECTIVE:PAGES_PER_STEP");
  }
  for (const PlanObjective objective :
       {PlanObjective::frontier, PlanObjective::straighten, PlanObjective::granules}) {
    if (parts[0] == to_string(objective)) options.objective = objective;
  }
  if (!options.objective) {
    throw InvalidArgument("--defrag: " + parts[0] + " is none of frontier, straighten, granules");
  }
  options.pages_per_step = whole(parts[1], 1, 1 << 30, "--defrag");
}

std::string described(const DraftingOptions& options) {
  switch (options.mode) {
    case SpeculationMode::none:
      return "off";
    case SpeculationMode::rollback:
      return fmt::format("rollback:{}:{}", options.nodes, options.acceptance);
    case SpeculationMode::reserve_tail:
      return fmt::format("reserve:{}:{}", options.nodes, options.acceptance);
    case SpeculationMode::tree_front:
      return fmt::format("front:{}:{}", options.nodes, options.acceptance);
  }
  return "off";
}

}  // namespace packstone::sim
