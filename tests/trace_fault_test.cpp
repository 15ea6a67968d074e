// SPDX-License-Identifier: Apache-2.0
// The faults of trace input that users of other replay tools have met, one test a fault, kept by
// name.
#include <gmock/gmock.h>
#include <tests/trace_fixture.hpp>

#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

namespace packstone::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string mooncake_row(const std::string& timestamp, const std::string& input,
                         const std::string& output, const std::string& ids) {
  return "{\"timestamp\": " + timestamp + ", \"input_length\": " + input +
         ", \"output_length\": " + output + ", \"hash_ids\": [" + ids + "]}";
}

std::string twenty_lines(const std::string& line_13) {
  std::string text;
  for (int line = 1; line <= 20; ++line) {
    text += line == 13 ? line_13 : mooncake_row(std::to_string(line), "100", "5", "7");
    text += "\n";
  }
  return text;
}

TEST(TraceFault, TR01_BrokenNumberNamesLine) {
  const std::string text = twenty_lines(mooncake_row("13", "100", "12 34", "7"));
  const TraceError error = error_of(text);
  EXPECT_EQ(error.line(), 13);
  EXPECT_EQ(error.file(), "input");
  EXPECT_THAT(error.what(), HasSubstr("input:13: "));

  const Trace skipped = read_text(text, {.on_bad_row = OnBadRow::skip});
  EXPECT_EQ(skipped.rows.read, 20);
  EXPECT_EQ(skipped.rows.emitted, 19);
  EXPECT_EQ(skipped.rows.dropped.at("bad_json"), 1);
}

TEST(TraceFault, TR01_BlankLinesAreNoRows) {
  const Trace trace = read_text(twenty_lines("") + "\n\n");
  EXPECT_EQ(trace.rows.read, 19);
  EXPECT_EQ(trace.rows.emitted, 19);
  EXPECT_TRUE(trace.rows.dropped.empty());
}

TEST(TraceFault, TR01_CutLastLineNamesLine) {
  std::string text = twenty_lines(mooncake_row("13", "100", "5", "7"));
  text.resize(text.size() - 10);
  EXPECT_EQ(error_of(text).line(), 20);
  EXPECT_EQ(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                     "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.03,31")
                .line(),
            3);
}

TEST(TraceFault, TR03_BadTimesNameLineAndField) {
  for (const char* time : {"-5", "-0.5", "1e400", "NaN", "nan", "Infinity", "-Infinity", "1e30",
                           "\"12.5\"", "null", "true", "[]", "{}"}) {
    const std::string text =
        mooncake_row("0", "100", "5", "7") + "\n" + mooncake_row(time, "100", "5", "7") + "\n";
    EXPECT_EQ(error_of(text).line(), 2) << time;
  }
  const std::string missing = "{\"input_length\": 100, \"output_length\": 5, \"hash_ids\": [7]}\n";
  EXPECT_EQ(error_of(missing).line(), 1);
  for (const char* time : {"-5", "\"12.5\"", "null"}) {
    EXPECT_THAT(error_of(mooncake_row(time, "100", "5", "7")).reason(), HasSubstr("timestamp"));
  }
  EXPECT_THAT(error_of(missing).reason(), HasSubstr("timestamp"));
}

TEST(TraceFault, TR03_FractionsOfATickAreTimes) {
  const Trace trace = read_text(
      mooncake_row("1000", "100", "5", "7") + "\n" + mooncake_row("400", "100", "5", "7") + "\n" +
      mooncake_row("412.5", "100", "5", "7") + "\n" + mooncake_row("4.5e2", "100", "5", "7"));
  std::vector<std::int64_t> micros;
  for (const Request& request : trace.list.requests) micros.push_back(request.arrival_ns / 1000);
  EXPECT_THAT(micros, ElementsAre(0, 12'500, 50'000, 600'000));
}

TEST(TraceFault, TR03_BurstGptAndAzureTimesAreCheckedToo) {
  const std::string header =
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
  for (const char* time : {"-1", "nan", "inf", "1e400", "", "abc", "12x"}) {
    const TraceError error = error_of(header + time + ",ChatGPT,472,18,490,Conversation log\n");
    EXPECT_EQ(error.line(), 2) << time;
    EXPECT_THAT(error.reason(), HasSubstr("Timestamp")) << time;
  }
  for (const char* time :
       {"2023-11-16", "2023-13-16 18:17:03", "2023-11-16 24:17:03", "18:17:03", "x", "",
        "2023-11-16 18:17:03.", "2023-11-16 18:17:03.1234567890", "2023-11-16 18:17:03+0"}) {
    const TraceError error =
        error_of(std::string("TIMESTAMP,ContextTokens,GeneratedTokens\n") + time + ",48,10\n");
    EXPECT_EQ(error.line(), 2) << time;
    EXPECT_THAT(error.reason(), HasSubstr("TIMESTAMP")) << time;
  }
}

TEST(TraceFault, TR03_BadSpeedIsRefused) {
  const std::string text = mooncake_row("0", "100", "5", "7");
  for (const double speed : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW((void)read_text(text, {.speed = speed}), InvalidArgument) << speed;
  }
  EXPECT_THROW(
      (void)read_text(mooncake_row("0", "1", "5", "7") + "\n" + mooncake_row("1e12", "1", "5", "7"),
                      {.speed = 1e-30}),
      InvalidArgument);
}

TEST(TraceFault, TR04_UnsortedAndEqualTimesKeepTheOrderOfTheFile) {
  const auto text_at = [](std::int64_t base) {
    std::string text;
    const std::int64_t times[] = {300, 0, 100, 100};
    for (int i = 0; i < 4; ++i) {
      text += mooncake_row(std::to_string(times[i] + base), std::to_string(i + 1), "5", "7") + "\n";
    }
    return text;
  };
  const Trace trace = read_text(text_at(0));
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> millis;
  for (const Request& request : trace.list.requests) {
    order.push_back(request.prompt_tokens);
    millis.push_back(request.arrival_ns / 1'000'000);
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 4, 1));
  EXPECT_THAT(millis, ElementsAre(0, 100, 100, 300));
  EXPECT_EQ(trace.list, read_text(text_at(1'000'000'000)).list);
}

TEST(TraceFault, TR04_SpeedScalesGaps) {
  const std::string text =
      mooncake_row("1000", "1", "5", "7") + "\n" + mooncake_row("4000", "2", "5", "7");
  EXPECT_EQ(read_text(text, {.speed = 2.0}).list.requests[1].arrival_ns, 1'500'000'000);
  EXPECT_EQ(read_text(text, {.speed = 0.5}).list.requests[1].arrival_ns, 6'000'000'000);
}

TEST(TraceFault, TR05_ZeroOutputIsPrefillOnlyAndCounted) {
  const std::string text = mooncake_row("0", "100", "0", "7") + "\n" +
                           mooncake_row("1", "100", "1", "7") + "\n" +
                           mooncake_row("2", "0", "0", "") + "\n";
  const Trace trace = read_text(text);
  EXPECT_EQ(trace.rows.read, 3);
  EXPECT_EQ(trace.rows.emitted, 2);
  EXPECT_EQ(trace.rows.prefill_only, 1);
  EXPECT_EQ(trace.rows.dropped.at("empty_request"), 1);
}

TEST(TraceFault, TR05_AllRowsEmptyGivesNoRequests) {
  const Trace trace = read_text(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,0,0,0,Conversation log\n6,ChatGPT,0,0,0,Conversation log\n");
  EXPECT_EQ(trace.rows.read, 2);
  EXPECT_EQ(trace.rows.emitted, 0);
  EXPECT_EQ(trace.rows.dropped.at("empty_request"), 2);
  EXPECT_TRUE(trace.list.requests.empty());
}

TEST(TraceFault, TR05_MoreRowsAskedForThanThereAre) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += mooncake_row(std::to_string(i), "100", "5", "7") + "\n";
  EXPECT_EQ(read_text(text, {.requests_max = 10}).rows.emitted, 3);
  EXPECT_EQ(read_text(text, {.requests_max = 2}).rows.emitted, 2);
  EXPECT_EQ(read_text(text, {.requests_max = 0}).rows.emitted, 0);
  EXPECT_THROW((void)read_text(text, {.requests_max = -2}), InvalidArgument);
}

TEST(TraceFault, TR06_BadInputLengthNamesRecord) {
  for (const char* input : {"0", "-1", "\"\"", "null", "1099511627776", "1.5", "1e3",
                            "18446744073709551616", "true", "[1]"}) {
    const std::string text =
        mooncake_row("0", "100", "5", "7") + "\n" + mooncake_row("1", input, "5", "7") + "\n";
    EXPECT_EQ(error_of(text).line(), 2) << input;
    const Trace skipped = read_text(text, {.on_bad_row = OnBadRow::skip});
    EXPECT_EQ(skipped.rows.emitted, 1) << input;
    EXPECT_EQ(skipped.rows.dropped_total(), 1) << input;
  }
  for (const char* input : {"0", "-1", "", "1099511627776", "1.5", "99999999999999999999"}) {
    const std::string text = std::string("TIMESTAMP,ContextTokens,GeneratedTokens\n") +
                             "2023-11-16 18:17:03," + input + ",10\n";
    EXPECT_EQ(error_of(text).line(), 2) << input;
  }
}

TEST(TraceFault, TR08_RepeatedIdsAreRenamed) {
  const auto row = [](int time) {
    return "{\"chat_id\": 7, \"parent_chat_id\": -1, \"timestamp\": " + std::to_string(time) +
           ".5, \"input_length\": 20, \"output_length\": 9, \"type\": \"text\", \"turn\": 1, "
           "\"hash_ids\": [1, 2]}\n";
  };
  const Trace trace = read_text(row(1) + row(1) + row(2));
  std::unordered_set<std::int64_t> ids;
  for (const Request& request : trace.list.requests) {
    ids.insert(request.id);
    EXPECT_EQ(request.source_id, 7);
  }
  EXPECT_EQ(ids.size(), 3U);
}

TEST(TraceFault, TR09_IdsAndLengthsMustAgree) {
  const auto ids = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(i);
    return text;
  };
  EXPECT_EQ(read_text(mooncake_row("0", "512", "5", ids(1))).list.block_ids.size(), 1U);
  EXPECT_EQ(read_text(mooncake_row("0", "513", "5", ids(2))).list.block_ids.size(), 2U);
  for (const auto& [input, count] : {std::pair{"20", 2}, {"513", 1}, {"1024", 0}, {"1024", 3}}) {
    const std::string text = mooncake_row("0", input, "5", ids(count));
    EXPECT_THAT(error_of(text).reason(), HasSubstr("block size")) << input;
    EXPECT_EQ(read_text(text, {.on_bad_row = OnBadRow::skip}).rows.dropped.at("ids_and_length"), 1);
  }
  // Blocks of 16 under the default of 512 give prompts of the wrong size with every count right:
  // refused.
  const std::string sixteen = mooncake_row("0", "160", "5", ids(10));
  EXPECT_THAT(error_of(sixteen).reason(), HasSubstr("block size"));
  EXPECT_EQ(read_text(sixteen, {.block_tokens = 16}).list.block_tokens, 16);
}

TEST(TraceFault, TR09_FullBlocksOnlyLeavesTheTailUnshared) {
  const Trace trace = read_text(mooncake_row("0", "1030", "5", "8, 9"),
                                {.block_tokens = 512, .full_blocks_only = true});
  EXPECT_EQ(trace.list.requests[0].block_count, 2);
  EXPECT_EQ(trace.list.requests[0].prompt_tokens, 1030);
}

// Blocks that an unbounded prefix cache would hit, in a plain count.
std::int64_t shared_blocks(const RequestList& list) {
  std::unordered_set<std::uint64_t> seen;
  std::int64_t hits = 0;
  for (const Request& request : list.requests) {
    bool hitting = true;
    for (const std::uint64_t id : list.blocks_of(request)) {
      hitting = hitting && seen.count(id) > 0;
      hits += hitting ? 1 : 0;
    }
    for (const std::uint64_t id : list.blocks_of(request)) seen.insert(id);
  }
  return hits;
}

TEST(TraceFault, TR10_RoundTripKeepsSharing) {
  std::string text;
  // 14,000 shared tokens in blocks of 1,000, four times, and one request that shares nothing.
  for (int request = 0; request < 5; ++request) {
    std::string ids;
    for (int k = 0; k < 15; ++k) {
      const int id = k < 14 && request > 0 ? k : 100 + 20 * request + k;
      ids += (k == 0 ? "" : ", ") + std::to_string(id);
    }
    text += mooncake_row(std::to_string(request), "14500", "5", ids) + "\n";
  }
  const TraceOptions options{.block_tokens = 1000};
  const Trace first = read_text(text, options);
  EXPECT_EQ(shared_blocks(first.list), 3 * 14);
  std::ostringstream out;
  EXPECT_EQ(write_mooncake(out, first.list), 1000);
  const Trace second = read_text(out.str(), options);
  EXPECT_EQ(second.list, first.list);
  EXPECT_EQ(shared_blocks(second.list), 3 * 14);
}

}  // namespace
}  // namespace packstone::sim
