// SPDX-License-Identifier: Apache-2.0
// Properties over random lists and random text; the seed of a failure is in its message.
#include <gtest/gtest.h>
#include <sim/prng.hpp>
#include <tests/trace_fixture.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace packstone::sim {
namespace {

std::uint64_t random_id(Prng& prng) {
  // Small ids repeat, the others are of every size; the largest one too.
  switch (prng.below(4)) {
    case 0:
      return prng.below(5);
    case 1:
      return std::numeric_limits<std::uint64_t>::max() - prng.below(3);
    case 2:
      return (std::uint64_t{1} << 63U) + prng.below(3) - 1U;
    default:
      return prng.next() >> prng.below(64);
  }
}

RequestList random_list(Prng& prng) {
  RequestList list;
  const bool ids = prng.chance(0.8);
  list.block_tokens = ids ? static_cast<std::int32_t>(prng.between(1, 600)) : 0;
  const std::int64_t count = prng.between(1, 40);
  std::vector<std::int64_t> sessions;
  for (std::int64_t i = 0; i < count; ++i) {
    Request request;
    request.arrival_ns = prng.between(0, prng.chance(0.5) ? 5 : 4'000'000'000'000'000);
    request.prompt_tokens = prng.between(1, prng.chance(0.1) ? 20'000 : 900);
    request.output_tokens = prng.between(0, 3);
    if (prng.chance(0.3)) request.abort_after_tokens = prng.between(0, 3);
    if (prng.chance(0.2)) request.abort_at_ns = request.arrival_ns + prng.between(0, 1'000'000'007);
    if (prng.chance(0.3))
      request.source_id = prng.between(0, std::numeric_limits<std::int64_t>::max());
    if (prng.chance(0.3)) request.client = static_cast<std::int32_t>(prng.between(0, 9));
    if (prng.chance(0.4))
      request.session_id = prng.between(0, std::numeric_limits<std::int64_t>::max());
    if (ids && prng.chance(0.8)) {
      const std::int64_t all = (request.prompt_tokens + list.block_tokens - 1) / list.block_tokens;
      request.block_count =
          static_cast<std::int32_t>(prng.chance(0.7) ? all : prng.between(0, all));
      request.first_block = static_cast<std::int64_t>(list.block_ids.size());
      for (std::int32_t k = 0; k < request.block_count; ++k)
        list.block_ids.push_back(random_id(prng));
    }
    list.requests.push_back(request);
    // Sometimes a session goes on: later turns wait for the one before.
    while (list.requests.back().session_id >= 0 && prng.chance(0.4)) {
      Request turn;
      turn.session_id = list.requests.back().session_id;
      turn.think_ns = prng.between(0, 3'000'000'123);
      turn.arrival_ns = list.requests.back().arrival_ns + turn.think_ns;
      turn.prompt_tokens = 7;
      turn.output_tokens = 1;
      list.requests.push_back(turn);
    }
  }
  normalize(list);
  return list;
}

TEST(TraceProperty, WritingAndReadingGivesTheSameList) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Prng prng(seed);
    const RequestList list = random_list(prng);
    std::ostringstream out;
    const std::int32_t block = write_mooncake(out, list, {.fresh_block_tokens = 100});
    const Trace again = read_text(out.str(), {.block_tokens = block});
    ASSERT_EQ(again.list, list) << "seed " << seed << "\n" << out.str();
    ASSERT_EQ(again.rows.emitted, static_cast<std::int64_t>(list.requests.size()));
    // Readers that know only Mooncake's own keys see the right number of ids, and none shared by
    // accident.
    std::ostringstream twice;
    write_mooncake(twice, again.list, {.fresh_block_tokens = 100});
    ASSERT_EQ(twice.str(), out.str()) << "seed " << seed;
  }
}

TEST(TraceProperty, NormalizeIsIdempotentAndKeepsBlocks) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Prng prng(seed);
    RequestList list = random_list(prng);
    const RequestList once = list;
    normalize(list);
    ASSERT_EQ(list, once) << "seed " << seed;
    for (std::size_t i = 0; i < list.requests.size(); ++i) {
      ASSERT_EQ(list.requests[i].id, static_cast<std::int64_t>(i));
      ASSERT_TRUE(i == 0 || list.requests[i - 1].arrival_ns <= list.requests[i].arrival_ns);
    }
    ASSERT_EQ(list.requests.front().arrival_ns, 0);
  }
}

TEST(TraceProperty, JitterKeepsTurnsBehindTheirSession) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Prng prng(seed);
    RequestList list = random_list(prng);
    jitter_arrivals(list, 3'000'000'000, seed);
    std::vector<std::int64_t> begun;
    for (const Request& request : list.requests) {
      if (request.closed_loop()) {
        ASSERT_NE(std::find(begun.begin(), begun.end(), request.session_id), begun.end())
            << "seed " << seed;
      }
      begun.push_back(request.session_id);
    }
  }
}

// Text made of pieces of real rows, cut and joined anywhere: read or refused, and every row
// accounted for.
TEST(TraceProperty, EveryRowIsEmittedOrDroppedForAReason) {
  const std::vector<std::string> pieces{
      "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
      "{\"timestamp\": 27000, \"input_length\": 600, \"output_length\": 0, \"hash_ids\": [1, 2]}",
      "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": []}",
      "TIMESTAMP,ContextTokens,GeneratedTokens",
      "2023-11-16 18:17:03.9799600,4808,10",
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
      "5,ChatGPT,472,18,490,Conversation log",
      "5,ChatGPT,0,0,0,Conversation log",
      "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len",
      "0,117,1,2518,348,131,154",
      ",,,,,",
      "\"",
      "{",
      "}",
      "\n",
      "\r\n",
      "\xEF\xBB\xBF",
      "-1",
      "1e999",
      "{\"chat_id\": 5, \"parent_chat_id\": -1, \"timestamp\": 6.5, \"input_length\": 33, "
      "\"output_length\": 13, \"hash_ids\": [1089, 1090, 7]}"};
  int read = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Prng prng(seed);
    std::string text;
    const std::int64_t parts = prng.between(1, 8);
    const std::uint64_t first = prng.below(pieces.size());
    for (std::int64_t i = 0; i < parts; ++i) {
      std::string piece = pieces[prng.chance(0.5) ? first : prng.below(pieces.size())];
      if (prng.chance(0.1)) piece.resize(prng.below(piece.size() + 1));
      text += piece + (prng.chance(0.9) ? "\n" : "");
    }
    try {
      const Trace trace = read_text(text, {.on_bad_row = OnBadRow::skip});
      ++read;
      ASSERT_EQ(trace.rows.read, trace.rows.emitted + trace.rows.dropped_total()) << text;
      ASSERT_EQ(trace.rows.emitted, static_cast<std::int64_t>(trace.list.requests.size())) << text;
    } catch (const TraceError& error) {
      ASSERT_EQ(error.file(), "input") << text;
    }
  }
  // Both outcomes must have been tried in numbers.
  EXPECT_GT(read, 2'000);
  EXPECT_LT(read, 19'000);
}

}  // namespace
}  // namespace packstone::sim
