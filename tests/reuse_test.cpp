// SPDX-License-Identifier: Apache-2.0
// Prefix reuse in the replay, against an independent count of the ids.
#include "trace_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/run.hpp>
#include <sim/trace.hpp>
#include <sim/workload.hpp>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>

namespace packstone::sim {
namespace {

struct Count {
  std::int64_t asked{0};
  std::int64_t hit{0};
};

/// Blocks that an earlier request had, in a cache without end; the last block of a prompt counts
/// only where it holds a page of `page_size`.
Count count_by_ids(const RequestList& list, std::int64_t page_size) {
  Count count;
  std::set<std::uint64_t> seen;
  for (const Request& request : list.requests) {
    const auto blocks = list.blocks_of(request);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::int64_t tokens = std::min<std::int64_t>(
          list.block_tokens,
          request.prompt_tokens - static_cast<std::int64_t>(i) * list.block_tokens);
      count.asked += 1;
      count.hit += tokens >= page_size && seen.contains(blocks[i]) ? 1 : 0;
    }
    seen.insert(blocks.begin(), blocks.end());
  }
  return count;
}

RunOptions ample(const std::string& policy, std::int64_t page_size) {
  RunOptions options;
  options.policy = policy;
  options.page_size = page_size;
  options.prefix_cache = true;
  options.pool_tokens = 8'000'000;
  options.samples = 6;
  return options;
}

TEST(Reuse, AnAmplePoolFindsEveryBlockThatWasThere) {
  const Workload workload = make_workload("longchat-mooncake:requests=250", 3);
  for (const std::int64_t page_size : {16, 64, 512}) {
    SCOPED_TRACE(page_size);
    RunOptions options = ample("run", page_size);
    options.check = true;
    const RunResult result = run(workload.list, options);
    ASSERT_TRUE(result.reuse.has_value());
    const Count count = count_by_ids(workload.list, page_size);
    EXPECT_GT(count.hit, 0);
    EXPECT_EQ(result.reuse->blocks_asked, count.asked);
    EXPECT_EQ(result.reuse->blocks_hit, count.hit);
    EXPECT_EQ(result.reuse->evictions, 0);
  }
}

TEST(Reuse, TheMooncakeTraceHitsAsOftenAsAnIndependentCount) {
  PACKSTONE_NEED_TRACE(path, "mooncake_conversation_trace.jsonl")
  const RequestList list = read_trace(path).list;
  RunOptions options = ample("fifo", 64);
  options.pool_tokens = 160'000'000;
  options.samples = 2;
  options.keep_requests = false;
  const RunResult result = run(list, options);
  const Count count = count_by_ids(list, 64);
  EXPECT_EQ(result.reuse->blocks_asked, count.asked);
  EXPECT_EQ(result.reuse->blocks_hit, count.hit);
  EXPECT_NEAR(static_cast<double>(count.hit) / static_cast<double>(count.asked), 0.366, 0.0005);
}

TEST(Reuse, PressureEvictsBeforeItPreemptsAndLosesNothing) {
  const Workload workload = make_workload("longchat-mooncake:requests=120", 4);
  for (const char* policy : {"fifo", "sorted", "run"}) {
    RunOptions options = ample(policy, 16);
    options.pool_tokens = 300'000;
    options.scheduler.concurrency = 8;
    options.check = true;
    const RunResult result = run(workload.list, options);  // throws when a page is left
    EXPECT_GT(result.reuse->evictions, 0);
    EXPECT_LE(result.reuse->blocks_hit, count_by_ids(workload.list, 16).hit);
    EXPECT_EQ(result.counters.retired(), static_cast<std::int64_t>(workload.list.requests.size()));
    EXPECT_EQ(result.counters.tokens_written, result.counters.tokens_released);
  }
}

TEST(Reuse, AFullyCachedPromptStillComputesAToken) {  // PS-08
  RequestList list;
  list.block_tokens = 16;
  list.block_ids = {1, 2, 3, 4};
  for (int i = 0; i < 2; ++i) {
    list.requests.push_back(
        {.prompt_tokens = 64, .output_tokens = 1, .first_block = 0, .block_count = 4});
  }
  normalize(list);
  RunOptions options = ample("fifo", 16);
  options.pool_tokens = 1024;
  const RunResult result = run(list, options);
  EXPECT_EQ(result.reuse->blocks_hit, 4);   // all were there
  EXPECT_EQ(result.reuse->tokens_hit, 48);  // of which the last page is computed again
  EXPECT_EQ(result.requests[1].what.cached, 48);
}

TEST(Reuse, RequestsWithoutIdsShareNothing) {
  const Workload workload = make_workload("chat-azure:requests=50", 4);
  const RunResult result = run(workload.list, ample("run", 16));
  EXPECT_EQ(result.reuse->blocks_asked, 0);
  EXPECT_EQ(result.reuse->tokens_hit, 0);
}

TEST(Reuse, ATripThroughAFileKeepsTheHits) {  // TR-10
  const Workload workload = make_workload("longchat-mooncake:requests=100", 9);
  std::ostringstream out;
  const std::int32_t block = write_mooncake(out, workload.list);
  const Trace back = read_trace_bytes(out.str(), "back", {.block_tokens = block});
  const RunResult before = run(workload.list, ample("run", 16));
  const RunResult after = run(back.list, ample("run", 16));
  EXPECT_GT(before.reuse->tokens_hit, 0);
  EXPECT_EQ(before.reuse->tokens_hit, after.reuse->tokens_hit);
  EXPECT_EQ(before.digest, after.digest);
}

}  // namespace
}  // namespace packstone::sim
