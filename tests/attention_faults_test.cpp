// SPDX-License-Identifier: Apache-2.0
// Faults of attention with known results, by their names in the project's list of faults, on the
// CPU. tests/gpu/attention_faults_test.cpp holds the kernels to the same inputs.
#include "tests/attention_fault_inputs.hpp"

#include <packstone/reference_verify.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace packstone {
namespace {

using ::testing::Each;
using ::testing::FloatEq;
using ::testing::FloatNear;

struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

Result run(test::AttentionInputs& inputs) {
  Result result;
  reference_verify(inputs.oracle_params(&result.out, &result.lse), {.threads = 1});
  return result;
}

TEST(AttentionFault, AT15_EachTileOfARowHasItsOwnScaleAndTheRopePartHasNone) {
  test::EightBitRows rows = test::rows_with_tile_scales();
  const Result got = run(rows.inputs);
  EXPECT_EQ(test::wrong_rows(rows, got.out, got.lse, 1e-6), "");
}

TEST(AttentionFault, AT15_OneScaleKeepsBothPartsWithinTheBoundOfTheFormat) {
  test::EightBitRows rows = test::rows_with_one_scale();
  const Result got = run(rows.inputs);
  EXPECT_EQ(test::wrong_rows(rows, got.out, got.lse, 1.0 / 16), "");
}

TEST(AttentionFault, MG03_PartsMergeInTheBaseThatTheyWereComputedIn) {
  for (const AttentionKind kind : {AttentionKind::mla, AttentionKind::gqa}) {
    for (const LseBase base : {LseBase::natural, LseBase::two}) {
      test::AttentionCase c;
      c.kind = kind;
      c.lse_base = base;
      test::AttentionInputs ones = test::ones_and_nines(c, 3, 0);
      test::AttentionInputs nines = test::ones_and_nines(c, 0, 5);
      Result parts = run(ones);
      const Result second = run(nines);
      const auto rows = static_cast<std::int64_t>(second.lse.size());
      parts.out.insert(parts.out.end(), second.out.begin(), second.out.end());
      parts.lse.insert(parts.lse.end(), second.lse.begin(), second.lse.end());
      Result merged{std::vector<float>(second.out.size()), std::vector<float>(second.lse.size())};
      reference_merge({.out = parts.out.data(),
                       .lse = parts.lse.data(),
                       .parts = 2,
                       .rows = rows,
                       .dim = ones.head_dim_v(),
                       .lse_base = base},
                      merged.out.data(), merged.lse.data());
      EXPECT_THAT(merged.out, Each(FloatNear(6.0F, 1e-6F)));
      EXPECT_THAT(merged.lse, Each(FloatEq(static_cast<float>(test::log_of(8, base)))));

      test::AttentionInputs whole = test::ones_and_nines(c, 3, 5);
      const Result at_once = run(whole);
      EXPECT_THAT(at_once.out, Each(FloatNear(6.0F, 1e-6F)));
      EXPECT_THAT(at_once.lse, Each(FloatEq(static_cast<float>(test::log_of(8, base)))));
    }
  }
}

}  // namespace
}  // namespace packstone
