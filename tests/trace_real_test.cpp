// SPDX-License-Identifier: Apache-2.0
// The published traces: rows and statistics as an independent script counted them. Skipped where
// the files are not.
#include <gtest/gtest.h>
#include <tests/trace_fixture.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace packstone::sim {
namespace {

std::vector<std::int64_t> sorted_lengths(const RequestList& list, std::int64_t Request::*field) {
  std::vector<std::int64_t> lengths;
  for (const Request& request : list.requests) lengths.push_back(request.*field);
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

double mean_of(const std::vector<std::int64_t>& values) {
  double sum = 0.0;
  for (const std::int64_t value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

double quantile(const std::vector<std::int64_t>& sorted, double q) {
  return static_cast<double>(
      sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))]);
}

double gap_cv(const RequestList& list) {
  const auto n = static_cast<double>(list.requests.size() - 1);
  const double mean = list.requests.back().arrival_s() / n;
  double squares = 0.0;
  for (std::size_t i = 1; i < list.requests.size(); ++i) {
    const double gap = seconds_of(list.requests[i].arrival_ns - list.requests[i - 1].arrival_ns);
    squares += (gap - mean) * (gap - mean);
  }
  return std::sqrt(squares / n) / mean;
}

TEST(TraceReal, Azure2023Conversation) {
  PACKSTONE_NEED_TRACE(path, "azure2023_conv.csv");
  const Trace trace = read_trace(path);
  EXPECT_EQ(trace.format, TraceFormat::azure);
  EXPECT_EQ(trace.rows.read, 19'366);
  EXPECT_EQ(trace.rows.emitted, 19'366);
  const auto input = sorted_lengths(trace.list, &Request::prompt_tokens);
  const auto output = sorted_lengths(trace.list, &Request::output_tokens);
  EXPECT_NEAR(mean_of(input), 1'155, 1);
  EXPECT_EQ(quantile(input, 0.5), 1'020);
  EXPECT_NEAR(quantile(input, 0.95), 4'083, 5);
  EXPECT_EQ(input.back(), 14'050);
  EXPECT_NEAR(mean_of(output), 211, 1);
  EXPECT_EQ(output.back(), 1'000);
  EXPECT_NEAR(trace.list.requests.back().arrival_s(), 3'502, 1);
  EXPECT_NEAR(gap_cv(trace.list), 1.09, 0.01);
  // 26.5 million tokens are what the simulator's speed is stated on.
  EXPECT_NEAR((mean_of(input) + mean_of(output)) * 19'366, 26.45e6, 0.05e6);
}

TEST(TraceReal, Azure2023Code) {
  PACKSTONE_NEED_TRACE(path, "azure2023_code.csv");
  const Trace trace = read_trace(path);
  EXPECT_EQ(trace.rows.read, 8'819);
  EXPECT_EQ(trace.rows.emitted, 8'819);
  const auto input = sorted_lengths(trace.list, &Request::prompt_tokens);
  const auto output = sorted_lengths(trace.list, &Request::output_tokens);
  EXPECT_NEAR(mean_of(input), 2'048, 1);
  EXPECT_NEAR(quantile(input, 0.5), 1'469, 2);
  EXPECT_EQ(input.back(), 7'437);
  EXPECT_NEAR(mean_of(output), 27.9, 0.1);
  EXPECT_EQ(output.back(), 1'899);
  EXPECT_NEAR(gap_cv(trace.list), 13.15, 0.02);
}

TEST(TraceReal, MooncakeConversation) {
  PACKSTONE_NEED_TRACE(path, "mooncake_conversation_trace.jsonl");
  const Trace trace = read_trace(path);
  EXPECT_EQ(trace.format, TraceFormat::mooncake);
  EXPECT_EQ(trace.list.block_tokens, 512);
  EXPECT_EQ(trace.rows.read, 12'031);
  EXPECT_EQ(trace.rows.emitted, 12'031);
  std::unordered_set<std::uint64_t> seen;
  std::int64_t hits = 0;
  std::int64_t beyond_first = 0;
  for (const Request& request : trace.list.requests) {
    ASSERT_EQ(request.block_count, (request.prompt_tokens + 511) / 512);
    const auto blocks = trace.list.blocks_of(request);
    std::int64_t run = 0;
    while (run < request.block_count && seen.count(blocks[static_cast<std::size_t>(run)]) > 0)
      ++run;
    hits += run;
    beyond_first += run > 1 || (run == 1 && blocks[0] != 0) ? 1 : 0;
    seen.insert(blocks.begin(), blocks.end());
  }
  EXPECT_EQ(trace.list.block_ids.size(), 288'500U);
  EXPECT_NEAR(static_cast<double>(hits) / 288'500, 0.366, 0.0005);
  EXPECT_NEAR(static_cast<double>(beyond_first) / 12'031, 0.387, 0.0005);
  const auto input = sorted_lengths(trace.list, &Request::prompt_tokens);
  EXPECT_NEAR(mean_of(input), 12'035, 1);
  EXPECT_EQ(quantile(input, 0.5), 6'909);
  EXPECT_EQ(input.back(), 126'195);
  const auto output = sorted_lengths(trace.list, &Request::output_tokens);
  EXPECT_NEAR(mean_of(output), 343, 1);
  EXPECT_NEAR(gap_cv(trace.list), 3.03, 0.02);
}

TEST(TraceReal, MooncakeJitterTakesTheBurstsOut) {
  PACKSTONE_NEED_TRACE(path, "mooncake_conversation_trace.jsonl");
  const Trace trace = read_trace(path, {.jitter_s = 3.0, .seed = 1});
  EXPECT_LT(gap_cv(trace.list), 1.5);
}

TEST(TraceReal, ShareGptOfFullBlocks) {
  PACKSTONE_NEED_TRACE(path, "sharegpt_llmservingsim_300_blk16.jsonl");
  EXPECT_THROW((void)read_trace(path), TraceError);
  const Trace trace = read_trace(path, {.block_tokens = 16, .full_blocks_only = true});
  EXPECT_EQ(trace.rows.emitted, 300);
  const auto input = sorted_lengths(trace.list, &Request::prompt_tokens);
  EXPECT_NEAR(mean_of(input), 857, 1);
  EXPECT_EQ(input.back(), 3'998);
}

TEST(TraceReal, ServeGenTables) {
  struct Expected {
    const char* stem;
    std::int64_t clients;
    double input_p50;
    double output_p50;
  };
  for (const Expected& expected : {Expected{"servegen_language_m-large", 162, 688, 67},
                                   {"servegen_language_m-mid", 108, 174, 36},
                                   {"servegen_language_m-small", 43, 40, 3},
                                   {"servegen_reason_deepseek-r1", 73, 260, 730}}) {
    PACKSTONE_NEED_TRACE(path, std::string(expected.stem) + "_clients.csv");
    const Trace trace = read_trace(path, {.seed = 1});
    EXPECT_EQ(trace.format, TraceFormat::servegen);
    EXPECT_EQ(trace.rows.read, expected.clients);
    EXPECT_EQ(trace.rows.emitted, expected.clients);
    ASSERT_EQ(trace.list.requests.size(), 20'000U);
    const auto input = sorted_lengths(trace.list, &Request::prompt_tokens);
    const auto output = sorted_lengths(trace.list, &Request::output_tokens);
    EXPECT_NEAR(quantile(input, 0.5), expected.input_p50, 0.1 * expected.input_p50) << path;
    EXPECT_NEAR(quantile(output, 0.5), expected.output_p50, 0.1 * expected.output_p50 + 1) << path;
  }
}

TEST(TraceReal, EveryTraceSurvivesARoundTrip) {
  for (const char* name :
       {"azure2023_conv.csv", "azure2023_code.csv", "mooncake_conversation_trace.jsonl",
        "servegen_reason_deepseek-r1_clients.csv"}) {
    PACKSTONE_NEED_TRACE(path, name);
    const Trace trace = read_trace(path);
    std::ostringstream out;
    const std::int32_t block = write_mooncake(out, trace.list);
    const Trace again = read_text(out.str(), {.block_tokens = block});
    EXPECT_EQ(again.list, trace.list) << name;
  }
}

}  // namespace
}  // namespace packstone::sim
