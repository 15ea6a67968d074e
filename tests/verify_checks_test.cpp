// SPDX-License-Identifier: Apache-2.0
// What `validate` refuses: each bad call differs from a good one in a single place.
#include "tests/support_attention.hpp"

#include <packstone/error.hpp>
#include <packstone/reference_verify.hpp>
#include <packstone/verify_checks.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using testing::HasSubstr;

AttentionCase good_case() {
  AttentionCase c;
  c.prefix = {20, 0, 33};
  c.q_len = {4, 1, 7};
  c.page_size = 16;
  c.tail = TailPlace::separate;
  return c;
}

AttentionCase gqa_case() {
  AttentionCase c = good_case();
  c.kind = AttentionKind::gqa;
  c.heads = 8;
  c.kv_heads = 2;
  return c;
}

using Change = std::function<void(AttentionInputs&, VerifyParams&, HostView&)>;

/// The message of the InvalidArgument that a changed call throws, with nothing written; empty when
/// it throws none.
std::string refusal(AttentionCase c, const Change& change) {
  AttentionInputs inputs(c);
  VerifyParams params = inputs.params();
  HostView view = inputs.view();
  validate(params, view);  // The unchanged call is good.
  change(inputs, params, view);
  try {
    validate(params, view);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(VerifyChecks, AT12_HeadCountsThatDoNotDivide) {
  EXPECT_THAT(refusal(gqa_case(), [](auto&, auto& p, auto&) { p.heads = 7; }),
              HasSubstr("kv_heads = 2 does not divide heads = 7"));
  EXPECT_THAT(refusal(gqa_case(), [](auto&, auto& p, auto&) { p.heads = 0; }),
              HasSubstr("heads = 0"));
  EXPECT_THAT(refusal(good_case(), [](auto&, auto& p, auto&) { p.heads = 129; }),
              HasSubstr("heads = 129"));
  EXPECT_THAT(refusal(good_case(), [](auto&, auto& p, auto&) { p.kv_heads = 2; }),
              HasSubstr("MLA has 1"));
  EXPECT_THAT(refusal(good_case(), [](auto&, auto& p, auto&) { p.head_dim_v = 576; }),
              HasSubstr("head_dim_v"));
  EXPECT_THAT(refusal(gqa_case(), [](auto&, auto& p, auto&) { p.head_dim_k = 100; }),
              HasSubstr("head_dim_k"));
}

TEST(VerifyChecks, TensorsThatAreNullMisalignedOrTooTight) {
  const AttentionCase c = good_case();
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.q.data = nullptr; }),
              HasSubstr("q.data is null"));
  EXPECT_THAT(
      refusal(c, [](auto&, auto& p, auto&) { p.pool.k = static_cast<const char*>(p.pool.k) + 8; }),
      HasSubstr("pool.k is not aligned"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.pool.k_stride_row = 1136; }),
              HasSubstr("pool.k_stride_row"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.pool.k_stride_row = 1160; }),
              HasSubstr("pool.k_stride_row"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.tail.rows = 14; }), HasSubstr("tail.rows"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.output.stride_head = 512; }),
              HasSubstr("output.stride_head"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.output.lse_stride_token = 4; }),
              HasSubstr("lse_stride"));
  EXPECT_THAT(refusal(gqa_case(), [](auto&, auto& p, auto&) { p.pool.v = nullptr; }),
              HasSubstr("pool.v is null"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.q.type = FloatType::fp16; }),
              HasSubstr("differs from kv_type"));
}

TEST(VerifyChecks, NumbersThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(good_case(), [&](auto&, auto& p, auto&) { p.scale = nan; }),
              HasSubstr("scale"));
  EXPECT_THAT(refusal(good_case(), [&](auto&, auto& p, auto&) { p.logit_cap = -1; }),
              HasSubstr("logit_cap"));
  EXPECT_THAT(refusal(good_case(), [&](auto&, auto& p, auto&) { p.k_scale = nan; }),
              HasSubstr("k_scale"));
}

TEST(VerifyChecks, AT10_PageIdsOutOfRangeInsideTheLiveRangeOnly) {
  for (const IndexType type : {IndexType::int32, IndexType::int64}) {
    AttentionCase c = good_case();
    c.index = type;
    AttentionInputs inputs(c);
    const std::int64_t pages = inputs.pool_rows / c.page_size;
    std::vector<std::int64_t> bad = {-1, pages, pages + 1, 2'147'483'647};
    if (type == IndexType::int64) bad.push_back(std::int64_t{1} << 40U);
    for (const std::int64_t page : bad) {
      AttentionInputs inside(c);
      inside.set_entry(1, page);  // The second and last live page of sequence 0.
      try {
        validate(inside.params(), inside.view());
        ADD_FAILURE() << "accepted page " << page;
      } catch (const PageError& error) {
        EXPECT_EQ(error.kind(), PageError::Kind::out_of_range);
        EXPECT_THAT(error.what(), HasSubstr("page " + std::to_string(page) + " of a pool of"));
        EXPECT_THAT(error.what(), HasSubstr("sequence 0"));
      }
      EXPECT_THROW(reference_verify(inside.params()), PageError);
      AttentionInputs outside(c);
      outside.set_entry(2, page);  // Past the live ones of sequence 0.
      EXPECT_NO_THROW(validate(outside.params(), outside.view()));
    }
  }
}

TEST(VerifyChecks, AT13_MasksOfTheWrongSize) {
  AttentionCase c = good_case();
  c.mask = MaskKind::words;
  c.q_len = {3, 65, 2};
  EXPECT_THAT(refusal(c, [](auto&, auto&, auto& v) { v.words.count = 2 * 69; }),
              HasSubstr("mask.words has 138 elements, but 139 are needed"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.mask.words_stride = 1; }),
              HasSubstr("65 nodes need 2 words"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.mask.words = nullptr; }),
              HasSubstr("mask.words is null"));
  c.mask = MaskKind::parents;
  EXPECT_THAT(refusal(c, [](auto&, auto&, auto& v) { v.parents.count = 69; }),
              HasSubstr("70 are needed"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.mask.parents = nullptr; }),
              HasSubstr("mask.parents is null"));
  c.topk = 5;
  EXPECT_THAT(refusal(c, [](auto&, auto&, auto& v) { v.sparse.count -= 20; }),
              HasSubstr("sparse.entries has"));
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.sparse[0] = 20; }),
              HasSubstr("query token 0 is 20"));
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.sparse[0] = -2; }), HasSubstr("is -2"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.sparse.stride = 4; }),
              HasSubstr("sparse.stride"));
}

TEST(VerifyChecks, ParentsThatMakeNoTree) {
  for (const std::int32_t parent : {2, 3, -2, 100}) {
    AttentionInputs inputs(good_case());
    inputs.parents[5 + 2] = parent;  // Node 2 of sequence 2.
    try {
      validate(inputs.params(), inputs.view());
      ADD_FAILURE() << "accepted parent " << parent;
    } catch (const TreeError& error) {
      EXPECT_EQ(error.node(), 2);
      EXPECT_THAT(error.what(), HasSubstr("sequence 2"));
    }
  }
}

TEST(VerifyChecks, AT17_LengthsThatContradict) {
  const AttentionCase c = good_case();
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.prefix_lens[1] = -1; }),
              HasSubstr("prefix_lens = -1 (sequence 1)"));
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.q_indptr[1] = 6; }),
              HasSubstr("q_indptr decreases from 6 to 5"));
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.q_indptr[3] = 16; }),
              HasSubstr("passes tokens = 15"));
  EXPECT_THAT(refusal(c, [](auto& in, auto&, auto&) { in.prefix_lens[2] = 81; }),
              HasSubstr("does not hold 81 tokens"));
  EXPECT_EQ(refusal(c,
                    [](auto& in, auto&, auto& v) {
                      in.prefix_lens[2] = 33;
                      (void)v;
                    }),
            "");
  EXPECT_THAT(refusal(c, [](auto&, auto&, auto& v) { v.prefix_lens.count = 2; }),
              HasSubstr("prefix_lens has 2"));
  EXPECT_THAT(refusal(c, [](auto&, auto&, auto& v) { v.q_indptr.count = 3; }),
              HasSubstr("q_indptr has 3"));
  EXPECT_THAT(refusal(c, [](auto&, auto& p, auto&) { p.table.page_size = 0; }),
              HasSubstr("page_size = 0"));
  AttentionCase csr = c;
  csr.csr = true;
  EXPECT_THAT(refusal(csr, [](auto& in, auto&, auto&) { in.table_indptr[1] = 9; }),
              HasSubstr("table.indptr decreases"));
  EXPECT_THAT(refusal(csr, [](auto&, auto&, auto& v) { v.table.count -= 1; }),
              HasSubstr("table.entries has"));
}

TEST(VerifyChecks, SP07_DraftsPastTheRowOfTheTableAreRefused) {
  AttentionCase c = good_case();
  c.tail = TailPlace::pool;
  c.prefix = {254};
  c.q_len = {2};
  EXPECT_THAT(refusal(c,
                      [](auto& in, auto& p, auto&) {
                        in.q_indptr[1] = 4;
                        p.table.row_stride = 16;
                      }),
              HasSubstr("does not hold 258 tokens"));
}

TEST(VerifyChecks, ContentThatOnlyTheDeviceKnowsIsNotJudged) {
  AttentionInputs inputs(good_case());
  VerifyParams p = inputs.params();
  inputs.prefix_lens[0] = -5;
  EXPECT_NO_THROW(validate(p));
  EXPECT_THROW(validate(p, inputs.view()), InvalidArgument);
}

TEST(VerifyChecks, ARefusedCallWritesNothing) {
  AttentionInputs inputs(good_case());
  inputs.parents[7] = 50;
  const auto before = inputs.out;
  EXPECT_THROW(reference_verify(inputs.params()), TreeError);
  EXPECT_EQ(inputs.out, before);
}

}  // namespace
}  // namespace packstone
