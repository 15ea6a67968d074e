// SPDX-License-Identifier: Apache-2.0
// Online defragmentation beside a running replay.
#include <packstone/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/defrag.hpp>
#include <sim/output.hpp>
#include <sim/run.hpp>
#include <sim/workload.hpp>

#include <limits>

namespace packstone::sim {
namespace {

using ::testing::HasSubstr;

RunOptions churned(PlanObjective objective, PageCount budget) {
  RunOptions options;
  options.policy = "fifo";
  options.page_size = 1;
  options.pool_tokens = 16'384;
  options.scheduler.concurrency = 8;
  options.samples = 20;
  options.check = true;
  options.defrag = {.objective = objective, .pages_per_step = budget, .after_turnovers = 12.0};
  return options;
}

RequestList chat() {
  return make_workload("chat-azure:requests=250", 6).list;
}

TEST(Defrag, StraightenLengthensRunsOfAChurnedPool) {
  const RunResult with = run(chat(), churned(PlanObjective::straighten, 4096));
  ASSERT_TRUE(with.defrag.has_value());
  EXPECT_LT(with.defrag->run_mean_before, 2.0);
  EXPECT_GT(with.defrag->run_mean_after, 10.0 * with.defrag->run_mean_before);
  EXPECT_LT(with.defrag->descriptors_after, with.defrag->descriptors_before / 10.0);
  EXPECT_GT(with.defrag->bytes_moved, 0.0);
  EXPECT_GE(with.defrag->pause_us_max, with.defrag->pause_us_p50);
}

TEST(Defrag, MovesDoNotChangeWhatTheRequestsSee) {
  const RequestList list = chat();
  const RunResult with = run(list, churned(PlanObjective::straighten, 64));
  RunOptions options = churned(PlanObjective::straighten, 64);
  options.defrag = {};
  const RunResult without = run(list, options);
  EXPECT_FALSE(without.defrag.has_value());
  EXPECT_EQ(with.counters.finished, without.counters.finished);
  EXPECT_EQ(with.counters.preemptions, without.counters.preemptions);
  EXPECT_EQ(with.counters.tokens_written, without.counters.tokens_written);
  EXPECT_EQ(with.counters.steps, without.counters.steps);
}

TEST(Defrag, FrontierTakesExactlyTheBoundWhenItMay) {
  RunOptions options = churned(PlanObjective::frontier, 1 << 20);
  const RunResult result = run(chat(), options);
  ASSERT_TRUE(result.defrag.has_value());
  const DefragCounters& counters = result.defrag->counters;
  ASSERT_FALSE(counters.pauses.empty());
  EXPECT_GT(counters.first_lower_bound, 0);
  // The retired sources of the plan before are in nobody's way, so every plan reaches its bound.
  EXPECT_EQ(counters.pauses.front(), counters.first_lower_bound);
}

TEST(Defrag, EveryObjectiveKeepsTheInvariantsWithACacheAndDrafts) {
  const RequestList list = make_workload("longchat-mooncake:requests=60", 6).list;
  for (const PlanObjective objective :
       {PlanObjective::frontier, PlanObjective::straighten, PlanObjective::granules}) {
    for (const char* policy : {"fifo", "run"}) {
      RunOptions options;
      options.policy = policy;
      options.page_size = 16;
      options.pool_tokens = 300'000;
      options.scheduler.concurrency = 6;
      options.samples = 10;
      options.check = true;
      options.prefix_cache = true;
      options.drafting = {.mode = SpeculationMode::tree_front, .nodes = 16};
      options.defrag = {.objective = objective, .pages_per_step = 128, .every = 4};
      const RunResult result = run(list, options);
      EXPECT_EQ(result.counters.retired(), static_cast<std::int64_t>(list.requests.size()));
      EXPECT_GT(result.defrag->counters.plans, 0);
    }
  }
}

TEST(Defrag, BadOptionsAreNamed) {
  KvManager kv({.pages = 10, .page_size = 1, .policy = "fifo"});
  EXPECT_THROW(Defrag({.objective = PlanObjective::frontier, .pages_per_step = 0}, {}, kv, nullptr),
               InvalidArgument);
  EXPECT_THROW(Defrag({.objective = PlanObjective::frontier, .every = 0}, {}, kv, nullptr),
               InvalidArgument);
}

TEST(Defrag, ReadLossIsLargestForSingleRowsAndNoneForLongRuns) {
  constexpr Bytes kPool = Bytes{4} << 30;
  for (const Bytes row : {1152, 256}) {
    EXPECT_GT(read_loss(row, 1, kPool), read_loss(row, 64, kPool));
    EXPECT_LT(read_loss(row, 1, kPool), 1.0);
    EXPECT_GE(read_loss(row, 64, kPool), 0.0);
    EXPECT_LT(read_loss(row, 1 << 24, kPool), 1e-9);
  }
  EXPECT_GT(read_loss(256, 1, kPool), read_loss(1152, 1, kPool));
}

TEST(Defrag, TheSentenceAndTheBreakEvenSayTheSame) {
  DefragReport report;
  report.objective = "straighten";
  report.step_gain_us = 4.0;
  report.step_cost_us = 10.0;
  report.break_even_steps = 2.5;
  EXPECT_THAT(defrag_verdict(report),
              HasSubstr("for attention alone it does not pay, the moves of each step cost the gain "
                        "of 2.5 steps"));
  report.step_gain_us = 40.0;
  report.break_even_steps = 0.25;
  EXPECT_THAT(defrag_verdict(report), HasSubstr("it pays, the moves of a step within 0.25 of one"));
  report.step_gain_us = 0.0;
  report.break_even_steps = std::numeric_limits<double>::infinity();
  EXPECT_THAT(defrag_verdict(report), HasSubstr("for attention alone it never pays"));
}

}  // namespace
}  // namespace packstone::sim
