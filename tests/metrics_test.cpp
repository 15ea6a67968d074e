// SPDX-License-Identifier: Apache-2.0
// The text is parsed by the rules of the exposition format, not compared with itself.
#include <packstone/metrics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace packstone {
namespace {

/// Reads the format by its grammar, left to right.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}
  bool literal(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  std::string name(bool colons) {
    std::size_t n = 0;
    while (n < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[n])) != 0 ||
                                rest_[n] == '_' || (colons && rest_[n] == ':'))) {
      ++n;
    }
    if (n > 0 && std::isdigit(static_cast<unsigned char>(rest_[0])) != 0) return {};
    return take(n);
  }
  /// Up to the quote (or the end without one), where each backslash escapes an allowed character.
  bool escaped(std::string_view allowed, bool quoted) {
    while (!rest_.empty() && !(quoted && rest_[0] == '"')) {
      const bool escape = rest_[0] == '\\';
      if (escape && (rest_.size() < 2 || allowed.find(rest_[1]) == std::string_view::npos)) {
        return false;
      }
      rest_.remove_prefix(escape ? 2 : 1);
    }
    return !quoted || literal("\"");
  }
  bool labels() {
    if (!literal("{")) return true;
    do {
      if (name(false).empty() || !literal("=\"") || !escaped("\\\"n", true)) return false;
    } while (literal(","));
    return literal("}");
  }
  std::optional<std::int64_t> number() {
    const std::string text = take(rest_.size());
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::string take(std::size_t n) {
    const std::string result(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return result;
  }
  std::string_view rest_;
};

/// Value by name and labels. Fails the test for a line that the format does not allow, a sample
/// without HELP and TYPE before it, a name whose samples do not stand together, a sample twice.
std::map<std::string, std::int64_t> parse(const std::string& text) {
  std::map<std::string, std::int64_t> samples;
  std::set<std::string> described;
  std::string current;
  std::string kind;
  EXPECT_TRUE(text.empty() || text.back() == '\n');
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    Line line(each);
    if (line.literal("# HELP ")) {
      current = line.name(true);
      kind.clear();
      EXPECT_TRUE(described.insert(current).second) << current << " stands in two places";
      EXPECT_TRUE(!current.empty() && line.literal(" ") && line.escaped("\\n", false)) << each;
      continue;
    }
    if (line.literal("# TYPE ")) {
      EXPECT_EQ(line.name(true), current) << each;
      EXPECT_TRUE(line.literal(" ")) << each;
      kind = line.name(false);
      EXPECT_TRUE((kind == "counter" || kind == "gauge") && line.left() == 0) << each;
      continue;
    }
    const std::string name = line.name(true);
    EXPECT_EQ(name, current) << each;
    EXPECT_TRUE(!kind.empty() && (kind != "counter" || name.ends_with("_total"))) << each;
    EXPECT_TRUE(line.labels()) << each;
    const std::string key = each.substr(0, each.size() - line.left());
    EXPECT_TRUE(line.literal(" ")) << each;
    const std::optional<std::int64_t> value = line.number();
    EXPECT_TRUE(value.has_value() && (kind != "counter" || *value >= 0)) << each;
    EXPECT_TRUE(samples.emplace(key, value.value_or(0)).second) << each;
  }
  return samples;
}

TEST(Metrics, TheTextParsesAndHoldsTheStateOfManagerCacheAndPlanner) {
  KvManager manager({.pages = 32, .page_size = 4, .policy = "fifo"});
  PrefixCache cache(manager.allocator(), {.page_size = 4});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 10), Status::ok);
  const std::vector<std::int64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const PrefixKey key{.ids = ids};
  cache.unlock(cache.insert(key, manager.pages(seq)).lock);
  cache.unlock(cache.match(key).lock);
  EXPECT_EQ(manager.append(seq, 1000), Status::out_of_pages);
  PlannerCounters planner;
  planner.add(plan_moves(manager.snapshot(), {.objective = PlanObjective::frontier}));

  Metrics metrics;
  metrics.add(manager, {{"pool", "full"}});
  metrics.add(cache, {{"pool", "full"}});
  metrics.add(planner);
  metrics.add(manager, {{"pool", "draft"}});  // a second pool joins the same families
  const auto samples = parse(metrics.text());
  EXPECT_EQ(samples.at(R"(packstone_pages{pool="full",state="live"})"), 3);
  EXPECT_EQ(samples.at(R"(packstone_pages{pool="full",state="free"})"), 28);
  EXPECT_EQ(samples.at(R"(packstone_pages{pool="draft",state="free"})"), 28);
  EXPECT_EQ(samples.at(R"(packstone_tokens{pool="full"})"), 10);
  EXPECT_EQ(samples.at(R"(packstone_table_runs{pool="full"})"), 1);
  EXPECT_EQ(samples.at(R"(packstone_free_run_longest_pages{pool="full"})"), 28);
  EXPECT_EQ(samples.at(R"(packstone_shortages_total{pool="full"})"), 1);
  EXPECT_EQ(samples.at(R"(packstone_prefix_pages{pool="full"})"), 2);
  EXPECT_EQ(samples.at(R"(packstone_prefix_tokens_hit_total{pool="full"})"), 8);
  EXPECT_EQ(samples.at("packstone_plans_total"), 1);
  EXPECT_EQ(samples.at("packstone_plans_empty_total"), 1);
}

TEST(Metrics, LabelsAndHelpAreEscapedAndBadNamesRefused) {
  Metrics metrics;
  metrics.gauge("a_gauge", "two\nlines and a \\", 1, {{"path", "C:\\\"x\"\n"}});
  const auto samples = parse(metrics.text());
  EXPECT_EQ(samples.size(), 1U);
  EXPECT_EQ(samples.begin()->first, R"(a_gauge{path="C:\\\"x\"\n"})");
  EXPECT_THROW(metrics.gauge("1st", "", 0), InvalidArgument);
  EXPECT_THROW(metrics.gauge("", "", 0), InvalidArgument);
  EXPECT_THROW(metrics.gauge("ok", "", 0, {{"a-b", ""}}), InvalidArgument);
  EXPECT_THROW(metrics.counter("a_gauge", "", 0), InvalidArgument);
  EXPECT_EQ(Metrics().text(), "");
}

}  // namespace
}  // namespace packstone
