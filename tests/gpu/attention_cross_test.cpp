// SPDX-License-Identifier: Apache-2.0
// The kernels against the CPU oracle over a pruned cross product: every value of every dimension
// occurs many times, in combinations drawn from a fixed seed, mixed batches included.
#include "tests/gpu/attention_device.hpp"

#include <random>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using test::Placement;
using test::TreeShape;

class AttentionCross : public test::AttentionDeviceTest,
                       public ::testing::WithParamInterface<AttentionKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, AttentionCross,
                         ::testing::Values(AttentionKind::gqa, AttentionKind::mla),
                         [](const auto& kind) {
                           return kind.param == AttentionKind::gqa ? "gqa" : "mla";
                         });

template <typename T, std::size_t n>
T pick(const T (&values)[n], std::mt19937_64* rng) {
  return values[(*rng)() % n];
}

constexpr std::int32_t kHeads[] = {1, 8, 16, 20, 64, 128};
constexpr std::int32_t kQueryLengths[] = {1, 2, 7, 9, 31, 32, 33, 63, 64, 65, 127, 129, 256};
constexpr std::int32_t kPrefixes[] = {0, 1, 15, 16, 17, 63, 64, 65, 1000, 65'536, 189'440};
constexpr std::int32_t kPageSizes[] = {1, 3, 16, 64};
constexpr TreeShape kTrees[] = {TreeShape::chain, TreeShape::star, TreeShape::random,
                                TreeShape::deep, TreeShape::binary};
constexpr MaskKind kMasks[] = {MaskKind::parents, MaskKind::parents, MaskKind::words,
                               MaskKind::words,   MaskKind::causal,  MaskKind::full};
constexpr TailPlace kTails[] = {TailPlace::pool, TailPlace::pool, TailPlace::separate,
                                TailPlace::none};
constexpr KvType kGqaTypes[] = {KvType::bf16, KvType::bf16, KvType::fp16, KvType::e4m3};

/// Sequences up to a budget of rows x tokens, which is what the oracle's time goes with.
void draw_batch(AttentionCase* c, std::int64_t budget, std::mt19937_64* rng) {
  constexpr std::int64_t kBytesMax = 200'000'000;  // of KV, which the host has to draw
  const std::int64_t row_bytes = c->kind == AttentionKind::gqa
                                     ? std::int64_t{4} * c->kv_heads * c->head_dim
                                     : mla_row_bytes(KvType::bf16);
  c->prefix.clear();
  c->q_len.clear();
  const std::size_t batch = 1 + (*rng)() % 6;
  while (c->prefix.size() < batch) {
    const std::int32_t q_len = (*rng)() % 8 == 0 ? 0 : pick(kQueryLengths, rng);
    const std::int32_t prefix = pick(kPrefixes, rng);
    const std::int64_t cost = std::int64_t{q_len} * c->heads * (prefix + q_len);
    if (cost > budget || (prefix + q_len) * row_bytes > kBytesMax) continue;
    budget -= cost;
    c->prefix.push_back(prefix);
    c->q_len.push_back(q_len);
  }
}

AttentionCase draw_case(AttentionKind kind, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  AttentionCase c;
  c.kind = kind;
  c.seed = seed;
  c.heads = pick(kHeads, &rng);
  c.page_size = pick(kPageSizes, &rng);
  c.tree = pick(kTrees, &rng);
  c.mask = pick(kMasks, &rng);
  c.tail = pick(kTails, &rng);
  c.placement = rng() % 4 == 0 ? Placement::fresh : Placement::random;
  c.csr = rng() % 3 == 0;
  c.index = rng() % 2 == 0 ? IndexType::int32 : IndexType::int64;
  c.words_extra = static_cast<std::int32_t>(rng() % 2);
  c.padded_sequences = static_cast<std::int32_t>(rng() % 3);
  c.lse_base = rng() % 2 == 0 ? LseBase::natural : LseBase::two;
  c.logit_cap = rng() % 5 == 0 ? 3.0F : 0.0F;
  c.out_type = rng() % 4 == 0 ? FloatType::fp32 : FloatType::bf16;
  if (rng() % 5 == 0) {
    c.topk = rng() % 2 == 0 ? 64 : 200;
    c.sparse_unit = rng() % 2 == 0 ? SparseUnit::position : SparseUnit::slot;
  }
  if (kind == AttentionKind::gqa) {
    const std::int32_t dims[] = {64, 128, 256};
    c.head_dim = pick(dims, &rng);
    c.kv_type = pick(kGqaTypes, &rng);
    const std::int32_t groups[] = {1, 2, 4, 5, 8, 16, 64};
    do {
      c.kv_heads = c.heads / std::min(c.heads, pick(groups, &rng));
    } while (c.heads % c.kv_heads != 0);
    c.scale = c.head_dim == 256 ? 0.6F : 1.0F;
  } else {
    const KvType types[] = {KvType::bf16, KvType::bf16, KvType::fp16, KvType::e4m3,
                            KvType::e4m3_tile};
    c.kv_type = pick(types, &rng);
    c.rope_dim = rng() % 4 == 0 ? 0 : kMlaRopeDim;
    c.rope_apart = rng() % 3 == 0;
    c.scale = 0.4F;
  }
  c.q_type = c.kv_type == KvType::fp16 ? FloatType::fp16 : FloatType::bf16;
  c.k_scale = c.kv_type == KvType::e4m3 ? 0.75F : 1.0F;
  c.v_scale = c.k_scale;
  // Spread such that rounding to e4m3 keeps most values out of the subnormal range.
  c.kv_spread = 0.1F;
  draw_batch(&c, 4'000'000, &rng);
  return c;
}

TEST_P(AttentionCross, MatchesTheOracle) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    AttentionCase c = draw_case(GetParam(), seed);
    VerifyPlanOptions options;
    if (seed % 5 == 1) options.batch_invariant = true;
    if (seed % 5 == 2) options.splits = static_cast<std::int32_t>(1 + seed % 9);
    test::expect_right(c, options);
  }
}

TEST_P(AttentionCross, LongestPrefixWithATree) {
  const bool gqa = GetParam() == AttentionKind::gqa;
  for (const KvType type : {KvType::bf16, KvType::e4m3}) {
    AttentionCase c;
    c.kind = GetParam();
    c.kv_type = type;
    c.heads = gqa ? 8 : 4;
    c.kv_heads = gqa ? 2 : 1;
    c.prefix = {189'440};
    c.q_len = {65};
    c.scale = gqa ? 1.0F : 0.5F;
    test::expect_right(c);
    c.q_len = {1};
    c.seed = 2;
    test::expect_right(c);
  }
}

TEST_P(AttentionCross, SameBitsAcrossRunsAndAfterPagesMoved) {
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    AttentionInputs inputs(draw_case(GetParam(), seed));
    const test::DeviceResult first = test::run_device(inputs);
    EXPECT_TRUE(first == test::run_device(inputs))
        << "another run, " << test::describe(inputs.description());
    inputs.permute_pages();
    EXPECT_TRUE(first == test::run_device(inputs))
        << "pages moved, " << test::describe(inputs.description());
  }
}

/// Gives sequence `b` the rows of a lone one, at its own slots.
void copy_rows(const AttentionInputs& alone, AttentionInputs& inputs, std::int32_t b,
               std::int64_t tokens) {
  const std::int64_t row = alone.k_row_bytes();
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t from = alone.slot_of_token(0, t) * row;
    const std::int64_t to = inputs.slot_of_token(b, t) * row;
    const auto bytes = static_cast<std::size_t>(row);
    std::memcpy(inputs.pool_k.data() + to, alone.pool_k.data() + from, bytes);
    if (alone.description().kind == AttentionKind::mla) continue;
    std::memcpy(inputs.pool_v.data() + to, alone.pool_v.data() + from, bytes);
  }
}

/// A long decode behind many short ones, whose tiles the block that begins it has before.
TEST_P(AttentionCross, BatchInvariantBitsOfADecodeDoNotDependOnThoseBefore) {
  constexpr std::int32_t kLong = 9'001;
  AttentionCase c;
  c.kind = GetParam();
  c.heads = 16;
  c.kv_heads = c.kind == AttentionKind::gqa ? 4 : 1;
  c.mask = MaskKind::causal;
  c.out_type = FloatType::fp32;
  c.prefix = {kLong};
  c.q_len = {1};
  c.padded_tokens = 0;
  AttentionInputs alone(c);
  VerifyPlanOptions invariant;
  invariant.batch_invariant = true;
  invariant.bounds = {.batch_max = 300, .tokens_max = 300, .q_len_max = 1, .length_max = kLong + 1};
  const test::DeviceResult want = test::run_device(alone, invariant);
  for (const std::size_t before : {1U, 101U, 263U, 264U, 265U}) {
    AttentionCase many = c;
    many.prefix.assign(before, 80);
    many.prefix.push_back(kLong);
    many.q_len.assign(before + 1, 1);
    AttentionInputs inputs(many);
    copy_rows(alone, inputs, static_cast<std::int32_t>(before), kLong + 1);
    std::copy(alone.q.begin(), alone.q.end(),
              inputs.q.end() - static_cast<std::ptrdiff_t>(alone.q.size()));
    const test::DeviceResult got = test::run_device(inputs, invariant);
    EXPECT_TRUE(std::equal(want.out.begin(), want.out.end(),
                           got.out.end() - static_cast<std::ptrdiff_t>(want.out.size())))
        << before << " before it";
    EXPECT_EQ(std::vector<float>(got.lse.end() - static_cast<std::ptrdiff_t>(want.lse.size()),
                                 got.lse.end()),
              want.lse);
  }
}

TEST_P(AttentionCross, BatchInvariantBitsDoNotDependOnNeighbours) {
  for (const std::int32_t q_len : {1, 9}) {
    AttentionCase c;
    c.kind = GetParam();
    c.heads = 16;
    c.kv_heads = c.kind == AttentionKind::gqa ? 4 : 1;
    c.prefix = {9'001};
    c.q_len = {q_len};
    c.padded_tokens = 0;
    AttentionInputs alone(c);
    VerifyPlanOptions invariant;
    invariant.batch_invariant = true;
    // A plan belongs to its bounds: those of the largest batch here.
    invariant.bounds = {.batch_max = 2,
                        .tokens_max = q_len + 3,
                        .q_len_max = std::max(q_len, 3),
                        .length_max = 30'003};
    const test::DeviceResult want = test::run_device(alone, invariant);
    for (const std::int32_t neighbour : {0, 1, 30'000}) {
      AttentionCase two = c;
      two.prefix = {9'001, neighbour};
      two.q_len = {q_len, 3};
      AttentionInputs inputs(two);
      // The first sequence gets the very rows of the lone one, at its own slots.
      copy_rows(alone, inputs, 0, 9'001 + q_len);
      std::copy(alone.q.begin(), alone.q.end(), inputs.q.begin());
      std::copy(alone.parents.begin(), alone.parents.end(), inputs.parents.begin());
      const test::DeviceResult got = test::run_device(inputs, invariant);
      EXPECT_TRUE(std::equal(want.out.begin(), want.out.end(), got.out.begin())) << neighbour;
    }
  }
}

}  // namespace
}  // namespace packstone
