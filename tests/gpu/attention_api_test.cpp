// SPDX-License-Identifier: Apache-2.0
// The public face of attention on the device: the object, its refusals, the merge.
#include "tests/gpu/attention_device.hpp"

#include <packstone/cuda/attention.hpp>

#include <cmath>
#include <random>

namespace packstone::test {
namespace {

class AttentionApi : public AttentionDeviceTest {};

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct States {
  std::int32_t parts;
  std::int64_t rows;
  std::int32_t dim;
  std::vector<float> out;
  std::vector<float> lse;
};

// Every third row of every part empty, and rows 0 of all parts; NaN in the values of empty ones.
States draw_states(std::int32_t parts, std::int64_t rows, std::int32_t dim) {
  std::mt19937 rng(static_cast<std::uint32_t>(parts * 1000 + dim));
  std::normal_distribution<float> normal;
  States states{parts, rows, dim, {}, {}};
  for (std::int32_t p = 0; p < parts; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool empty = r == 0 || (r + p) % 3 == 0;
      states.lse.push_back(empty ? kEmpty : 10.0F * normal(rng));
      for (std::int32_t d = 0; d < dim; ++d) {
        states.out.push_back(empty ? std::nanf("") : normal(rng));
      }
    }
  }
  return states;
}

void expect_merged_as_reference(const States& states, LseBase base) {
  DeviceArray out, lse, merged_out, merged_lse;
  out.upload(states.out);
  lse.upload(states.lse);
  const auto rows = static_cast<std::size_t>(states.rows);
  const auto values = rows * static_cast<std::size_t>(states.dim);
  merged_out.upload(std::vector<float>(values, std::nanf("")));
  merged_lse.upload(std::vector<float>(rows, std::nanf("")));
  cuda::merge_states({.parts = states.parts,
                      .rows = states.rows,
                      .dim = states.dim,
                      .type = FloatType::fp32,
                      .lse_base = base,
                      .out = out.as<void>(),
                      .part_stride = states.rows * states.dim * 4,
                      .lse = lse.as<float>(),
                      .lse_part_stride = states.rows * 4,
                      .merged_out = merged_out.as<void>(),
                      .merged_lse = merged_lse.as<float>()},
                     nullptr);
  std::vector<float> got_out, got_lse;
  merged_out.download(&got_out);
  merged_lse.download(&got_lse);
  std::vector<float> want_out(values), want_lse(rows);
  reference_merge({.out = states.out.data(),
                   .lse = states.lse.data(),
                   .parts = states.parts,
                   .rows = states.rows,
                   .dim = states.dim,
                   .lse_base = base},
                  want_out.data(), want_lse.data());
  for (std::size_t r = 0; r < rows; ++r) {
    if (std::isinf(want_lse[r])) {
      EXPECT_EQ(got_lse[r], kEmpty) << "row " << r;
    } else {
      EXPECT_NEAR(got_lse[r], want_lse[r], 1e-4F) << "row " << r;
    }
  }
  for (std::size_t i = 0; i < values; ++i) {
    ASSERT_NEAR(got_out[i], want_out[i], 1e-4F) << "value " << i;
  }
}

TEST_F(AttentionApi, MG01_MergeOfEmptyAndFullParts) {
  for (const std::int32_t parts : {1, 2, 3, 64}) {
    for (const std::int32_t dim : {1, 64, 512, 513}) {
      for (const LseBase base : {LseBase::natural, LseBase::two}) {
        SCOPED_TRACE(testing::Message() << parts << " parts of " << dim);
        expect_merged_as_reference(draw_states(parts, 37, dim), base);
      }
    }
  }
}

TEST_F(AttentionApi, MG01_OneFiniteStateComesBackBitForBit) {
  const std::vector<float> a(64, 0.3F);
  DeviceArray out_a, lse_a, out_b, lse_b, merged_out, merged_lse;
  out_a.upload(a);
  lse_a.upload(std::vector<float>{1.7F});
  out_b.upload(std::vector<float>(64, std::nanf("")));
  lse_b.upload(std::vector<float>{kEmpty});
  merged_out.upload(std::vector<float>(64, 9.0F));
  merged_lse.upload(std::vector<float>{9.0F});
  cuda::merge_states({.out = out_b.as<void>(), .lse = lse_b.as<float>()},
                     {.out = out_a.as<void>(), .lse = lse_a.as<float>()},
                     {.rows = 1,
                      .dim = 64,
                      .merged_out = merged_out.as<void>(),
                      .merged_lse = merged_lse.as<float>()},
                     nullptr);
  std::vector<float> got, lse;
  merged_out.download(&got);
  merged_lse.download(&lse);
  EXPECT_EQ(got, a);
  EXPECT_EQ(lse[0], 1.7F);
}

TEST_F(AttentionApi, MergeRefusesWhatIsNoMerge) {
  EXPECT_THROW(cuda::merge_states({.parts = 0, .rows = 1, .dim = 1}, nullptr), InvalidArgument);
  EXPECT_THROW(cuda::merge_states({.parts = 1, .rows = 1, .dim = 1}, nullptr), InvalidArgument);
  EXPECT_NO_THROW(cuda::merge_states({.parts = 1, .rows = 0, .dim = 1}, nullptr));
}

TEST_F(AttentionApi, RunsWhatTheKernelsRun) {
  for (const AttentionKind kind : {AttentionKind::mla, AttentionKind::gqa}) {
    AttentionCase description;
    description.kind = kind;
    description.prefix = {100, 0, 33};
    description.q_len = {9, 3, 1};
    AttentionInputs inputs(description);
    DeviceInputs device(inputs);
    const VerifyPlanOptions options{.bounds = bounds_of(inputs)};
    const DeviceResult want = run_on(device, options);

    device.poison_outputs(inputs);
    const cuda::TreeVerify verify(options);
    const Scratch scratch(verify.workspace_bytes(device.params()));
    verify.run(device.params(), scratch.data(), scratch.bytes(), nullptr);
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_EQ((DeviceResult{device.out(), device.lse()}), want);
    EXPECT_TRUE(scratch.guards_intact());
    EXPECT_THROW(verify.run(device.params(), scratch.data(), scratch.bytes() - 1, nullptr),
                 InvalidArgument);
  }
}

TEST_F(AttentionApi, DescribesTheDeviceAndItsKernels) {
  const cuda::AttentionDescription description = cuda::describe_attention();
  EXPECT_FALSE(description.device_name.empty());
  EXPECT_FALSE(description.binary_architectures.empty());
  const cuda::DeviceLimits limits = cuda::current_device_limits();
  EXPECT_GE(limits.code_capability, 80);
  EXPECT_LE(limits.code_capability, limits.compute_capability);
  EXPECT_EQ(description.kernels.size(), 8U + 18U);
  for (const cuda::KernelDescription& kernel : description.kernels) {
    EXPECT_GT(kernel.registers, 0) << kernel.name;
    EXPECT_LE(kernel.shared_bytes, 101'376) << kernel.name;
  }
}

TEST(AttentionApiWithoutDevice, BoundsBelowZeroOrNoDeviceIsAnErrorBeforeAnyLaunch) {
  EXPECT_THROW(cuda::TreeVerify({.bounds = {.batch_max = -1}}), Error);
}

}  // namespace
}  // namespace packstone::test
