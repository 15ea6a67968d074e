// SPDX-License-Identifier: Apache-2.0
// Captured calls: replayed with other lengths, tables and trees, and equal to eager ones.
#include "tests/gpu/attention_device.hpp"

#include <packstone/cuda/stream.hpp>

#include <random>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using test::DeviceInputs;
using test::DeviceResult;
using test::run_device;

class AttentionGraph : public test::AttentionKindTest {};

INSTANTIATE_TEST_SUITE_P(Kinds, AttentionGraph,
                         ::testing::Values(AttentionKind::gqa, AttentionKind::mla),
                         [](const auto& kind) {
                           return kind.param == AttentionKind::gqa ? "gqa" : "mla";
                         });

/// A captured call, replayed with whatever lies at the captured addresses.
class Graph {
 public:
  Graph(const VerifyParams& params, const VerifyPlanOptions& options,
        const test::Scratch& scratch) {
    PACKSTONE_CUDA_CHECK(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    test::enqueue(params, options, scratch.data(), scratch.bytes(), stream_.get());
    cudaGraph_t graph = nullptr;
    PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(stream_.get(), &graph));
    PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~Graph() { (void)cudaGraphExecDestroy(exec_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() {
    PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec_, stream_.get()));
    PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  }

 private:
  cuda::Stream stream_;
  cudaGraphExec_t exec_{nullptr};
};

TEST_P(AttentionGraph, GS05_AGraphForSixteenRequestsReplayedWithThree) {
  AttentionCase c = base_case();
  c.prefix.assign(16, 500);
  c.q_len.assign(16, 4);
  c.mask = MaskKind::parents;
  AttentionInputs many(c);
  DeviceInputs device(many);
  const VerifyPlanOptions options{.bounds = test::bounds_of(many)};
  const test::Scratch scratch(test::workspace_bytes(device.params(), options));  // 0xFF at first
  Graph graph(device.params(), options, scratch);
  graph.replay();
  EXPECT_EQ(test::compare_with_oracle(many, {device.out(), device.lse()}), "");
  // Now three live ones, the others without nodes; scratch still holds the larger plan.
  AttentionInputs three(c);
  for (std::size_t b = 0; b < 17; ++b)
    three.q_indptr[b] = static_cast<std::int32_t>(std::min<std::size_t>(4 * b, 12));
  three.prefix_lens[1] = 37;
  device.upload(three);
  graph.replay();
  EXPECT_EQ(test::compare_with_oracle(three, {device.out(), device.lse()}), "");
}

TEST_P(AttentionGraph, LayersAfterTheFirstReuseTheSchedule) {
  AttentionCase c = base_case();
  c.prefix = {700, 0, 33, 5000, 64};
  c.q_len = {9, 3, 0, 17, 1};
  c.mask = MaskKind::parents;
  c.tree = test::TreeShape::binary;  // the same tree whatever the seed
  for (const std::int32_t splits : {0, 3}) {
    AttentionInputs first(c);
    DeviceInputs device(first);
    const VerifyPlanOptions options{.bounds = test::bounds_of(first), .splits = splits};
    const test::Scratch scratch(test::workspace_bytes(device.params(), options));
    test::enqueue(device.params(), options, scratch.data(), scratch.bytes(), nullptr);
    // Other queries, rows and tables, lengths and trees as before.
    for (const std::uint64_t seed : {2U, 3U}) {
      c.seed = seed;
      AttentionInputs layer(c);
      DeviceInputs layer_device(layer);
      test::enqueue(layer_device.params(), options, scratch.data(), scratch.bytes(), nullptr,
                    ScheduleUse::reuse);
      PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
      const DeviceResult reused{layer_device.out(), layer_device.lse()};
      EXPECT_EQ(test::compare_with_oracle(layer, reused), "");
      EXPECT_TRUE(reused == run_device(layer, options));
    }
    EXPECT_TRUE(scratch.guards_intact());
  }
}

TEST_P(AttentionGraph, GS06_OneCaptureForLengthsOnEitherSideOfTileEdges) {
  AttentionCase c = base_case();
  c.prefix = {512, 512, 512, 512};
  c.q_len = {1, 1, 1, 1};
  AttentionInputs inputs(c);
  DeviceInputs device(inputs);
  const VerifyPlanOptions options{.bounds = test::bounds_of(inputs)};
  const test::Scratch scratch(test::workspace_bytes(device.params(), options));
  Graph graph(device.params(), options, scratch);
  const std::vector<std::vector<std::int32_t>> lengths = {
      {256, 256, 256, 256}, {1, 255, 257, 512}, {512, 257, 255, 1}, {0, 0, 0, 0}};
  for (const auto& prefix : lengths) {
    // Rows of shorter sequences lie in the same table, whose later entries then go unread.
    AttentionInputs shorter(c);
    shorter.prefix_lens = prefix;
    device.upload(shorter);
    graph.replay();
    EXPECT_EQ(test::compare_with_oracle(shorter, {device.out(), device.lse()}), "");
  }
}

TEST_P(AttentionGraph, GS07_PaddedRowsOfAGraphAreNeitherReadNorWritten) {
  AttentionCase c = base_case();
  c.prefix = {64, 3, 0, 200, 17};
  c.q_len = {1, 1, 1, 1, 1};
  c.padded_sequences = 3;
  c.padded_tokens = 3;  // Their q is NaN.
  test::expect_right(c);
}

TEST_P(AttentionGraph, GS09_GraphEqualsEagerForEveryPageSize) {
  for (const std::int32_t page_size : {1, 16, 64}) {
    AttentionCase c = base_case();
    c.page_size = page_size;
    c.prefix = {777, 64, 1};
    c.q_len = {5, 1, 30};
    AttentionInputs inputs(c);
    const DeviceResult eager = run_device(inputs);
    DeviceInputs device(inputs);
    const VerifyPlanOptions options{.bounds = test::bounds_of(inputs)};
    const test::Scratch scratch(test::workspace_bytes(device.params(), options));
    Graph graph(device.params(), options, scratch);
    device.poison_outputs(inputs);
    graph.replay();
    EXPECT_TRUE(eager == (DeviceResult{device.out(), device.lse()}));
  }
}

TEST_P(AttentionGraph, GraphEqualsEagerOverAThousandStepsOfGrowth) {
  AttentionCase c = base_case();
  c.head_dim = 64;
  c.prefix = {2'100, 1'500, 1'101};
  c.q_len = {7, 7, 7};
  c.page_size = 4;
  c.padded_tokens = 0;
  AttentionInputs inputs(c);
  DeviceInputs device(inputs);
  const VerifyPlanOptions options{.bounds = test::bounds_of(inputs)};
  const test::Scratch scratch(test::workspace_bytes(device.params(), options));
  const test::Scratch eager_scratch(scratch.bytes());
  Graph graph(device.params(), options, scratch);
  std::mt19937_64 rng(5);
  for (std::int32_t step = 0; step < 1000; ++step) {
    for (std::size_t b = 0; b < 3; ++b) {
      inputs.prefix_lens[b] = c.prefix[b] - 1'000 + step;
      const auto tree = test::make_tree(test::TreeShape::random, 7, &rng);
      std::copy(tree.begin(), tree.end(),
                inputs.parents.begin() + static_cast<std::ptrdiff_t>(7 * b));
    }
    if (step % 50 == 49) inputs.permute_pages();  // Other tables, as after a defragmentation.
    device.upload(inputs);
    graph.replay();
    const DeviceResult replayed{device.out(), device.lse()};
    device.poison_outputs(inputs);
    test::enqueue(device.params(), options, eager_scratch.data(), eager_scratch.bytes(), nullptr);
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    ASSERT_TRUE(replayed == (DeviceResult{device.out(), device.lse()})) << step;
    if (step % 100 == 0) {
      ASSERT_EQ(test::compare_with_oracle(inputs, replayed), "") << step;
    }
  }
}

}  // namespace
}  // namespace packstone
