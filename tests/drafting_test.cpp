// SPDX-License-Identifier: Apache-2.0
// Speculation in the replay: every mode, page size and policy gives the pool back whole.
#include <packstone/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/drafting.hpp>
#include <sim/run.hpp>
#include <sim/workload.hpp>

#include <tuple>

namespace packstone::sim {
namespace {

RunOptions speculating(SpeculationMode mode, std::int64_t page_size, const char* policy) {
  RunOptions options;
  options.policy = policy;
  options.page_size = page_size;
  options.pool_tokens = 40'000;
  options.scheduler.concurrency = 16;
  options.samples = 12;
  options.check = true;
  options.drafting = {.mode = mode, .nodes = 64, .acceptance = 0.53, .seed = 5};
  return options;
}

class EveryMode
    : public ::testing::TestWithParam<std::tuple<SpeculationMode, std::int64_t, const char*>> {};

TEST_P(EveryMode, FreeCountsAreExactAtTheEnd) {
  const auto [mode, page_size, policy] = GetParam();
  const Workload workload = make_workload("chat-azure:requests=80", 2);
  const RunResult result =
      run(workload.list, speculating(mode, page_size, policy));  // throws when a page is left
  EXPECT_EQ(result.counters.finished, 80);
  EXPECT_EQ(result.counters.tokens_written, result.counters.tokens_released);
  ASSERT_TRUE(result.drafting.has_value());
  EXPECT_EQ(result.drafting->drafted % 64, 0);
  // 1 + 0.53 + 0.53^2 + ... less what the end of a request cuts off.
  const double tokens = 64.0 * static_cast<double>(result.drafting->accepted) /
                        static_cast<double>(result.drafting->drafted);
  EXPECT_NEAR(tokens, 1.0 / (1.0 - 0.53), 0.15);
  const bool copies = mode != SpeculationMode::rollback || page_size > 1;
  EXPECT_EQ(result.drafting->row_moves > 0, copies);
  for (const RequestRow& row : result.requests) {
    const Request& request = workload.list.requests[static_cast<std::size_t>(row.what.request)];
    EXPECT_EQ(row.what.generated, request.output_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, EveryMode,
    ::testing::Combine(::testing::Values(SpeculationMode::rollback, SpeculationMode::reserve_tail,
                                         SpeculationMode::tree_front),
                       ::testing::Values(1, 16, 64),
                       ::testing::Values("fifo", "lifo", "sorted", "lowest", "run")));

TEST(Drafting, AcceptanceZeroIsPlainDecodeInTokens) {
  const Workload workload = make_workload("chat-azure:requests=20", 2);
  RunOptions options = speculating(SpeculationMode::tree_front, 1, "run");
  options.drafting.acceptance = 0.0;
  const RunResult result = run(workload.list, options);
  EXPECT_EQ(result.drafting->accepted * 64, result.drafting->drafted);
  options.drafting = {};
  EXPECT_EQ(run(workload.list, options).counters.tokens_written, result.counters.tokens_written);
}

TEST(Drafting, ADraftThatNeverFitsIsRefused) {
  RequestList list;
  list.requests.push_back({.prompt_tokens = 30, .output_tokens = 10});
  normalize(list);
  RunOptions options = speculating(SpeculationMode::rollback, 1, "fifo");
  options.pool_tokens = 100;  // 30 + 10 fits, with 64 drafts it does not
  EXPECT_EQ(run(list, options).counters.refused, 1);
  options.pool_tokens = 104;
  EXPECT_EQ(run(list, options).counters.finished, 1);
}

TEST(Drafting, BadOptionsAreNamed) {
  KvManager kv({.pages = 100, .page_size = 1, .policy = "fifo"});
  const auto make = [&](DraftingOptions options) { return Drafting(kv, options).nodes(); };
  EXPECT_THROW((void)make({}), InvalidArgument);
  EXPECT_THROW((void)make({.mode = SpeculationMode::rollback, .nodes = 0}), InvalidArgument);
  EXPECT_THROW((void)make({.mode = SpeculationMode::rollback, .nodes = 257}), InvalidArgument);
  EXPECT_THROW((void)make({.mode = SpeculationMode::rollback, .acceptance = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace packstone::sim
