// SPDX-License-Identifier: Apache-2.0
// The CPU oracle against a small dense implementation that shares nothing with it but the decoding
// of single values, and every fault of attention and merging that shows without a GPU.
#include "tests/support_attention.hpp"

#include <packstone/error.hpp>
#include <packstone/reference_verify.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using test::Placement;
using test::TreeShape;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Results of one implementation, as float, in the order [token, head, dim].
struct Result {
  std::vector<float> out;
  std::vector<float> lse;
};

Result run_reference(AttentionInputs& inputs, std::int32_t threads = 2) {
  Result result;
  reference_verify(inputs.oracle_params(&result.out, &result.lse), {.threads = threads});
  return result;
}

double stored(const std::uint8_t* row, KvType type, std::int32_t d) {
  std::uint16_t half = 0;
  if (type == KvType::bf16 || type == KvType::fp16) std::memcpy(&half, row + 2 * d, 2);
  if (type == KvType::bf16) return double{decode_bf16(half)};
  if (type == KvType::fp16) return double{decode_fp16(half)};
  return double{decode_e4m3(row[d])};
}

/// The dense oracle of the oracle: one query row at a time, a list of visible tokens, two passes of
/// softmax.
class Dense {
 public:
  explicit Dense(AttentionInputs& inputs) : in_(inputs), c_(inputs.description()) {}

  Result run() {
    Result result;
    const auto dim = static_cast<std::size_t>(in_.head_dim_v());
    const auto rows = static_cast<std::size_t>(in_.tokens * c_.heads);
    result.out.assign(rows * dim, std::numeric_limits<float>::quiet_NaN());
    result.lse.assign(rows, std::numeric_limits<float>::quiet_NaN());
    for (std::int32_t b = 0; b + 1 < static_cast<std::int32_t>(in_.q_indptr.size()); ++b) {
      for (std::int32_t node = 0; node < count(b); ++node) {
        for (std::int32_t head = 0; head < c_.heads; ++head) {
          const auto row = static_cast<std::size_t>((start(b) + node) * c_.heads + head);
          result.lse[row] = attend(b, node, head, result.out.data() + row * dim);
        }
      }
    }
    return result;
  }

 private:
  struct Row {
    const std::uint8_t* k;
    const std::uint8_t* rope;
    const std::uint8_t* v;
  };

  [[nodiscard]] std::int32_t start(std::int32_t b) const {
    return in_.q_indptr[static_cast<std::size_t>(b)];
  }
  [[nodiscard]] std::int32_t count(std::int32_t b) const { return start(b + 1) - start(b); }

  [[nodiscard]] bool sees(std::int32_t b, std::int32_t node, std::int32_t other) const {
    switch (c_.mask) {
      case MaskKind::causal:
        return other <= node;
      case MaskKind::full:
        return true;
      case MaskKind::words: {
        const auto word =
            in_.words[static_cast<std::size_t>((start(b) + node) * in_.words_stride + other / 64)];
        return (word >> (other % 64) & 1U) != 0;
      }
      case MaskKind::parents:
        break;
    }
    while (node > other) node = in_.parents[static_cast<std::size_t>(start(b) + node)];
    return node == other;
  }

  [[nodiscard]] Row pool_row(std::int64_t slot) const {
    return {in_.pool_k.data() + slot * in_.k_row_bytes(),
            in_.pool_rope.data() + slot * in_.rope_row_bytes(),
            in_.pool_v.data() + slot * in_.v_row_bytes()};
  }

  [[nodiscard]] std::vector<Row> visible(std::int32_t b, std::int32_t node) const {
    std::vector<Row> rows;
    const std::int64_t length = in_.prefix_lens[static_cast<std::size_t>(b)];
    for (std::int64_t t = 0; c_.topk == 0 && t < length; ++t)
      rows.push_back(pool_row(in_.slot_of_token(b, t)));
    for (std::int32_t i = 0; i < c_.topk; ++i) {
      const std::int32_t entry =
          in_.sparse[static_cast<std::size_t>((start(b) + node) * in_.sparse_stride + i)];
      if (entry == -1) continue;
      rows.push_back(
          pool_row(c_.sparse_unit == SparseUnit::slot ? entry : in_.slot_of_token(b, entry)));
    }
    for (std::int32_t j = 0; c_.tail != TailPlace::none && j < count(b); ++j) {
      if (!sees(b, node, j)) continue;
      const std::int64_t t = start(b) + j;
      rows.push_back(c_.tail == TailPlace::pool
                         ? pool_row(in_.slot_of_token(b, length + j))
                         : Row{in_.tail_k.data() + t * in_.k_row_bytes(),
                               in_.tail_rope.data() + t * in_.rope_row_bytes(),
                               in_.tail_v.data() + t * in_.v_row_bytes()});
    }
    return rows;
  }

  [[nodiscard]] double key(const Row& row, std::int32_t kv_head, std::int32_t d) const {
    if (c_.kind == AttentionKind::gqa)
      return c_.k_scale * stored(row.k, c_.kv_type, kv_head * c_.head_dim + d);
    const bool tile = c_.kv_type == KvType::e4m3_tile;
    if (d < 512) {
      double scale = c_.kv_type == KvType::e4m3 ? double{c_.k_scale} : 1.0;
      if (tile) {
        float tile_scale = 0;
        std::memcpy(&tile_scale, row.k + 512 + 4 * (d / 128), 4);
        scale = double{tile_scale};
      }
      return scale * stored(row.k, c_.kv_type, d);
    }
    const std::int64_t latent = tile ? 528 : (c_.kv_type == KvType::e4m3 ? 512 : 1024);
    const std::uint8_t* rope = c_.rope_apart ? row.rope : row.k + latent;
    const double scale = c_.kv_type == KvType::e4m3 ? double{c_.k_scale} : 1.0;
    return scale * stored(rope, tile ? KvType::bf16 : c_.kv_type, d - 512);
  }

  float attend(std::int32_t b, std::int32_t node, std::int32_t head, float* out) {
    const std::int32_t kv_head = head / (c_.heads / c_.kv_heads);
    const std::vector<Row> rows = visible(b, node);
    const std::uint8_t* q =
        in_.q.data() + (start(b) + node) * in_.q_token_bytes() + 2 * head * in_.head_dim_k();
    std::vector<double> scores;
    double peak = -kInfinity;
    for (const Row& row : rows) {
      double score = 0.0;
      for (std::int32_t d = 0; d < in_.head_dim_k(); ++d) {
        score += stored(q, c_.q_type == FloatType::bf16 ? KvType::bf16 : KvType::fp16, d) *
                 key(row, kv_head, d);
      }
      score *= double{c_.scale};
      if (c_.logit_cap > 0) score = double{c_.logit_cap} * std::tanh(score / double{c_.logit_cap});
      scores.push_back(score);
      peak = std::max(peak, score);
    }
    double total = 0.0;
    for (const double score : scores) total += std::exp(score - peak);
    for (std::int32_t d = 0; d < in_.head_dim_v(); ++d) {
      double sum = 0.0;
      for (std::size_t t = 0; t < rows.size(); ++t) {
        const double v =
            c_.kind == AttentionKind::mla
                ? key(rows[t], 0, d)
                : c_.v_scale * stored(rows[t].v, c_.kv_type, kv_head * c_.head_dim + d);
        sum += std::exp(scores[t] - peak) / total * v;
      }
      out[d] = static_cast<float>(sum);
    }
    if (rows.empty()) return static_cast<float>(-kInfinity);
    const double lse = peak + std::log(total);
    return static_cast<float>(c_.lse_base == LseBase::two ? lse / std::log(2.0) : lse);
  }

  AttentionInputs& in_;
  AttentionCase c_;
};

constexpr test::Tolerance kTight{1e-6, 1e-6, 1e-12};

void expect_dense(const AttentionCase& c, const std::string& name) {
  AttentionInputs inputs(c);
  const Result got = run_reference(inputs);
  const Result want = Dense(inputs).run();
  EXPECT_EQ(test::difference(got.out, want.out, kTight), "") << name;
  EXPECT_EQ(test::difference(got.lse, want.lse, kTight), "") << name;
}

AttentionCase mixed_batch() {
  AttentionCase c;
  c.heads = 3;
  c.prefix = {0, 5, 33, 1, 64, 0};
  c.q_len = {4, 1, 0, 9, 2, 1};
  return c;
}

TEST(ReferenceVerify, MatchesDenseForEveryRowFormatAndTable) {
  for (const KvType type : {KvType::bf16, KvType::fp16, KvType::e4m3, KvType::e4m3_tile}) {
    for (const std::int32_t page_size : {1, 3, 16}) {
      for (const bool apart : {false, true}) {
        AttentionCase c = mixed_batch();
        c.kv_type = type;
        c.q_type = type == KvType::fp16 ? FloatType::fp16 : FloatType::bf16;
        c.page_size = page_size;
        c.rope_apart = apart;
        c.csr = page_size == 3;
        c.index = apart ? IndexType::int64 : IndexType::int32;
        c.k_scale = type == KvType::e4m3 ? 0.5F : 1.0F;
        expect_dense(c, std::string(to_string(type)) + " page " + std::to_string(page_size));
      }
    }
  }
}

TEST(ReferenceVerify, MatchesDenseForEveryMaskAndTail) {
  for (const MaskKind mask :
       {MaskKind::causal, MaskKind::parents, MaskKind::words, MaskKind::full}) {
    for (const TailPlace tail : {TailPlace::pool, TailPlace::separate, TailPlace::none}) {
      for (const TreeShape tree :
           {TreeShape::chain, TreeShape::star, TreeShape::random, TreeShape::deep}) {
        AttentionCase c = mixed_batch();
        c.heads = 2;
        c.rope_dim = 0;
        c.mask = mask;
        c.tail = tail;
        c.tree = tree;
        c.q_len = {4, 1, 0, 70, 2, 1};
        c.words_extra = 1;
        expect_dense(c, "mask " + std::to_string(static_cast<int>(mask)) + " tail " +
                            std::to_string(static_cast<int>(tail)));
      }
    }
  }
}

TEST(ReferenceVerify, MatchesDenseForSparseLists) {
  for (const SparseUnit unit : {SparseUnit::position, SparseUnit::slot}) {
    for (const TailPlace tail : {TailPlace::pool, TailPlace::separate, TailPlace::none}) {
      AttentionCase c = mixed_batch();
      c.topk = 20;
      c.sparse_unit = unit;
      c.tail = tail;
      c.page_size = 3;
      expect_dense(c, "sparse");
    }
  }
}

TEST(ReferenceVerify, MatchesDenseForScaleCapAndBase) {
  AttentionCase c = mixed_batch();
  c.scale = 3.0F;
  c.logit_cap = 2.5F;
  c.lse_base = LseBase::two;
  c.kv_spread = 1.0F;
  expect_dense(c, "cap");
}

TEST(ReferenceVerify, SameBitsForAnyNumberOfThreads) {
  AttentionCase c = mixed_batch();
  c.prefix = {40'000, 3, 0, 17, 20'000, 1};
  c.kind = AttentionKind::gqa;
  c.head_dim = 16;
  AttentionInputs inputs(c);
  const Result one = run_reference(inputs, 1);
  const Result five = run_reference(inputs, 5);
  EXPECT_EQ(std::memcmp(one.out.data(), five.out.data(), one.out.size() * 4), 0);
  EXPECT_EQ(std::memcmp(one.lse.data(), five.lse.data(), one.lse.size() * 4), 0);
}

TEST(ReferenceVerify, SameBitsAfterPagesMoved) {
  for (const std::int32_t topk : {0, 8}) {
    AttentionCase c = mixed_batch();
    c.page_size = 4;
    c.topk = topk;
    c.sparse_unit = SparseUnit::slot;
    AttentionInputs inputs(c);
    const Result before = run_reference(inputs);
    inputs.permute_pages();
    const Result after = run_reference(inputs);
    EXPECT_EQ(std::memcmp(before.out.data(), after.out.data(), before.out.size() * 4), 0);
  }
}

TEST(ReferenceVerify, StoresInTheTypeThatIsAskedFor) {
  for (const FloatType type : {FloatType::bf16, FloatType::fp16, FloatType::fp32}) {
    AttentionCase c = mixed_batch();
    c.out_type = type;
    AttentionInputs inputs(c);
    const Result exact = run_reference(inputs);
    reference_verify(inputs.params());
    const double relative = type == FloatType::bf16   ? 0x1p-8
                            : type == FloatType::fp16 ? 0x1p-11
                                                      : 0.0;
    EXPECT_EQ(
        test::difference(test::decode_output(inputs.out, type), exact.out, {1e-7, relative, 1e-4}),
        "");
    EXPECT_EQ(test::difference(inputs.lse, exact.lse, {0, 0, 0.1}), "");
  }
}

TEST(ReferenceVerify, ChainOfParentsEqualsCausalBitForBit) {
  AttentionCase c = mixed_batch();
  c.tree = TreeShape::chain;
  AttentionInputs chain(c);
  c.mask = MaskKind::causal;
  AttentionInputs causal(c);
  EXPECT_EQ(std::memcmp(run_reference(chain).out.data(), run_reference(causal).out.data(),
                        chain.out.size()),
            0);
}

TEST(ReferenceVerify, AT04_FullyMaskedRowsAreZeroWithLseMinusInfinity) {
  // Bottom-right causal over 4 keys and 9 rows: the keys are nodes 0..3 of the tail, rows 0..4 see
  // nothing.
  AttentionCase c;
  c.heads = 2;
  c.prefix = {0};
  c.q_len = {9};
  c.mask = MaskKind::words;
  AttentionInputs inputs(c);
  for (std::int32_t i = 0; i < 9; ++i) {
    for (std::int32_t j = 0; j < 9; ++j) inputs.set_bit(i, j, j < 4 && j <= i - 5);
  }
  const Result got = run_reference(inputs);
  for (std::size_t row = 0; row < 10; ++row) {
    EXPECT_EQ(double{got.lse[row]}, -kInfinity);
    for (std::size_t d = 0; d < 512; ++d) EXPECT_EQ(got.out[row * 512 + d], 0.0F);
  }
  EXPECT_EQ(test::difference(got.out, Dense(inputs).run().out, kTight), "");
}

TEST(ReferenceVerify, AT04_EmptyRowsOfATreeMaskAnywhereAndAWholeTileOfThem) {
  for (const auto& [first, last] : {std::pair{0, 1}, {70, 71}, {149, 150}, {50, 125}}) {
    AttentionCase c;
    c.heads = 1;
    c.prefix = {0};
    c.q_len = {150};
    c.mask = MaskKind::words;
    AttentionInputs inputs(c);
    for (int at = first * 150; at < last * 150; ++at) inputs.set_bit(at / 150, at % 150, false);
    const Result got = run_reference(inputs);
    EXPECT_EQ(double{got.lse[static_cast<std::size_t>(first)]}, -kInfinity);
    EXPECT_EQ(test::difference(got.out, Dense(inputs).run().out, kTight), "");
  }
}

TEST(ReferenceVerify, AT05_EmptyLengthsAndBatches) {
  AttentionCase c;
  c.prefix = {0, 5, 0, 64};
  c.q_len = {1, 1, 1, 1};
  c.tail = TailPlace::none;
  AttentionInputs inputs(c);
  const Result got = run_reference(inputs);
  EXPECT_EQ(double{got.lse[0]}, -kInfinity);
  EXPECT_EQ(double{got.lse[16]}, -kInfinity);
  EXPECT_EQ(got.out[0], 0.0F);
  EXPECT_EQ(test::difference(got.out, Dense(inputs).run().out, kTight), "");
  c.prefix = {0, 0};
  c.q_len = {1, 2};
  for (const bool csr : {false, true}) {  // with CSR, a table without an entry
    c.csr = csr;
    AttentionInputs none(c);
    const Result zero = run_reference(none);
    for (std::size_t row = 0; row < 24; ++row) EXPECT_EQ(double{zero.lse[row]}, -kInfinity);
  }

  c.prefix = {};
  c.q_len = {};
  c.padded_tokens = 0;
  AttentionInputs empty(c);
  EXPECT_NO_THROW(reference_verify(empty.params()));
}

TEST(ReferenceVerify, AT07_OnesGiveExactlyOneAndLogOfTheCount) {
  for (const std::int32_t length : {1, 255, 256, 257}) {
    AttentionCase c;
    c.kind = AttentionKind::gqa;
    c.head_dim = 64;
    c.heads = 1;
    c.prefix = {length};
    c.tail = TailPlace::none;
    AttentionInputs inputs(c);
    std::fill(inputs.q.begin(), inputs.q.end(), std::uint8_t{0});
    const std::uint16_t one = encode_bf16(1.0F);
    for (std::size_t i = 0; i < inputs.pool_v.size(); i += 2)
      std::memcpy(inputs.pool_v.data() + i, &one, 2);
    const Result got = run_reference(inputs);
    for (std::size_t d = 0; d < 64; ++d) EXPECT_EQ(got.out[d], 1.0F);
    EXPECT_FLOAT_EQ(got.lse[0], std::log(static_cast<float>(length)));
  }
}

TEST(ReferenceVerify, AT12_GroupSizes) {
  const std::int32_t ratios[][2] = {{28, 4}, {24, 4}, {20, 4}, {64, 4}, {3, 1}, {128, 1}};
  for (const auto& [heads, kv_heads] : ratios) {
    for (const std::int32_t q_len : {1, 3, 65}) {
      AttentionCase c;
      c.kind = AttentionKind::gqa;
      c.head_dim = 16;
      c.heads = heads;
      c.kv_heads = kv_heads;
      c.prefix = {9};
      c.q_len = {q_len};
      expect_dense(c, std::to_string(heads) + "/" + std::to_string(kv_heads));
    }
  }
}

TEST(ReferenceVerify, AT13_EachRequestHasMaskRowsOfItsOwn) {
  AttentionCase c;
  c.mask = MaskKind::words;
  c.prefix = {2, 2};
  c.q_len = {3, 3};
  expect_dense(c, "two of 3 x 5");
}

TEST(ReferenceVerify, AT16_VeryLongLengths) {
  for (const std::int32_t length : {131'071, 131'072, 131'073, 262'145}) {
    AttentionCase c;
    c.kind = AttentionKind::gqa;
    c.head_dim = 16;
    c.heads = 1;
    c.prefix = {length};
    AttentionInputs inputs(c);
    EXPECT_EQ(test::difference(run_reference(inputs).out, Dense(inputs).run().out, kTight), "");
  }
}

TEST(ReferenceVerify, SP03_MaskRowsWiderThanTheLiveTree) {
  AttentionCase c;
  c.prefix = {11, 30};
  c.q_len = {7, 33};
  c.mask = MaskKind::words;
  AttentionInputs exact(c);
  c.words_extra = 3;
  AttentionInputs wide(c);
  const Result a = run_reference(exact);
  const Result b = run_reference(wide);
  EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), a.out.size() * 4), 0);
}

TEST(ReferenceVerify, SP04_SiblingsDoNotSeeEachOther) {
  AttentionCase c;
  c.heads = 1;
  c.prefix = {100};
  c.q_len = {6};
  AttentionInputs inputs(c);
  const std::vector<std::int32_t> parents = {-1, 0, 1, 0, 2, 3};
  std::copy(parents.begin(), parents.end(), inputs.parents.begin());
  const std::vector<std::vector<int>> seen = {{0},    {0, 1},       {0, 1, 2},
                                              {0, 3}, {0, 1, 2, 4}, {0, 3, 5}};
  AttentionCase w = c;
  w.mask = MaskKind::words;
  AttentionInputs words(w);
  for (std::int32_t i = 0; i < 6; ++i) {
    for (std::int32_t j = 0; j < 6; ++j) words.set_bit(i, j, false);
    for (const int j : seen[static_cast<std::size_t>(i)]) words.set_bit(i, j, true);
  }
  const Result a = run_reference(inputs);
  const Result b = run_reference(words);
  EXPECT_EQ(std::memcmp(a.out.data(), b.out.data(), 6 * 512 * 4), 0);
}

TEST(ReferenceMerge, MG01_EmptyStatesMergeToEmptyAndNeverToNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto none = static_cast<float>(-kInfinity);
  for (const std::int32_t parts : {2, 3, 64}) {
    std::vector<float> out(static_cast<std::size_t>(parts) * 2, nan);
    std::vector<float> lse(static_cast<std::size_t>(parts), none);
    float merged[2] = {nan, nan};
    float merged_lse = nan;
    reference_merge({out.data(), lse.data(), parts, 1, 2}, merged, &merged_lse);
    EXPECT_EQ(merged[0], 0.0F);
    EXPECT_EQ(merged[1], 0.0F);
    EXPECT_EQ(merged_lse, none);
    for (const std::size_t live : {std::size_t{0}, static_cast<std::size_t>(parts - 1)}) {
      std::vector<float> one_out = out;
      std::vector<float> one_lse = lse;
      one_out[2 * live] = 0.1F;
      one_out[2 * live + 1] = -7e-5F;
      one_lse[live] = 33.125F;
      reference_merge({one_out.data(), one_lse.data(), parts, 1, 2}, merged, &merged_lse);
      EXPECT_EQ(merged[0], 0.1F);
      EXPECT_EQ(merged[1], -7e-5F);
      EXPECT_EQ(merged_lse, 33.125F);
    }
  }
}

TEST(ReferenceMerge, MG02_EmptyPartialOfTheRealFunctionTakesNoWeight) {
  AttentionCase c;
  c.heads = 2;
  c.tail = TailPlace::none;
  c.padded_tokens = 0;
  c.prefix = {0};
  AttentionInputs empty(c);
  c.prefix = {50};
  AttentionInputs normal(c);
  const Result a = run_reference(empty);
  const Result b = run_reference(normal);
  std::vector<float> out = a.out;
  std::vector<float> lse = a.lse;
  out.insert(out.end(), b.out.begin(), b.out.end());
  lse.insert(lse.end(), b.lse.begin(), b.lse.end());
  std::vector<float> merged(b.out.size());
  std::vector<float> merged_lse(b.lse.size());
  reference_merge({out.data(), lse.data(), 2, 2, 512}, merged.data(), merged_lse.data());
  EXPECT_EQ(merged, b.out);
  EXPECT_EQ(merged_lse, b.lse);
}

TEST(ReferenceMerge, MG03_BothBases) {
  const float out[] = {1.0F, 9.0F};
  const float natural[] = {std::log(3.0F), std::log(5.0F)};
  const float two[] = {std::log2(3.0F), std::log2(5.0F)};
  float merged = 0;
  float lse = 0;
  reference_merge({out, natural, 2, 1, 1, LseBase::natural}, &merged, &lse);
  EXPECT_FLOAT_EQ(merged, 6.0F);
  EXPECT_FLOAT_EQ(lse, 2.0794415F);
  reference_merge({out, two, 2, 1, 1, LseBase::two}, &merged, &lse);
  EXPECT_FLOAT_EQ(merged, 6.0F);
  EXPECT_FLOAT_EQ(lse, 3.0F);
}

TEST(ReferenceMerge, NotAStateGivesNaNAndBadShapesThrow) {
  const float out[] = {1.0F, 9.0F};
  const float lse[] = {0.0F, std::numeric_limits<float>::infinity()};
  float merged = 0;
  float merged_lse = 0;
  reference_merge({out, lse, 2, 1, 1}, &merged, &merged_lse);
  EXPECT_TRUE(std::isnan(merged));
  EXPECT_TRUE(std::isnan(merged_lse));
  EXPECT_THROW(reference_merge({out, lse, 0, 1, 1}, &merged, &merged_lse), InvalidArgument);
}

TEST(ReferenceMerge, PrefixAndTailPartsMergeToTheWhole) {
  for (const LseBase base : {LseBase::natural, LseBase::two}) {
    AttentionCase c;
    c.heads = 4;
    c.prefix = {77};
    c.q_len = {13};
    c.tail = TailPlace::separate;
    c.padded_tokens = 0;
    c.lse_base = base;
    AttentionInputs inputs(c);
    Result parts[3];
    for (int i = 0; i < 3; ++i) {
      VerifyParams p = inputs.oracle_params(&parts[i].out, &parts[i].lse);
      const std::int32_t no_prefix = 0;
      if (i == 1) p.tail_place = TailPlace::none;
      if (i == 2) p.prefix_lens = &no_prefix;
      reference_verify(p);
    }
    std::vector<float> out = parts[1].out;
    std::vector<float> lse = parts[1].lse;
    out.insert(out.end(), parts[2].out.begin(), parts[2].out.end());
    lse.insert(lse.end(), parts[2].lse.begin(), parts[2].lse.end());
    std::vector<float> merged(parts[0].out.size());
    std::vector<float> merged_lse(parts[0].lse.size());
    reference_merge({out.data(), lse.data(), 2, 52, 512, base}, merged.data(), merged_lse.data());
    EXPECT_EQ(test::difference(merged, parts[0].out, kTight), "");
    EXPECT_EQ(test::difference(merged_lse, parts[0].lse, kTight), "");
  }
}

}  // namespace
}  // namespace packstone
