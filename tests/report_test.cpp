// SPDX-License-Identifier: Apache-2.0
// The report page: self-contained, with sound data inside. How it looks is checked in a browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sim/report.hpp>
#include <sim/workload.hpp>

#include <string>

namespace packstone::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Study study(const std::string& name) {
  Study result;
  Workload workload = make_workload("chat-azure:requests=200", 2);
  result.source = "workload";
  result.name = name;
  result.list = std::move(workload.list);
  RunOptions options;
  options.pool_tokens = 32'768;
  options.scheduler.concurrency = 16;
  options.samples = 10;
  options.map_columns = 40;
  options.policy = "fifo";
  result.options.push_back(options);
  options.policy = "run";
  result.options.push_back(options);
  result.results = run_all(result.list, result.options, 2);
  return result;
}

nlohmann::json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Report, IsOneFileThatNeedsNoNetwork) {
  const std::string page = report_html(study("x"));
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  for (const char* outside : {"src=\"", "href=", "@import", "url(", "fetch(", "https://"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("measured-cpu"));
  EXPECT_THAT(page, HasSubstr("modelled"));
}

TEST(Report, DataIsSound) {
  const auto data = data_of(report_html(study("x")));
  ASSERT_EQ(data["runs"].size(), 2U);
  for (const auto& run : data["runs"]) {
    const std::size_t samples = run["turnovers"].size();
    EXPECT_GT(samples, 9U);
    EXPECT_EQ(run["map"].size(), samples);
    EXPECT_EQ(run["steady_flags"].size(), samples);
    for (const auto& row : run["map"]) EXPECT_EQ(row.get<std::string>().size(), 80U);
    for (const auto& [name, values] : run["series"].items()) {
      EXPECT_EQ(values.size(), samples) << name;
    }
    double sum = 0.0;
    for (const auto& share : run["run_shares"]) sum += share.get<double>();
    EXPECT_NEAR(sum, 1.0, 1e-3);
  }
}

TEST(Report, AHostileNameStaysText) {
  const std::string name = "</script><script>alert(1)</script>\xff.csv";
  const std::string page = report_html(study(name));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(data_of(page)["meta"]["source"]["name"].get<std::string>(),
              HasSubstr("</script><script>alert(1)</script>"));
}

}  // namespace
}  // namespace packstone::sim
