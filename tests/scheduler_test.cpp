// SPDX-License-Identifier: Apache-2.0
// The scheduler model on scenes counted by hand, and its invariants on every policy and workload.
#include <packstone/error.hpp>
#include <packstone/kv_manager.hpp>
#include <packstone/placement.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/prng.hpp>
#include <sim/run.hpp>
#include <sim/scheduler.hpp>
#include <sim/workload.hpp>

#include <set>
#include <string>
#include <vector>

namespace packstone::sim {
namespace {

struct Replayed {
  SchedulerCounters counters;
  std::vector<Retired> retired;
  std::int64_t now_ns{0};
};

Replayed replay(const RequestList& list, PageCount pages, SchedulerOptions options = {}) {
  KvManager kv({.pages = pages + 1, .page_size = 1, .policy = "fifo"});
  Replayed result;
  Scheduler scheduler(list, options, kv,
                      [&](const Retired& what) { result.retired.push_back(what); });
  while (scheduler.step()) kv.check();
  EXPECT_EQ(kv.available_pages(), pages);
  EXPECT_FALSE(scheduler.step());
  result.counters = scheduler.counters();
  result.now_ns = scheduler.now_ns();
  EXPECT_EQ(result.counters.retired(), static_cast<std::int64_t>(list.requests.size()));
  EXPECT_EQ(result.counters.tokens_written, result.counters.tokens_released);
  return result;
}

RequestList requests(std::vector<Request> each) {
  RequestList list;
  list.requests = std::move(each);
  normalize(list);
  return list;
}

TEST(Scheduler, ShortageOnDecodePreemptsTheNewest) {
  const RequestList list = requests(
      {{.prompt_tokens = 8, .output_tokens = 10}, {.prompt_tokens = 8, .output_tokens = 10}});
  const Replayed result = replay(list, 20, {.watermark = 0.0});
  EXPECT_EQ(result.counters.alloc_fail_capacity, 1);  // at 10 + 10 tokens
  EXPECT_EQ(result.counters.preemptions, 1);
  EXPECT_EQ(result.counters.tokens_recomputed, 10);
  EXPECT_EQ(result.counters.finished, 2);
  ASSERT_EQ(result.retired.size(), 2U);
  EXPECT_EQ(result.retired[0].request, 0);
  EXPECT_EQ(result.retired[0].preemptions, 0);
  EXPECT_EQ(result.retired[1].preemptions, 1);
  EXPECT_EQ(result.retired[1].generated, 10);
  EXPECT_EQ(result.retired[1].prefilled, 10);  // the prompt and the two tokens made before
  EXPECT_EQ(result.counters.tokens_written, 18 + 18 + 10);
}

TEST(Scheduler, LongPromptsAreChunkedByTheTokenBudget) {
  const RequestList list = requests({{.prompt_tokens = 20, .output_tokens = 2}});
  const Replayed result = replay(list, 100, {.token_budget = 8});
  EXPECT_EQ(result.counters.steps, 3 + 2);  // 8 + 8 + 4, then two decodes
}

TEST(Scheduler, DecodesCountAgainstTheBudgetFirst) {
  const RequestList list = requests(
      {{.prompt_tokens = 4, .output_tokens = 3}, {.prompt_tokens = 7, .output_tokens = 1}});
  // Step 1: 4 of the first, 0 left. Steps 2, 3: one decode and 3 of the second. Step 4: one decode,
  // the last 1. Step 5: the second decodes.
  const Replayed result = replay(list, 100, {.token_budget = 4});
  EXPECT_EQ(result.counters.steps, 5);
}

TEST(Scheduler, ConcurrencyIsABound) {
  std::vector<Request> each(10, Request{.prompt_tokens = 3, .output_tokens = 4});
  const Replayed result = replay(requests(each), 1000, {.concurrency = 3});
  EXPECT_EQ(result.counters.running_max, 3);
}

TEST(Scheduler, AdmissionLeavesTheWatermarkFree) {
  std::vector<Request> each(2, Request{.prompt_tokens = 45, .output_tokens = 0});
  EXPECT_EQ(replay(requests(each), 100, {.watermark = 0.0}).counters.running_max, 2);
  EXPECT_EQ(replay(requests(each), 100, {.watermark = 0.2}).counters.running_max, 1);
}

TEST(Scheduler, ARequestThatNeverFitsIsRefusedAndTheRestGoesOn) {
  const RequestList list = requests(
      {{.prompt_tokens = 90, .output_tokens = 11}, {.prompt_tokens = 90, .output_tokens = 10}});
  const Replayed result = replay(list, 100);
  EXPECT_EQ(result.counters.refused, 1);
  EXPECT_EQ(result.counters.finished, 1);
  EXPECT_EQ(result.counters.preemptions, 0);
}

TEST(Scheduler, ZeroOutputEndsWithThePrefill) {  // TR-05
  const RequestList list = requests(
      {{.prompt_tokens = 5, .output_tokens = 0}, {.prompt_tokens = 5, .output_tokens = 1}});
  const Replayed result = replay(list, 100);
  EXPECT_EQ(result.counters.finished, 2);
  EXPECT_EQ(result.retired[0].generated, 0);
  EXPECT_EQ(result.retired[0].first_token_ns, -1);
  EXPECT_EQ(result.retired[1].generated, 1);
}

TEST(Scheduler, AbortsAfterSoManyTokens) {
  const RequestList list =
      requests({{.prompt_tokens = 5, .output_tokens = 10, .abort_after_tokens = 3},
                {.prompt_tokens = 5, .output_tokens = 10, .abort_after_tokens = 0},
                {.prompt_tokens = 5, .output_tokens = 10, .abort_after_tokens = 10}});
  const Replayed result = replay(list, 100);
  EXPECT_EQ(result.counters.aborted, 2);
  EXPECT_EQ(result.counters.finished, 1);
  for (const Retired& what : result.retired) {
    const TokenCount generated[] = {3, 0, 10};
    EXPECT_EQ(what.generated, generated[what.request]);
  }
}

TEST(Scheduler, AbortsByTimeWhetherRunningOrWaiting) {
  const RequestList list =
      requests({{.prompt_tokens = 5, .output_tokens = 50, .abort_at_ns = 100'000'000},
                {.prompt_tokens = 5, .output_tokens = 50, .abort_at_ns = 100'000'000}});
  const Replayed result = replay(list, 100, {.concurrency = 1});
  EXPECT_EQ(result.counters.aborted, 2);
  EXPECT_GT(result.retired[0].generated, 0);
  EXPECT_EQ(result.retired[1].admitted_ns, -1);
}

TEST(Scheduler, RepeatedSourceIdsAreTwoRequests) {  // TR-08
  const RequestList list =
      requests({{.prompt_tokens = 5, .output_tokens = 50, .source_id = 7},
                {.prompt_tokens = 6, .output_tokens = 2, .abort_after_tokens = 1, .source_id = 7},
                {.prompt_tokens = 5, .output_tokens = 2, .source_id = 7}});
  const Replayed result = replay(list, 1000);
  std::set<std::int64_t> seen;
  for (const Retired& what : result.retired) seen.insert(what.request);
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(result.counters.aborted, 1);
}

TEST(Scheduler, TraceArrivalsAreWaitedFor) {
  const RequestList list =
      requests({{.arrival_ns = 0, .prompt_tokens = 5, .output_tokens = 1},
                {.arrival_ns = 5 * kNanosPerSecond, .prompt_tokens = 5, .output_tokens = 1}});
  const Replayed result = replay(list, 100, {.arrivals = Arrivals::trace});
  EXPECT_EQ(result.retired[1].arrival_ns, 5 * kNanosPerSecond);
  EXPECT_GE(result.retired[1].admitted_ns, 5 * kNanosPerSecond);
  EXPECT_EQ(result.counters.running_max, 1);
  EXPECT_EQ(replay(list, 100).counters.running_max, 2);  // backlog
}

TEST(Scheduler, AClosedLoopTurnWaitsForTheOneBefore) {
  const RequestList list = requests(
      {{.prompt_tokens = 5, .output_tokens = 9, .session_id = 1},
       {.prompt_tokens = 6, .output_tokens = 2, .session_id = 1, .think_ns = kNanosPerSecond},
       {.prompt_tokens = 7, .output_tokens = 2, .session_id = 1, .think_ns = kNanosPerSecond}});
  const Replayed timed = replay(list, 100, {.arrivals = Arrivals::trace});
  ASSERT_EQ(timed.retired.size(), 3U);
  EXPECT_EQ(timed.counters.running_max, 1);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(timed.retired[i].request, static_cast<std::int64_t>(i));
    EXPECT_EQ(timed.retired[i].arrival_ns, timed.retired[i - 1].finished_ns + kNanosPerSecond);
  }
  EXPECT_EQ(replay(list, 100).counters.running_max, 1);
}

TEST(Scheduler, RefusedTurnsLetTheSessionGoOn) {
  const RequestList list =
      requests({{.prompt_tokens = 500, .output_tokens = 9, .session_id = 1},
                {.prompt_tokens = 6, .output_tokens = 2, .session_id = 1, .think_ns = 0}});
  const Replayed result = replay(list, 100);
  EXPECT_EQ(result.counters.refused, 1);
  EXPECT_EQ(result.counters.finished, 1);
}

TEST(Scheduler, BadOptionsAreNamed) {
  const RequestList list = requests({{.prompt_tokens = 1, .output_tokens = 1}});
  KvManager kv({.pages = 10, .page_size = 1, .policy = "fifo"});
  EXPECT_THROW(Scheduler(list, {.concurrency = 0}, kv), InvalidArgument);
  EXPECT_THROW(Scheduler(list, {.token_budget = 0}, kv), InvalidArgument);
  EXPECT_THROW(Scheduler(list, {.watermark = 1.0}, kv), InvalidArgument);
  EXPECT_THROW(Scheduler(list, {.watermark = -0.1}, kv), InvalidArgument);
}

TEST(Scheduler, AnEmptyListIsDoneAtOnce) {
  EXPECT_EQ(replay(RequestList{}, 10).counters.steps, 0);
}

// Nothing lost, nothing leaked, and every invariant held, whatever the policy and the pressure.
class EveryPolicy : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, ReplaysEveryWorkloadUnderPressure) {
  for (const WorkloadInfo& info : list_workloads()) {
    for (const std::int64_t page_size : {1, 16}) {
      SCOPED_TRACE(info.name + ", page size " + std::to_string(page_size));
      const Workload workload = make_workload(info.name + ":requests=60", 3);
      RunOptions options;
      options.policy = GetParam();
      options.page_size = page_size;
      options.pool_tokens = 60'000;
      options.samples = 8;
      options.scheduler.concurrency = 24;
      options.check = true;
      const RunResult result = run(workload.list, options);  // throws when pages are left
      EXPECT_EQ(result.counters.retired(),
                static_cast<std::int64_t>(workload.list.requests.size()));
      EXPECT_EQ(result.counters.tokens_written, result.counters.tokens_released);
      EXPECT_EQ(result.requests.size(), workload.list.requests.size());
    }
  }
}

TEST_P(EveryPolicy, PlacementDoesNotChangeWhatHappens) {
  const Workload workload = make_workload("chat-azure:requests=400", 5);
  RunOptions options;
  options.pool_tokens = 20'000;
  options.scheduler.concurrency = 32;
  options.policy = "fifo";
  const RunResult fifo = run(workload.list, options);
  options.policy = GetParam();
  const RunResult other = run(workload.list, options);
  EXPECT_GT(fifo.counters.preemptions, 0);
  EXPECT_EQ(other.counters.preemptions, fifo.counters.preemptions);
  EXPECT_EQ(other.counters.alloc_fail_capacity, fifo.counters.alloc_fail_capacity);
  EXPECT_EQ(other.counters.steps, fifo.counters.steps);
  EXPECT_EQ(other.steady_oracle_run_mean, fifo.steady_oracle_run_mean);
  EXPECT_LE(other.steady.run_mean, other.steady_oracle_run_mean + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         ::testing::Values("fifo", "lifo", "sorted", "lowest", "run"),
                         [](const auto& each) { return each.param; });

TEST(Run, RunKeepsSequencesTogetherWhereFifoScattersThem) {
  const Workload workload = make_workload("chat-azure:requests=1500", 1);
  RunOptions options;
  options.pool_tokens = 65'536;
  options.scheduler.concurrency = 32;
  options.policy = "fifo";
  const RunResult fifo = run(workload.list, options);
  options.policy = "run";
  const RunResult ours = run(workload.list, options);
  EXPECT_LT(fifo.steady.contig_decode, 0.05);
  EXPECT_GT(ours.steady.contig_decode, 0.95);
  EXPECT_GT(ours.steady.contig_prefill, 0.99);
  EXPECT_GT(ours.steady.run_mean, 20 * fifo.steady.run_mean);
}

TEST(Run, AFreshPoolGivesWholePromptsAndScatteredDecodes) {
  // The first sample comes before anything is freed: the head of the list is in order.
  std::vector<Request> each(8, Request{.prompt_tokens = 100, .output_tokens = 50});
  RunOptions options;
  options.policy = "fifo";
  options.pool_tokens = 4000;
  options.samples = 12;
  const RunResult result = run(requests(each), options);
  ASSERT_FALSE(result.samples.empty());
  const Metrics& last = result.samples[result.samples.size() - 2].metrics;
  EXPECT_DOUBLE_EQ(last.contig_prefill, 1.0);
  EXPECT_DOUBLE_EQ(last.contig_decode, 0.0);
}

TEST(Run, BadPoolsAreRefused) {
  const RequestList list = requests({{.prompt_tokens = 1, .output_tokens = 1}});
  RunOptions options;
  options.page_size = 64;
  options.pool_tokens = 63;
  EXPECT_THROW((void)run(list, options), InvalidArgument);
  options.page_size = 0;
  EXPECT_THROW((void)run(list, options), InvalidArgument);
  options.page_size = 1;
  options.pool_tokens = std::int64_t{1} << 40;
  EXPECT_THROW((void)run(list, options), InvalidArgument);
  options.pool_tokens = 100;
  options.policy = "none";
  EXPECT_THROW((void)run(list, options), InvalidArgument);
}

TEST(Run, AnErrorOfOneRunReachesTheCaller) {
  const RequestList list = requests({{.prompt_tokens = 1, .output_tokens = 1}});
  std::vector<RunOptions> options(3);
  options[1].policy = "none";
  EXPECT_THROW((void)run_all(list, options, 2), InvalidArgument);
}

}  // namespace
}  // namespace packstone::sim
