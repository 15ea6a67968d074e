// SPDX-License-Identifier: Apache-2.0
// The study's probe and its decode loop on a device, at small sizes: what is asked is right bits
// and complete figures, not speed.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/cuda/decode_loop.hpp>
#include <sim/cuda/gpu_probe.hpp>
#include <sim/cuda/probe_pool.hpp>
#include <sim/probe_case.hpp>
#include <sim/workload.hpp>

#include <algorithm>
#include <set>

namespace packstone::sim {
namespace {

class ProbeOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device";
    }
    std::string reason;
    probe = make_gpu_probe(
        reason, {.pool_bytes_max = Bytes{256} << 20, .transfer_bytes_max = Bytes{1} << 20});
    ASSERT_NE(probe, nullptr) << reason;
  }
  [[nodiscard]] static ProbeCase churned_case(const std::string& model, std::int64_t page_size,
                                              ProbeShape shape, bool reclaim) {
    KvModel small = kv_model(model);
    small.layers = 3;
    RunOptions options;
    options.policy = "fifo";
    options.page_size = page_size;
    options.pool_tokens = 16'384;
    options.scheduler.concurrency = 12;
    options.samples = 20;
    const RequestList list = make_workload("chat-azure:requests=150", 3).list;
    const std::int64_t step = checkpoint_step(run(list, options));
    std::optional<ProbeCase> made;
    replay_until(list, options, step,
                 [&](KvManager& kv, PrefixCache* cache, std::vector<SeqId> live) {
                   made = make_case(kv, cache, std::move(live), {small, shape},
                                    {.stages = 2, .reclaim = reclaim});
                 });
    EXPECT_TRUE(made.has_value());
    return std::move(*made);
  }
  std::unique_ptr<BandwidthProbe> probe;
};

TEST_F(ProbeOnDevice, EveryModelAndPageSizeGivesEveryFigure) {
  for (const char* model : {"kimi-k2", "kimi-k2-fp8", "glm-5", "llama-3-70b-tp8"}) {
    for (const std::int64_t page_size : {1, 16}) {
      SCOPED_TRACE(std::string(model) + " page " + std::to_string(page_size));
      const ProbeCase made = churned_case(
          model, page_size, {.batch = 2, .heads = 8, .q_len = 5, .length = 2048}, page_size == 16);
      ProbeResult result = probe->measure(made);
      settle(result);
      std::set<std::string> placements;
      for (const BandwidthFigure& figure : result.bandwidth) {
        EXPECT_EQ(figure.how, How::measured_gpu);
        EXPECT_GT(figure.gbps.min, 0.0);
        EXPECT_LE(figure.gbps.min, figure.gbps.median);
        EXPECT_LE(figure.gbps.median, figure.gbps.max);
        EXPECT_GT(figure.ceiling_gbps, 0.0);
        placements.insert(figure.placement);
      }
      for (const char* placement : {"identity", "churned", "stride", "random", "defragmented"})
        EXPECT_TRUE(placements.contains(placement)) << placement;
      EXPECT_EQ(result.layers, 3);
      ASSERT_TRUE(result.defrag.has_value());
      EXPECT_TRUE(result.defrag->outputs_identical.value_or(false));
      EXPECT_GT(result.defrag->moves, 0);
      EXPECT_GT(result.defrag->move_us, 0.0);
      EXPECT_FALSE(result.defrag->budgets.empty());
      EXPECT_GE(result.transfers.size(), 9U);  // three placements by three methods
    }
  }
}

TEST_F(ProbeOnDevice, FewerLayersWhereNotAllFit) {
  ProbeCase made =
      churned_case("kimi-k2", 1, {.batch = 1, .heads = 8, .q_len = 1, .length = 1024}, false);
  std::string reason;
  const Bytes layer = made.pool_bytes();
  const auto small = make_gpu_probe(
      reason, {.pool_bytes_max = 2 * layer + 4096, .transfer_bytes_max = Bytes{1} << 20});
  ASSERT_NE(small, nullptr) << reason;
  const ProbeResult result = small->measure(made);
  EXPECT_EQ(result.layers, 2);
  EXPECT_THAT(result.note, ::testing::HasSubstr("2 of 3 layers"));
}

TEST_F(ProbeOnDevice, TokensAreTheSameWithAndWithoutDefragBesideTheLoop) {
  for (const std::int64_t page_size : {1, 16}) {
    DecodeLoopOptions options{.model = kv_model("kimi-k2"),
                              .page_size = page_size,
                              .pages = 24'000 / page_size,
                              .batch = 3,
                              .prompt = 1500,
                              .steps = 24,
                              .budget = 512 / page_size,
                              .defrag_from = 3};
    options.model.layers = 4;
    const DecodeLoopResult with = run_decode_loop(options);
    options.budget = 0;
    const DecodeLoopResult without = run_decode_loop(options);
    EXPECT_GT(with.moves, 0);
    EXPECT_EQ(without.moves, 0);
    EXPECT_TRUE(with.tables_agree);
    EXPECT_TRUE(without.tables_agree);
    EXPECT_EQ(with.tokens, without.tokens);
    // The tokens are of attention's bits: sequences and steps differ.
    const std::set<std::uint64_t> distinct(with.tokens.begin(), with.tokens.end());
    EXPECT_EQ(distinct.size(), with.tokens.size());
    EXPECT_GT(with.steps.back().run_mean, without.steps.back().run_mean);
  }
}

}  // namespace
}  // namespace packstone::sim
