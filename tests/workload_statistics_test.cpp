// SPDX-License-Identifier: Apache-2.0
// The built-in workloads against the published statistics they stand for. Quantiles and means of
// one run; what varies from run to run (bursts, drift) as the mean of several seeds. Each tolerance
// is written at its value.
#include <gtest/gtest.h>
#include <sim/prng.hpp>
#include <sim/workload.hpp>
#include <sim/workload_parts.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

namespace packstone::sim {
namespace {

std::vector<double> sorted_of(const RequestList& list, std::int64_t Request::*field) {
  std::vector<double> values;
  for (const Request& request : list.requests) {
    values.push_back(static_cast<double>(request.*field));
  }
  std::sort(values.begin(), values.end());
  return values;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

double cv_of(const std::vector<double>& times) {
  const auto n = static_cast<double>(times.size() - 1);
  const double mean = (times.back() - times.front()) / n;
  double squares = 0.0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double off = times[i] - times[i - 1] - mean;
    squares += off * off;
  }
  return std::sqrt(squares / n) / mean;
}

std::vector<double> times_of(const RequestList& list) {
  std::vector<double> times;
  for (const Request& request : list.requests) times.push_back(request.arrival_s());
  return times;
}

// Variance over mean of the counts in whole windows.
double dispersion(const RequestList& list, double window_s) {
  const auto windows = static_cast<std::size_t>(list.requests.back().arrival_s() / window_s);
  std::vector<double> counts(windows + 1);
  for (const Request& request : list.requests) {
    counts[std::min(windows, static_cast<std::size_t>(request.arrival_s() / window_s))] += 1.0;
  }
  counts.pop_back();
  const double mean = mean_of(counts);
  double squares = 0.0;
  for (const double count : counts) squares += (count - mean) * (count - mean);
  return squares / static_cast<double>(counts.size()) / mean;
}

template <typename Statistic>
double over_seeds(const std::string& spec, Statistic&& statistic) {
  constexpr int kSeeds = 24;
  double sum = 0.0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    sum += statistic(make_workload(spec, static_cast<std::uint64_t>(seed)).list);
  }
  return sum / kSeeds;
}

struct Lengths {
  double mean, p10, p50, p90, p99;
};

// Every figure within `tolerance` of the published one; the 99th percentile within twice that.
void expect_lengths(const RequestList& list, std::int64_t Request::*field, const Lengths& published,
                    double tolerance) {
  const auto values = sorted_of(list, field);
  EXPECT_NEAR(mean_of(values), published.mean, tolerance * published.mean);
  EXPECT_NEAR(quantile(values, 0.1), published.p10, tolerance * published.p10 + 1);
  EXPECT_NEAR(quantile(values, 0.5), published.p50, tolerance * published.p50 + 1);
  EXPECT_NEAR(quantile(values, 0.9), published.p90, tolerance * published.p90 + 1);
  EXPECT_NEAR(quantile(values, 0.99), published.p99, 2 * tolerance * published.p99 + 1);
}

TEST(WorkloadStatistics, ChatAzureLengths) {
  const RequestList list = make_workload("chat-azure", 1).list;
  expect_lengths(list, &Request::prompt_tokens, {1155, 207, 1020, 2734, 4142}, 0.03);
  expect_lengths(list, &Request::output_tokens, {211, 54, 129, 424, 601}, 0.03);
}

TEST(WorkloadStatistics, ChatAzureArrivals) {
  const std::string spec = "chat-azure";
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return cv_of(times_of(l)); }), 1.09, 0.05);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 1.0); }), 1.4, 0.15);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 10.0); }), 4.0, 1.0);
  // 16.1 over whole minutes; the published 20.6 counts the cut last minute too.
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 60.0); }), 18.0, 4.0);
  EXPECT_NEAR(make_workload(spec, 1).list.requests.back().arrival_s(), 3502.0, 40.0);
}

TEST(WorkloadStatistics, CodeAzureLengths) {
  const RequestList list = make_workload("code-azure:requests=40000", 1).list;
  expect_lengths(list, &Request::prompt_tokens, {2048, 147, 1469, 5188, 7436}, 0.03);
  expect_lengths(list, &Request::output_tokens, {27.9, 7, 13, 55, 251}, 0.06);
}

TEST(WorkloadStatistics, CodeAzureArrivals) {
  const std::string spec = "code-azure";
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return cv_of(times_of(l)); }), 13.15, 2.0);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 1.0); }), 13.2, 2.6);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 10.0); }), 71.0, 12.0);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 60.0); }), 160.0, 30.0);
  EXPECT_NEAR(make_workload(spec, 1).list.requests.back().arrival_s(), 3436.0, 20.0);
}

TEST(WorkloadStatistics, LongchatMooncakeLengths) {
  const RequestList list = make_workload("longchat-mooncake:requests=40000", 1).list;
  expect_lengths(list, &Request::prompt_tokens, {12035, 964, 6909, 27367, 85400}, 0.04);
  expect_lengths(list, &Request::output_tokens, {343, 24, 350, 597, 1119}, 0.05);
}

TEST(WorkloadStatistics, LongchatMooncakeArrivals) {
  const std::string spec = "longchat-mooncake:tick=3";
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return cv_of(times_of(l)); }), 3.03, 0.15);
  EXPECT_NEAR(over_seeds(spec, [](const auto& l) { return dispersion(l, 1.0); }), 7.9, 1.2);
  EXPECT_NEAR(over_seeds("longchat-mooncake", [](const auto& l) { return dispersion(l, 10.0); }),
              2.1, 0.4);
  EXPECT_NEAR(over_seeds("longchat-mooncake", [](const auto& l) { return dispersion(l, 60.0); }),
              2.8, 0.8);
}

struct Reuse {
  double hit_share;     // of blocks, in an unbounded cache
  double beyond_first;  // share of requests that hit more than block 0
  double gap_p50;       // seconds from the last use of the chain
  double gap_p90;
};

Reuse reuse_of(const RequestList& list) {
  std::map<std::uint64_t, std::int64_t> last_use;
  std::vector<double> gaps;
  std::int64_t hits = 0;
  for (const Request& request : list.requests) {
    const auto blocks = list.blocks_of(request);
    std::size_t run = 0;
    while (run < blocks.size() && last_use.count(blocks[run]) > 0) ++run;
    hits += static_cast<std::int64_t>(run);
    if (run > 1 || (run == 1 && blocks[0] != 0)) {
      gaps.push_back(seconds_of(request.arrival_ns - last_use[blocks[run - 1]]));
    }
    for (const std::uint64_t id : blocks) last_use[id] = request.arrival_ns;
  }
  std::sort(gaps.begin(), gaps.end());
  return {static_cast<double>(hits) / static_cast<double>(list.block_ids.size()),
          static_cast<double>(gaps.size()) / static_cast<double>(list.requests.size()),
          gaps.empty() ? 0.0 : quantile(gaps, 0.5), gaps.empty() ? 0.0 : quantile(gaps, 0.9)};
}

TEST(WorkloadStatistics, LongchatMooncakeReuse) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Reuse reuse = reuse_of(make_workload("longchat-mooncake", seed).list);
    EXPECT_NEAR(reuse.hit_share, 0.366, 0.015);
    EXPECT_NEAR(reuse.beyond_first, 0.387, 0.015);
    EXPECT_NEAR(reuse.gap_p50, 123.0, 25.0);
    EXPECT_NEAR(reuse.gap_p90, 483.0, 100.0);
  }
  EXPECT_EQ(reuse_of(make_workload("longchat-mooncake:continue=0", 1).list).beyond_first, 0.0);
}

// The mean of the clients' own CVs by their requests, as ServeGen gives it; and the largest
// client's share.
struct Clients {
  double cv;
  double top_share;
};
Clients clients_of(const RequestList& list) {
  std::map<std::int32_t, std::vector<double>> times;
  for (const Request& request : list.requests) times[request.client].push_back(request.arrival_s());
  double weighted = 0.0;
  std::size_t top = 0;
  for (const auto& [client, own] : times) {
    if (own.size() >= 10) weighted += cv_of(own) * static_cast<double>(own.size());
    top = std::max(top, own.size());
  }
  const auto n = static_cast<double>(list.requests.size());
  return {weighted / n, static_cast<double>(top) / n};
}

TEST(WorkloadStatistics, ReasonR1) {
  const RequestList list = make_workload("reason-r1:requests=50000", 1).list;
  expect_lengths(list, &Request::prompt_tokens, {1380, 25, 260, 2349, 23612}, 0.05);
  expect_lengths(list, &Request::output_tokens, {1500, 296, 730, 3465, 12584}, 0.05);
  const Clients clients = clients_of(list);
  EXPECT_NEAR(clients.cv, 2.28, 0.25);
  EXPECT_NEAR(clients.top_share, 0.29, 0.03);
}

TEST(WorkloadStatistics, BatchApi) {
  const RequestList list = make_workload("batch-api:requests=50000", 1).list;
  expect_lengths(list, &Request::prompt_tokens, {1020, 75, 688, 2369, 5850}, 0.05);
  expect_lengths(list, &Request::output_tokens, {162, 2, 67, 461, 971}, 0.05);
  const Clients clients = clients_of(list);
  EXPECT_NEAR(clients.cv, 3.45, 0.5);
  EXPECT_NEAR(clients.top_share, 0.16, 0.02);
}

struct AgentStatistics {
  std::vector<double> prompts, outputs, appended, tool_waits, human_waits, waits;
  double shrinking_sessions{0.0};
};

AgentStatistics agent_statistics(const RequestList& list) {
  AgentStatistics result;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> last;  // context, output
  std::unordered_set<std::int64_t> shrunk;
  for (const Request& request : list.requests) {
    result.prompts.push_back(static_cast<double>(request.prompt_tokens));
    result.outputs.push_back(static_cast<double>(request.output_tokens));
    const auto before = last.find(request.session_id);
    if (before != last.end()) {
      result.waits.push_back(request.think_s());
      const auto [context, output] = before->second;
      const std::int64_t grown = request.prompt_tokens - context - output;
      if (grown > 0) result.appended.push_back(static_cast<double>(grown));
      if (context - request.prompt_tokens >= 64'000) shrunk.insert(request.session_id);
    }
    last[request.session_id] = {request.prompt_tokens, request.output_tokens};
  }
  for (auto* values : {&result.prompts, &result.outputs, &result.appended, &result.waits}) {
    std::sort(values->begin(), values->end());
  }
  result.shrinking_sessions = static_cast<double>(shrunk.size()) / static_cast<double>(last.size());
  return result;
}

TEST(WorkloadStatistics, AgentCoding) {
  const RequestList list = make_workload("agent-coding:requests=60000,block=4096", 1).list;
  const AgentStatistics agent = agent_statistics(list);
  // Context: 126 k (Claude) and 116 k (Codex) at the median, 918 k and 231 k at the 99th
  // percentile.
  EXPECT_NEAR(quantile(agent.prompts, 0.5), 121'000, 15'000);
  EXPECT_GT(quantile(agent.prompts, 0.99), 231'000);
  EXPECT_LT(quantile(agent.prompts, 0.99), 918'000);
  EXPECT_NEAR(quantile(agent.outputs, 0.5), 220, 12);
  EXPECT_NEAR(quantile(agent.outputs, 0.9), 1'700, 120);
  EXPECT_NEAR(quantile(agent.appended, 0.5), 870, 60);
  double tail_tokens = 0.0;
  double tail_steps = 0.0;
  for (const double tokens : agent.appended) {
    if (tokens < 10'000) continue;
    tail_tokens += tokens;
    tail_steps += 1.0;
  }
  const auto steps = static_cast<double>(agent.appended.size());
  EXPECT_NEAR(tail_steps / steps, 0.08, 0.01);
  EXPECT_NEAR(tail_tokens / (mean_of(agent.appended) * steps), 0.70, 0.04);
  // 85 % of waits are for tools (median 0.3 s, within 0.13 to 0.6), the others for people (median
  // 86 s).
  EXPECT_NEAR(quantile(agent.waits, 0.425), 0.3, 0.1);
  EXPECT_NEAR(quantile(agent.waits, 0.925), 86.0, 25.0);
  EXPECT_NEAR(agent.shrinking_sessions, 0.097, 0.03);
}

TEST(WorkloadStatistics, AgentCodingReuse) {
  const RequestList list = make_workload("agent-coding:requests=4000", 1).list;
  EXPECT_NEAR(reuse_of(list).hit_share, 0.96, 0.025);
}

TEST(WorkloadStatistics, WeibullShapeHasItsCv) {
  Prng prng(2);
  for (const double cv : {0.5, 1.0, 2.0, 5.0}) {
    const WeibullShape weibull = weibull_for_cv(cv);
    double sum = 0.0;
    double squares = 0.0;
    constexpr int kDraws = 400'000;
    for (int i = 0; i < kDraws; ++i) {
      const double x = prng.weibull(weibull.shape, weibull.scale);
      sum += x;
      squares += x * x;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 1.0, 0.01 * std::max(1.0, cv)) << cv;
    EXPECT_NEAR(std::sqrt(squares / kDraws - mean * mean) / mean, cv, 0.12 * cv) << cv;
  }
  EXPECT_NEAR(weibull_for_cv(1.0).shape, 1.0, 1e-9);
}

TEST(WorkloadStatistics, QuantileTableIsLinearBetweenItsPoints) {
  std::array<std::int32_t, kQuantilePoints> values{};
  for (int i = 0; i < 100; ++i) values[static_cast<std::size_t>(i)] = 10 * i;
  values[100] = 1000;
  values[101] = 2000;
  values[102] = 3000;
  const QuantileTable table(values);
  EXPECT_EQ(table.at(0.0), 0);
  EXPECT_EQ(table.at(0.505), 505);
  EXPECT_EQ(table.at(0.9925), 995);
  EXPECT_EQ(table.at(0.997), 1500);
  EXPECT_EQ(table.at(0.9995), 2500);
  EXPECT_EQ(table.at(0x1.fffffffffffffp-1), 3000);
}

}  // namespace
}  // namespace packstone::sim
