// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <tests/trace_fixture.hpp>

#include <string>
#include <vector>

namespace packstone::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
    "2023-11-16 18:17:04.0781490,110,27\n";
constexpr const char* kMooncake =
    "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 500, \"hash_ids\": [0, 1]}\n"
    "{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 4, \"hash_ids\": [0, 2, "
    "3]}\n";
constexpr const char* kBailian =
    "{\"chat_id\": 55, \"parent_chat_id\": -1, \"timestamp\": 60.0, \"input_length\": 33, "
    "\"output_length\": 13, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [1089, 1090, 7]}\n"
    "{\"chat_id\": 159, \"parent_chat_id\": 55, \"timestamp\": 61.114, \"input_length\": 47, "
    "\"output_length\": 2, \"type\": \"text\", \"turn\": 2, \"hash_ids\": [1089, 1090]}\n";

std::vector<std::int64_t> arrivals_of(const Trace& trace) {
  std::vector<std::int64_t> times;
  for (const Request& request : trace.list.requests) times.push_back(request.arrival_ns);
  return times;
}

TEST(TraceFormat, AzureBothTimestampForms) {
  const Trace naive = read_text(kAzure);
  EXPECT_EQ(naive.format, TraceFormat::azure);
  EXPECT_THAT(arrivals_of(naive), ElementsAre(0, 52'000'000, 98'189'000));
  EXPECT_EQ(naive.list.requests[0].prompt_tokens, 4808);
  EXPECT_EQ(naive.list.requests[0].output_tokens, 10);
  EXPECT_EQ(naive.list.block_tokens, 0);
  EXPECT_EQ(naive.compression, "none");

  const Trace zoned = read_text(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-10 00:00:00.009930+00:00,2162,5\n"
      "2024-05-10 00:00:00+00:00,2399,6\n"
      "2024-05-10 01:00:00.5+01:00,76,15\n"
      "2024-05-09T19:00:01Z,1,1\n"
      "2024-05-09T20:00:02-05:00,1,1\n");
  EXPECT_EQ(zoned.list.requests.back().arrival_ns, 21'601'000'000'000);
  EXPECT_EQ(zoned.list.requests[0].prompt_tokens, 1);  // the earliest by its zone
  EXPECT_EQ(zoned.list.requests[1].prompt_tokens, 2399);
  EXPECT_EQ(zoned.list.requests[1].arrival_ns, 17'999'000'000'000);
  EXPECT_EQ(zoned.list.requests[2].arrival_ns - zoned.list.requests[1].arrival_ns, 9'930'000);
}

TEST(TraceFormat, DatesCrossMonthsAndLeapDays) {
  const Trace trace = read_text(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-02-28 23:59:59,1,1\n2024-02-29 00:00:00,1,1\n2024-03-01 00:00:00,1,1\n"
      "2024-12-31 23:59:59,1,1\n2025-01-01 00:00:00,1,1\n");
  EXPECT_THAT(arrivals_of(trace), ElementsAre(0, 1'000'000'000, 86'401'000'000'000,
                                              26'524'800'000'000'000, 26'524'801'000'000'000));
}

TEST(TraceFormat, BurstGptBothLayoutsByName) {
  const Trace old = read_text(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n");
  const Trace sessions = read_text(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n"
      "5,12,1.5,ChatGPT,472,18,490,Conversation log\n"
      "45,\"a,b\",2.5,ChatGPT,1087,230,1317,Conversation log\n"
      "46.25,,2.5,GPT-4,1,2,3,API log\n");
  EXPECT_EQ(old.format, TraceFormat::burstgpt);
  EXPECT_THAT(arrivals_of(old), ElementsAre(0, 40'000'000'000));
  EXPECT_THAT(arrivals_of(sessions), ElementsAre(0, 40'000'000'000, 41'250'000'000));
  EXPECT_EQ(sessions.list.requests[0].prompt_tokens, 472);
  EXPECT_EQ(sessions.list.requests[0].session_id, 12);
  EXPECT_GE(sessions.list.requests[1].session_id, std::int64_t{1} << 62);
  EXPECT_EQ(sessions.list.requests[2].session_id, -1);
}

TEST(TraceFormat, MooncakeKeepsWholeIds) {
  const Trace trace = read_text(
      "{\"timestamp\": 0, \"input_length\": 2000, \"output_length\": 5, \"hash_ids\": "
      "[9007199254740993, 9223372036854775807, 9223372036854775808, 18446744073709551615]}");
  EXPECT_EQ(trace.format, TraceFormat::mooncake);
  EXPECT_THAT(trace.list.block_ids, ElementsAre(9007199254740993U, 9223372036854775807U,
                                                9223372036854775808U, 18446744073709551615U));
}

TEST(TraceFormat, IdsThatAreNoWholeNumbersAreRefused) {
  for (const char* id :
       {"18446744073709551616", "-1", "1.0", "1e3", "\"7\"", "null", "[7]", "{}", "true"}) {
    const std::string text =
        std::string(
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [") +
        id + "]}";
    EXPECT_THAT(error_of(text).reason(), HasSubstr("hash_ids")) << id;
    EXPECT_EQ(read_text(text, {.on_bad_row = OnBadRow::skip}).rows.dropped.at("bad_id"), 1) << id;
  }
  EXPECT_THAT(
      error_of("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": 7}")
          .reason(),
      HasSubstr("hash_ids"));
}

TEST(TraceFormat, MooncakeWithoutIdsSharesNothing) {
  const Trace trace = read_text("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}");
  EXPECT_EQ(trace.list.requests[0].block_count, 0);
  EXPECT_EQ(trace.list.block_tokens, 0);
}

TEST(TraceFormat, BailianChatsBecomeSessions) {
  const Trace trace = read_text(kBailian);
  EXPECT_EQ(trace.format, TraceFormat::bailian);
  EXPECT_EQ(trace.list.block_tokens, 16);
  EXPECT_THAT(arrivals_of(trace), ElementsAre(0, 1'114'000'000));
  EXPECT_EQ(trace.list.requests[0].session_id, 55);
  EXPECT_EQ(trace.list.requests[1].session_id, 55);
  EXPECT_EQ(trace.list.requests[1].source_id, 159);
  EXPECT_EQ(trace.list.requests[0].block_count, 3);  // with the partial block
  EXPECT_EQ(trace.list.requests[1].block_count, 2);  // without
  EXPECT_FALSE(trace.list.requests[1].closed_loop());
}

TEST(TraceFormat, TraceLabCsvRoundsWaitForEachOther) {
  const Trace trace = read_text(
      "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
      "a,2518,0,0,1500,131,154.5\n"
      "b,100,0,0,600,7,0\n"
      "a,2518,1,1100,600,9,20\n");
  EXPECT_EQ(trace.format, TraceFormat::tracelab_csv);
  const auto& requests = trace.list.requests;
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].prompt_tokens, 600);
  EXPECT_FALSE(requests[0].closed_loop());
  EXPECT_EQ(requests[1].session_id, requests[2].session_id);
  EXPECT_EQ(requests[2].think_ns, 154'500'000);
  EXPECT_EQ(requests[2].arrival_ns, 2'418'000'000 + 154'500'000);
  EXPECT_EQ(requests[2].prompt_tokens, 1700);
  // 1,100 shared tokens are two whole blocks of 512.
  const auto first = trace.list.blocks_of(requests[1]);
  const auto second = trace.list.blocks_of(requests[2]);
  ASSERT_EQ(first.size(), 3U);
  ASSERT_EQ(second.size(), 4U);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]);
}

TEST(TraceFormat, TraceLabCsvTakesTheExportWithId) {
  const Trace trace = read_text(
      "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len\n"
      "0,117,1,2518,348,131,154\n");
  EXPECT_EQ(trace.list.requests[0].prompt_tokens, 117 + 154);
  EXPECT_EQ(trace.list.requests[0].session_id, 0);
}

TEST(TraceFormat, TraceLabJsonUsesTheTimesOfItsEvents) {
  const Trace trace = read_text(
      "{\"provider\": \"claude\", \"session_id\": \"s\", \"round_index\": 1, "
      "\"input_tokens_total\": 900, \"prefix_tokens\": 600, \"newly_append_tokens\": 300, "
      "\"output_tokens\": 4, \"timing_events\": [{\"event_type\": \"tool_result\", \"timestamp\": "
      "\"2026-08-25T00:00:09Z\"}], \"tools\": []}\n"
      "{\"provider\": \"claude\", \"session_id\": \"s\", \"round_index\": 0, "
      "\"input_tokens_total\": 600, \"prefix_tokens\": 0, \"newly_append_tokens\": 600, "
      "\"output_tokens\": 4, \"timing_events\": [{\"event_type\": \"user_message\", \"timestamp\": "
      "\"2026-08-25T00:00:01Z\"}, {\"event_type\": \"text\", \"timestamp\": "
      "\"2026-08-25T00:00:03.5Z\"}], \"tools\": [{\"tool_wall_latency_ms\": 12}]}\n");
  EXPECT_EQ(trace.format, TraceFormat::tracelab_jsonl);
  ASSERT_EQ(trace.list.requests.size(), 2U);
  EXPECT_EQ(trace.list.requests[0].prompt_tokens, 600);
  EXPECT_EQ(trace.list.requests[1].think_ns, 5'500'000'000);
  EXPECT_EQ(trace.list.blocks_of(trace.list.requests[0])[0],
            trace.list.blocks_of(trace.list.requests[1])[0]);
}

TEST(TraceFormat, CompressionIsToldByTheFirstBytes) {
  for (const char* text : {kAzure, kMooncake, kBailian}) {
    const Trace plain = read_text(text);
    const Trace gzip = read_text(gzip_of(text));
    const Trace zstd = read_text(zstd_of(text));
    EXPECT_EQ(gzip.compression, "gzip");
    EXPECT_EQ(zstd.compression, "zstd");
    EXPECT_EQ(gzip.list, plain.list);
    EXPECT_EQ(zstd.list, plain.list);
    EXPECT_NE(gzip.sha256, plain.sha256);
    EXPECT_EQ(plain.file_bytes, static_cast<std::int64_t>(std::string(text).size()));
  }
  const std::string two = zstd_of(kAzure) + zstd_of("2023-11-16 18:17:05,1,1\n");
  EXPECT_EQ(read_text(two).rows.emitted, 4);
  const std::string members = gzip_of(kAzure) + gzip_of("2023-11-16 18:17:05,1,1\n");
  EXPECT_EQ(read_text(members).rows.emitted, 4);
}

TEST(TraceFormat, CrlfByteOrderMarkAndMissingLastNewline) {
  for (const char* text : {kAzure, kMooncake, kBailian}) {
    const Trace plain = read_text(text);
    std::string crlf;
    for (const char c : std::string(text))
      crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
    EXPECT_EQ(read_text(crlf).list, plain.list);
    EXPECT_EQ(read_text("\xEF\xBB\xBF" + std::string(text)).list, plain.list);
    EXPECT_EQ(read_text(std::string(text, std::string(text).size() - 1)).list, plain.list);
    EXPECT_EQ(read_text("\xEF\xBB\xBF" + crlf.substr(0, crlf.size() - 2)).list, plain.list);
  }
}

TEST(TraceFormat, Sha256IsThatOfTheRawBytes) {
  // By sha256sum.
  constexpr const char* kDigest =
      "25ae4416b2824ade90c686baca9a8a37"
      "df8360cdbe779baece12d310868e2cf2";
  EXPECT_EQ(read_text(kAzure).sha256, kDigest);
  const TemporaryFolder folder;
  const std::string path = folder.write("a.csv", kAzure);
  EXPECT_EQ(read_trace(path).sha256, read_text(kAzure).sha256);
  EXPECT_EQ(read_trace(path, {.requests_max = 1}).sha256, read_text(kAzure).sha256);
  EXPECT_EQ(read_trace(path).sha256.size(), 64U);
}

TEST(TraceFormat, NamesGoBothWays) {
  for (const std::string& name : trace_format_names()) {
    EXPECT_EQ(to_string(trace_format_from(name)), name);
  }
  EXPECT_THROW((void)trace_format_from("csv"), InvalidArgument);
}

TEST(TraceFormat, OverrideWinsOverDetection) {
  EXPECT_EQ(read_text(kMooncake, {.format = TraceFormat::mooncake}).rows.emitted, 2);
  EXPECT_EQ(error_of(kMooncake, {.format = TraceFormat::azure}).line(), 1);
  EXPECT_EQ(error_of(kAzure, {.format = TraceFormat::mooncake}).line(), 1);
}

TEST(TraceFormat, ColumnsMayComeInAnyOrderButNotTwice) {
  const Trace trace =
      read_text("GeneratedTokens, TIMESTAMP,Extra,ContextTokens\n10,2023-11-16 18:17:03,x,48\n");
  EXPECT_EQ(trace.list.requests[0].prompt_tokens, 48);
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n").line(), 1);
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens\n").line(), 1);
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1,1\n").line(),
            2);
}

constexpr const char* kClients =
    "client,requests_total,share,cv_rate_weighted,gamma_share,weibull_share,active_windows_600s\n"
    "big,6000.0,0.6,2.0,0.5,0.5,10\nsmall,4000.0,0.4,1.0,1.0,0.0,10\n";

TEST(TraceFormat, ServeGenDrawsRequestsFromItsTables) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x_clients.csv", kClients);
  EXPECT_THROW((void)read_trace(path), TraceError);  // no histograms yet
  folder.write("x_in_hist.csv", "tokens_lo,tokens_hi,probability\n10.0,20.0,0.5\n100,101,0.5\n");
  folder.write("x_out_hist.csv", "tokens_lo,tokens_hi,probability\n4.8,5.2,1.0\n");
  const TraceOptions options{.seed = 3, .servegen_requests = 5000, .servegen_rate = 4.0};
  const Trace trace = read_trace(path, options);
  EXPECT_EQ(trace.format, TraceFormat::servegen);
  EXPECT_EQ(trace.rows.read, 2);
  ASSERT_EQ(trace.list.requests.size(), 5000U);
  int big = 0;
  int long_prompts = 0;
  for (const Request& request : trace.list.requests) {
    big += request.client == 0 ? 1 : 0;
    long_prompts += request.prompt_tokens == 100 ? 1 : 0;
    EXPECT_TRUE(request.prompt_tokens == 100 ||
                (request.prompt_tokens >= 10 && request.prompt_tokens < 20));
    EXPECT_EQ(request.output_tokens, 5);
  }
  EXPECT_NEAR(big, 3000, 300);
  EXPECT_NEAR(long_prompts, 2500, 150);
  EXPECT_NEAR(trace.list.requests.back().arrival_s(), 1250.0, 125.0);
  EXPECT_EQ(read_trace(path, options).list, trace.list);
  folder.write("x_out_hist.csv", "tokens_lo,tokens_hi,probability\n4.8,5.2,-1.0\n");
  EXPECT_THROW((void)read_trace(path), TraceError);
  folder.write("x_out_hist.csv", "tokens_lo,tokens_hi,probability\n4.8,5.2,0\n");
  EXPECT_THROW((void)read_trace(path), TraceError);
}

TEST(TraceFormat, JitterSpreadsATickAndKeepsItsSeed) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "{\"timestamp\": " + std::to_string(3000 * (i / 10)) +
            ", \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [7]}\n";
  }
  EXPECT_EQ(read_text(text).tick_ns, 3'000'000'000);
  const Trace spread = read_text(text, {.jitter_s = 3.0, .seed = 1});
  EXPECT_EQ(spread.tick_ns, 3'000'000'000);
  int equal = 0;
  for (std::size_t i = 1; i < spread.list.requests.size(); ++i) {
    ASSERT_LE(spread.list.requests[i - 1].arrival_ns, spread.list.requests[i].arrival_ns);
    equal += spread.list.requests[i - 1].arrival_ns == spread.list.requests[i].arrival_ns ? 1 : 0;
  }
  EXPECT_LT(equal, 3);
  EXPECT_EQ(read_text(text, {.jitter_s = 3.0, .seed = 1}).list, spread.list);
  EXPECT_NE(read_text(text, {.jitter_s = 3.0, .seed = 2}).list, spread.list);
  EXPECT_THROW((void)read_text(text, {.jitter_s = -1.0}), InvalidArgument);
}

}  // namespace
}  // namespace packstone::sim
