// SPDX-License-Identifier: Apache-2.0
// The text is parsed by the rules of the exposition format, not compared with itself.
#include <packstone/metrics.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace packstone {
namespace {

/// Value by name and labels. Fails the test for a line that the format does not allow, a sample
/// without HELP and TYPE before it, a name whose samples do not stand together, a sample twice.
std::map<std::string, std::int64_t> parse(const std::string& text) {
  std::map<std::string, std::int64_t> samples;
  const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (([^\\\n]|\\\\|\\n)*))");
  const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge))");
  const std::string label = R"([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\\\|\\"|\\n)*")";
  const std::regex sample("([a-zA-Z_:][a-zA-Z0-9_:]*)((\\{" + label + "(," + label +
                          ")*\\})?) (-?[0-9]+)");
  std::set<std::string> closed;
  std::string described;
  std::string typed;
  std::string kind;
  EXPECT_TRUE(text.empty() || text.back() == '\n');
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      if (!described.empty()) closed.insert(described);
      described = match[1];
      EXPECT_FALSE(closed.contains(described)) << described << " stands in two places";
    } else if (std::regex_match(line, match, type)) {
      typed = match[1];
      kind = match[2];
      EXPECT_EQ(typed, described);
    } else if (std::regex_match(line, match, sample)) {
      EXPECT_EQ(match[1], typed) << line;
      EXPECT_TRUE(kind != "counter" || match[1].str().ends_with("_total")) << line;
      const std::int64_t value = std::stoll(match[match.size() - 1]);
      EXPECT_TRUE(kind != "counter" || value >= 0) << line;
      EXPECT_TRUE(samples.emplace(match[1].str() + match[2].str(), value).second) << line;
    } else {
      ADD_FAILURE() << "no line of the format: " << line;
    }
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
