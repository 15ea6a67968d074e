// SPDX-License-Identifier: Apache-2.0
// Faults that users of other attention libraries met, each by the name it has in the project's list
// of faults.
#include "tests/attention_fault_inputs.hpp"
#include "tests/gpu/attention_device.hpp"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/stream.hpp>

#include <cmath>
#include <thread>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using test::DeviceInputs;
using test::DeviceResult;
using test::run_device;

class AttentionFaults : public test::AttentionKindTest {};
/// Rows with their own scales are MLA rows.
class MlaFaults : public AttentionFaults {};

INSTANTIATE_TEST_SUITE_P(Kinds, MlaFaults, ::testing::Values(AttentionKind::mla));
INSTANTIATE_TEST_SUITE_P(Kinds, AttentionFaults,
                         ::testing::Values(AttentionKind::gqa, AttentionKind::mla),
                         [](const auto& kind) {
                           return kind.param == AttentionKind::gqa ? "gqa" : "mla";
                         });

std::vector<float> values_of(const DeviceResult& result, const AttentionCase& c) {
  return test::decode_output(result.out, c.out_type);
}

TEST_P(AttentionFaults, AT02_PagesOnEitherSideOfTwoAndFourBillionElements) {
  // GQA: rows of 256 values, so pages of 64 tokens are 16,384 elements and page 131,072 starts at
  // 2^31, page 262,144 at 2^32. MLA: 36,864 elements a page; the borders lie in pages 58,254 and
  // 116,508.
  AttentionCase c = base_case();
  c.page_size = 64;
  c.prefix = {64 * 6 - 4};
  c.q_len = {4};
  c.placement = test::Placement::fresh;
  AttentionInputs inputs(c);
  const DeviceResult want = run_device(inputs);
  EXPECT_EQ(test::compare_with_oracle(inputs, want), "");

  const std::int64_t page_bytes = 64 * inputs.k_row_bytes();
  const std::vector<std::int64_t> high =
      is_gqa() ? std::vector<std::int64_t>{131'071, 131'072, 262'143, 262'144, 1, 262'145}
               : std::vector<std::int64_t>{58'254, 58'255, 116'508, 116'509, 1, 116'519};
  const std::int64_t pages = high.back() + 1;
  const cuda::DeviceMemory k(pages * page_bytes);
  const cuda::DeviceMemory v(is_gqa() ? pages * page_bytes : 0);
  DeviceInputs device(inputs);
  std::vector<std::int32_t> table;
  for (std::size_t i = 0; i < high.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(page_bytes);
    const std::int64_t from = inputs.entry(static_cast<std::int64_t>(i)) * page_bytes;
    const std::int64_t to = high[i] * page_bytes;
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(k.data() + to, inputs.pool_k.data() + from, bytes, cudaMemcpyHostToDevice));
    table.push_back(static_cast<std::int32_t>(high[i]));
    if (!is_gqa()) continue;
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(v.data() + to, inputs.pool_v.data() + from, bytes, cudaMemcpyHostToDevice));
  }
  test::DeviceArray high_table;
  high_table.upload(table);
  VerifyParams& p = device.params();
  p.pool.k = k.data();
  if (is_gqa()) p.pool.v = v.data();
  p.pool.rows = pages * 64;
  p.table.entries = high_table.as<void>();
  EXPECT_TRUE(test::run_on(device, {.bounds = test::bounds_of(inputs)}) == want);
}

TEST_P(AttentionFaults, AT04_FullyMaskedRowsFirstInTheMiddleLastAndAWholeTile) {
  for (const std::int32_t q_len : {9, 150}) {
    AttentionCase c = base_case();
    c.prefix = {0};
    c.q_len = {q_len};
    c.mask = MaskKind::words;
    AttentionInputs inputs(c);
    const std::vector<std::pair<int, int>> empty = {
        {0, 1}, {4, 5}, {q_len - 1, q_len}, {q_len / 3, q_len / 3 + q_len / 2}};
    for (const auto& [first, last] : empty) {
      for (std::int32_t i = first; i < last; ++i) {
        for (std::int32_t j = 0; j < q_len; ++j) inputs.set_bit(i, j, false);
      }
    }
    const DeviceResult got = run_device(inputs);
    EXPECT_EQ(test::compare_with_oracle(inputs, got), "");
    EXPECT_EQ(got.lse[0], -INFINITY);
    EXPECT_EQ(values_of(got, c)[0], 0.0F);
  }
}

TEST_P(AttentionFaults, AT05_EmptyLengthsAndBatches) {
  AttentionCase c = base_case();
  c.prefix = {0, 5, 0, 64};
  c.q_len = {1, 1, 1, 1};
  c.tail = TailPlace::none;
  test::expect_right(c);
  c.prefix = {0, 0, 0};
  c.q_len = {1, 40, 1};
  test::expect_right(c);  // All empty, and a table of 0 columns.
  c.q_len = {0, 0, 0};
  test::expect_right(c);
  c.prefix = {};
  c.q_len = {};
  c.padded_tokens = 0;
  AttentionInputs none(c);
  DeviceInputs device(none);
  VerifyPlanOptions options;
  const test::Scratch scratch(test::workspace_bytes(device.params(), options));
  EXPECT_NO_THROW(
      test::enqueue(device.params(), options, scratch.data(), scratch.bytes(), nullptr));
}

TEST_P(AttentionFaults, AT07_OnesGiveExactlyOneAndTheLogOfTheCount) {
  for (const std::int32_t length : {1, 255, 256, 257}) {
    AttentionCase c = base_case();
    c.prefix = {length};
    c.tail = TailPlace::none;
    c.padded_tokens = 0;
    AttentionInputs inputs(c);
    std::fill(inputs.q.begin(), inputs.q.end(), std::uint8_t{0});
    const std::uint16_t one = encode_bf16(1.0F);
    for (std::int64_t t = 0; t < length; ++t) {
      auto& pool = is_gqa() ? inputs.pool_v : inputs.pool_k;
      const std::int64_t stride = is_gqa() ? inputs.v_row_bytes() : inputs.k_row_bytes();
      std::uint8_t* row = pool.data() + inputs.slot_of_token(0, t) * stride;
      for (std::int64_t i = 0; i < stride; i += 2) std::memcpy(row + i, &one, 2);
    }
    const DeviceResult got = run_device(inputs);
    for (const float value : values_of(got, c)) EXPECT_EQ(value, 1.0F);
    for (const float lse : got.lse) EXPECT_NEAR(lse, std::log(static_cast<float>(length)), 1e-5);
  }
}

TEST_P(AttentionFaults, AT08_VeryShortLengths) {
  for (std::int32_t length = 1; length <= 20; ++length) {
    AttentionCase c = base_case();
    c.heads = 14;
    c.page_size = 16;
    c.prefix = {length};
    c.q_len = {8};
    test::expect_right(c);
  }
}

TEST_P(AttentionFaults, AT09_TablesExactlyAsLongAsNeeded) {
  // A CSR table is its own allocation and ends with the last live entry; a checker sees any read
  // past it.
  for (const std::int32_t length : {1, 15, 16, 17, 31, 32, 33, 500}) {
    for (const std::int32_t page_size : {1, 16}) {
      AttentionCase c = base_case();
      c.page_size = page_size;
      c.csr = true;
      c.prefix = {length};
      c.tail = TailPlace::none;
      test::expect_right(c);
    }
  }
}

TEST_P(AttentionFaults, AT11_BatchesPastTheGridLimit) {
  for (const std::int32_t batch : {65'535, 65'536, 70'000}) {
    AttentionCase c = base_case();
    c.heads = 2;
    c.kv_heads = 1;
    c.head_dim = 64;
    c.prefix.assign(static_cast<std::size_t>(batch), 3);
    c.q_len.assign(static_cast<std::size_t>(batch), 1);
    test::expect_right(c);
  }
}

TEST_P(AttentionFaults, AT11_DecodesAndTreesOfMoreSequencesThanTheScheduleHasThreads) {
  const std::int32_t q_lens[] = {1, 9, 0, 17};
  const std::int32_t prefixes[] = {3, 40, 100};
  AttentionCase c = base_case();
  c.prefix.clear();
  c.q_len.clear();
  for (std::size_t b = 0; b < 2'500; ++b) {
    c.q_len.push_back(q_lens[b % 4]);
    c.prefix.push_back(prefixes[b % 3]);
  }
  test::expect_right(c);
}

TEST_P(AttentionFaults, AT12_GroupSizes) {
  const std::int32_t ratios[][2] = {{28, 4}, {24, 4}, {20, 4}, {64, 4}, {3, 1}, {128, 1}};
  for (const auto& [heads, kv_heads] : ratios) {
    for (const std::int32_t q_len : {1, 3, 65}) {
      AttentionCase c = base_case();
      c.heads = heads;
      c.kv_heads = is_gqa() ? kv_heads : 1;
      c.prefix = {333};
      c.q_len = {q_len};
      test::expect_right(c);
    }
  }
  AttentionInputs inputs(base_case());
  VerifyParams p = inputs.params();
  p.kv_heads = 3;
  EXPECT_THROW(validate(p), InvalidArgument);
  p = inputs.params();
  p.head_dim_k = p.head_dim_v = 96;
  EXPECT_THROW((void)test::workspace_bytes(p, {}), InvalidArgument);
}

TEST_P(AttentionFaults, AT14_MasksOfEarlierCallsDoNotStay) {
  AttentionCase c = base_case();
  c.prefix = {40, 7, 300, 0, 65, 12};
  c.q_len = {9, 2, 33, 1, 64, 5};
  AttentionInputs tree(c);
  c.prefix = {40, 300};
  c.q_len = {9, 33};
  c.mask = MaskKind::causal;
  AttentionInputs chain(c);
  c.prefix = {1, 2, 3};
  c.q_len = {60, 1, 17};
  c.mask = MaskKind::words;
  c.seed = 9;
  AttentionInputs words(c);
  const VerifyPlanOptions options{.bounds = test::bounds_of(tree)};
  const test::Scratch scratch(test::workspace_bytes(tree.params(), options));
  for (AttentionInputs* inputs : {&tree, &chain, &words}) {
    DeviceInputs device(*inputs);
    test::enqueue(device.params(), options, scratch.data(), scratch.bytes(), nullptr);
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(test::compare_with_oracle(*inputs, {device.out(), device.lse()}), "");
  }
}

TEST_P(AttentionFaults, AT15_EightBitScalesZeroTokensAndOutliers) {
  for (const float scale : {1e-4F, 1.0F, 10.0F}) {
    AttentionCase c = base_case();
    c.kv_type = KvType::e4m3;
    c.prefix = {100};
    c.k_scale = is_gqa() ? 0.02F : scale;
    c.v_scale = scale;
    c.kv_spread = 30.0F;
    c.scale = 0.002F / c.k_scale;
    c.out_type = FloatType::fp32;
    AttentionInputs inputs(c);
    auto& pool = is_gqa() ? inputs.pool_v : inputs.pool_k;
    const std::int64_t stride = is_gqa() ? inputs.v_row_bytes() : inputs.k_row_bytes();
    const auto row = [&](std::int64_t t) {
      return pool.data() + inputs.slot_of_token(0, t) * stride;
    };
    std::memset(row(3), 0, static_cast<std::size_t>(stride));
    std::memset(row(4), 0x7E, static_cast<std::size_t>(stride));  // 448, the outlier
    EXPECT_EQ(test::compare_with_oracle(inputs, run_device(inputs)), "") << scale;
  }
}

TEST_P(MlaFaults, AT15_EachTileOfARowHasItsOwnScaleAndTheRopePartHasNone) {
  test::EightBitRows rows = test::rows_with_tile_scales();
  const DeviceResult got = run_device(rows.inputs);
  EXPECT_EQ(test::wrong_rows(rows, values_of(got, rows.inputs.description()), got.lse, 1.0 / 128),
            "");
}

TEST_P(MlaFaults, AT15_OneScaleKeepsBothPartsWithinTheBoundOfTheFormat) {
  test::EightBitRows rows = test::rows_with_one_scale();
  const DeviceResult got = run_device(rows.inputs);
  // The format's bound, and that of bf16 products.
  EXPECT_EQ(test::wrong_rows(rows, values_of(got, rows.inputs.description()), got.lse,
                             1.0 / 16 + 1.0 / 128),
            "");
}

TEST_P(AttentionFaults, AT16_VeryLongLengths) {
  for (const std::int32_t length : {131'071, 131'072, 131'073, 262'145}) {
    for (const std::int32_t splits : {0, 1}) {
      AttentionCase c = base_case();
      c.heads = 4;
      c.kv_heads = 1;
      c.prefix = {length};
      VerifyPlanOptions options;
      options.splits = splits;
      test::expect_right(c, options);
    }
  }
}

TEST_P(AttentionFaults, NaNInATailKeyReachesOnlyTheRowsThatSeeIt) {
  AttentionCase c = base_case();
  c.prefix = {30};
  c.q_len = {12};
  c.tree = test::TreeShape::star;
  AttentionInputs inputs(c);
  // Node 5 is a leaf: its K and V are NaN, so its own row is NaN and no other.
  const std::int64_t slot = inputs.slot_of_token(0, 35);
  std::memset(inputs.pool_k.data() + slot * inputs.k_row_bytes(), 0xFF,
              static_cast<std::size_t>(inputs.k_row_bytes()));
  if (is_gqa()) {
    std::memset(inputs.pool_v.data() + slot * inputs.v_row_bytes(), 0xFF,
                static_cast<std::size_t>(inputs.v_row_bytes()));
  }
  EXPECT_EQ(test::compare_with_oracle(inputs, run_device(inputs)), "");
  if (!is_gqa()) return;
  // With a sound K, the row gives the NaN of V a weight.
  std::memset(inputs.pool_k.data() + slot * inputs.k_row_bytes(), 0,
              static_cast<std::size_t>(inputs.k_row_bytes()));
  EXPECT_EQ(test::compare_with_oracle(inputs, run_device(inputs)), "");
}

TEST_P(AttentionFaults, ScalesOfEverySign) {
  for (const float scale : {-0.5F, 0.0F, 1e-39F, 1e-37F, 0.5F}) {
    for (const std::int32_t q_len : {1, 30}) {
      AttentionCase c = base_case();
      c.scale = scale;
      c.q_len = {q_len};
      test::expect_right(c);
    }
  }
}

TEST_P(AttentionFaults, LargeValuesAndOneKeyThatDominates) {
  AttentionCase c = base_case();
  c.kv_spread = 6.4F;  // 64 times the usual
  c.prefix = {1'000};
  c.q_len = {9};
  test::expect_right(c);
}

TEST_P(AttentionFaults, MG02_EmptyPartialsTakeNoWeight) {
  // The first 2,000 tokens of a list are none, so whole pieces are empty and merge with pieces that
  // are not.
  AttentionCase c = base_case();
  c.prefix = {2'100};
  c.q_len = {3};
  c.topk = 2'100;
  c.tail = TailPlace::none;
  AttentionInputs inputs(c);
  for (std::int64_t t = 0; t < 3; ++t) {
    std::fill_n(inputs.sparse.begin() + t * inputs.sparse_stride, 2'000, -1);
  }
  for (const std::int32_t splits : {0, 7, 32}) {
    VerifyPlanOptions options;
    options.splits = splits;
    EXPECT_EQ(test::compare_with_oracle(inputs, run_device(inputs, options)), "") << splits;
  }
  std::fill(inputs.sparse.begin(), inputs.sparse.end(), -1);
  VerifyPlanOptions options;
  options.splits = 5;
  const DeviceResult got = run_device(inputs, options);
  EXPECT_EQ(test::compare_with_oracle(inputs, got), "");
  EXPECT_EQ(got.lse[0], -INFINITY);
}

void expect_all_near(const std::vector<float>& values, double want) {
  ASSERT_FALSE(values.empty());
  for (const float value : values) ASSERT_NEAR(double{value}, want, 1e-5 * std::fabs(want));
}

TEST_P(AttentionFaults, MG03_PiecesOfUnequalLengthMergeInEitherBase) {
  for (const LseBase base : {LseBase::natural, LseBase::two}) {
    AttentionCase c = base_case();
    c.lse_base = base;
    // Pieces of 64 and 40 keys: in another base their weights would be others.
    const std::int32_t lengths[][2] = {{3, 5}, {64, 40}};
    for (const auto& [ones, nines] : lengths) {
      AttentionInputs inputs = test::ones_and_nines(c, ones, nines);
      VerifyPlanOptions options;
      options.batch_invariant = true;
      options.split_tokens = 64;
      const DeviceResult got = run_device(inputs, options);
      expect_all_near(values_of(got, inputs.description()),
                      static_cast<double>(ones + 9 * nines) / (ones + nines));
      expect_all_near(got.lse, test::log_of(ones + nines, base));
    }
  }
}

TEST_P(AttentionFaults, MG03_TwoCallsMergeInEitherBase) {
  for (const LseBase base : {LseBase::natural, LseBase::two}) {
    AttentionCase c = base_case();
    c.lse_base = base;
    AttentionInputs ones = test::ones_and_nines(c, 3, 0);
    AttentionInputs nines = test::ones_and_nines(c, 0, 5);
    const DeviceResult first = run_device(ones);
    const DeviceResult second = run_device(nines);
    test::DeviceArray out_a, lse_a, out_b, lse_b, out, lse;
    out_a.upload(first.out);
    lse_a.upload(first.lse);
    out_b.upload(second.out);
    lse_b.upload(second.lse);
    out.upload(std::vector<std::uint8_t>(first.out.size(), 0xFF));
    lse.upload(std::vector<float>(first.lse.size(), -1.0F));
    cuda::merge_states({.out = out_a.as<void>(), .lse = lse_a.as<float>()},
                       {.out = out_b.as<void>(), .lse = lse_b.as<float>()},
                       {.rows = static_cast<std::int64_t>(first.lse.size()),
                        .dim = ones.head_dim_v(),
                        .type = FloatType::fp32,
                        .lse_base = base,
                        .merged_out = out.as<void>(),
                        .merged_lse = lse.as<float>()},
                       nullptr);
    DeviceResult merged;
    out.download(&merged.out);
    lse.download(&merged.lse);
    expect_all_near(values_of(merged, ones.description()), 6.0);
    expect_all_near(merged.lse, test::log_of(8, base));
  }
}

TEST_P(AttentionFaults, MG04_MoreSplitsThanTiles) {
  for (const std::int32_t q_len : {1, 20}) {
    AttentionCase c = base_case();
    c.prefix = {40};
    c.q_len = {q_len};
    for (const std::int32_t splits : {1, 2, 8, 64}) {
      VerifyPlanOptions options;
      options.splits = splits;
      test::expect_right(c, options);
    }
  }
}

TEST_P(AttentionFaults, MG06_ScratchPastTwoBillionElementsAndOneByteLess) {
  // GQA: 64 heads x 1,024 tokens x 257 pieces x 128 values; MLA: 16 heads x 1,024 tokens x 257
  // pieces x 512 values. Both are just over 2^31.
  AttentionCase c = base_case();
  c.heads = is_gqa() ? 64 : 16;
  c.kv_heads = is_gqa() ? 8 : 1;
  c.prefix = {8'200, 8'200, 8'200, 8'200};
  c.q_len = {256, 256, 256, 256};
  c.padded_tokens = 0;
  AttentionInputs inputs(c);
  VerifyPlanOptions options{.bounds = test::bounds_of(inputs)};
  const DeviceResult want = run_device(inputs, options);
  options.splits = 257;
  EXPECT_GT(test::workspace_bytes(inputs.params(), options), (std::int64_t{1} << 31) * 4);
  const DeviceResult got = run_device(inputs, options);
  EXPECT_EQ(test::difference(values_of(got, c), values_of(want, c)), "");
  EXPECT_EQ(test::difference(got.lse, want.lse, test::kLseTolerance), "");

  DeviceInputs device(inputs);
  options.splits = 0;
  const test::Scratch scratch(test::workspace_bytes(device.params(), options));
  EXPECT_THROW(
      test::enqueue(device.params(), options, scratch.data(), scratch.bytes() - 1, nullptr),
      InvalidArgument);
}

TEST_P(AttentionFaults, MG07_TheOutputIsTheSameWithoutLse) {
  AttentionCase c = base_case();
  c.prefix = {5'000};
  c.q_len = {3};
  AttentionInputs with(c);
  c.want_lse = false;
  AttentionInputs without(c);
  EXPECT_EQ(run_device(with).out, run_device(without).out);
}

TEST_P(AttentionFaults, SP03_MaskRowsWiderThanTheLiveTrees) {
  AttentionCase c = base_case();
  c.prefix = {11, 30};
  c.q_len = {7, 33};
  c.mask = MaskKind::words;
  AttentionInputs exact(c);
  c.words_extra = 3;
  AttentionInputs wide(c);
  EXPECT_TRUE(run_device(exact) == run_device(wide));
}

TEST_P(AttentionFaults, SP04_SiblingsWithEqualDepthDoNotSeeEachOther) {
  AttentionCase c = base_case();
  c.prefix = {100};
  c.q_len = {6};
  AttentionInputs inputs(c);
  const std::vector<std::int32_t> parents = {-1, 0, 1, 0, 2, 3};
  std::copy(parents.begin(), parents.end(), inputs.parents.begin());
  EXPECT_EQ(test::compare_with_oracle(inputs, run_device(inputs)), "");
}

TEST_P(AttentionFaults, BP02_EveryDeviceAndThread) {
  int devices = 0;
  PACKSTONE_CUDA_CHECK(cudaGetDeviceCount(&devices));
  const auto check = [](int device) {
    PACKSTONE_CUDA_CHECK(cudaSetDevice(device));
    AttentionCase c = base_case();
    c.prefix = {3'000};
    test::expect_right(c);
  };
  for (int device = 0; device < devices; ++device) check(device);
  std::thread first(check, 0);
  std::thread second(check, devices - 1);
  first.join();
  second.join();
  PACKSTONE_CUDA_CHECK(cudaSetDevice(0));
}

TEST(AttentionPolicy, BP01_SharedMemoryFitsTheDeviceOrThePlanFails) {
  for (const AttentionKind kind : {AttentionKind::gqa, AttentionKind::mla}) {
    for (const std::int32_t head_dim : {64, 128, 256}) {
      for (const std::int32_t q_len : {1, 65}) {
        for (const int limit : {16'384, 49'152, 101'376, 166'912, 232'448}) {
          AttentionCase c;
          c.kind = kind;
          c.head_dim = head_dim;
          AttentionInputs inputs(c);
          cuda::DeviceLimits device;
          device.multiprocessors = 100;
          device.compute_capability = 120;
          device.shared_bytes_per_block = limit;
          VerifyPlanOptions options;
          options.bounds = {
              .batch_max = 1, .tokens_max = q_len, .q_len_max = q_len, .length_max = 1'000};
          try {
            const VerifyParams params = inputs.params();
            const std::int32_t bytes =
                kind == AttentionKind::gqa
                    ? kernels::gqa_policy(params, options, device).shared_bytes()
                    : kernels::mla_policy(params, options, device).shared_bytes();
            EXPECT_LE(bytes, limit);
          } catch (const cuda::UnsupportedDevice& error) {
            EXPECT_LT(limit, 101'376) << error.what();
            EXPECT_NE(std::string(error.what()).find(std::to_string(limit)), std::string::npos)
                << error.what();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace packstone
