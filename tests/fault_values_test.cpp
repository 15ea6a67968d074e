// SPDX-License-Identifier: Apache-2.0
// Faults of tables that only values show: rows are written where the manager says, and attention
// reads them through the table that it keeps.
#include <packstone/float_formats.hpp>
#include <packstone/reference_verify.hpp>
#include <packstone/speculation.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace packstone {
namespace {

constexpr std::int32_t kDim = 16;
constexpr std::uint16_t kPoison = 0xFFFF;  // NaN
using Row = std::vector<std::uint16_t>;

Row row_of(std::int64_t token, std::int64_t salt) {
  Row row;
  for (std::int64_t d = 0; d < kDim; ++d) {
    row.push_back(encode_bf16(static_cast<float>((token * 31 + d * 17 + salt) % 64 - 32) / 16.0F));
  }
  return row;
}

/// A manager and a pool of one kv head, poisoned wherever nothing was written.
class World {
 public:
  World(PageCount pages, std::int64_t page_size, const std::string& policy)
      : manager({.pages = pages, .page_size = page_size, .policy = policy}),
        drafts(manager, {}),
        k_(static_cast<std::size_t>(pages * page_size * kDim), kPoison),
        v_(k_) {}

  KvManager manager;
  Speculation drafts;

  SeqId grown(std::int64_t first_token, TokenCount tokens) {
    SeqId seq;
    EXPECT_EQ(manager.create(seq), Status::ok);
    append(seq, first_token, tokens);
    return seq;
  }
  /// Appends and writes tokens `first_token`, `first_token` + 1 ..
  void append(SeqId seq, std::int64_t first_token, TokenCount tokens) {
    const TokenCount before = manager.length(seq);
    EXPECT_EQ(manager.append(seq, tokens), Status::ok);
    copy_on_write();
    for (TokenCount i = 0; i < tokens; ++i) write(manager.slot(seq, before + i), first_token + i);
  }
  void copy_on_write() {
    for (const PageCopy& copy : manager.take_copies()) {
      for (TokenCount i = 0; i < copy.tokens; ++i) {
        this->copy(
            {slot_of(copy.from, manager.page_size(), i), slot_of(copy.to, manager.page_size(), i)});
      }
    }
  }
  void copy(SlotMove move) {
    for (std::vector<std::uint16_t>* rows : {&k_, &v_}) {
      std::copy_n(rows->begin() + move.from * kDim, kDim, rows->begin() + move.to * kDim);
    }
  }
  void write(SlotId slot, std::int64_t token) {
    const Row k = row_of(token, 0);
    const Row v = row_of(token, 5);
    std::ranges::copy(k, k_.begin() + slot * kDim);
    std::ranges::copy(v, v_.begin() + slot * kDim);
  }
  [[nodiscard]] Row read(SlotId slot) const {
    return {k_.begin() + slot * kDim, k_.begin() + (slot + 1) * kDim};
  }
  [[nodiscard]] bool poisoned(SlotId slot) const {
    return std::ranges::all_of(read(slot), [](std::uint16_t bits) { return bits == kPoison; });
  }

  /// The output of the nodes of a chain that begins at token `prefix`: [nodes, kDim].
  std::vector<float> attend(SeqId seq, TokenCount prefix, std::int32_t nodes) {
    const std::span<const PageId> pages = manager.pages(seq);
    std::vector<std::int32_t> table;
    for (const PageId page : pages) table.push_back(index_of(page));
    const auto prefix_len = static_cast<std::int32_t>(prefix);
    const std::vector<std::int32_t> indptr = {0, nodes};
    std::vector<std::uint16_t> q;
    for (std::int32_t node = 0; node < nodes; ++node) {
      const Row row = row_of(prefix + node, 11);
      q.insert(q.end(), row.begin(), row.end());
    }
    std::vector<float> out(q.size());
    constexpr std::int64_t kRowBytes = 2 * kDim;
    VerifyParams p;
    p.kind = AttentionKind::gqa;
    p.heads = 1;
    p.head_dim_k = p.head_dim_v = kDim;
    p.batch = 1;
    p.tokens = nodes;
    p.prefix_lens = &prefix_len;
    p.q_indptr = indptr.data();
    p.q = {.data = q.data(), .stride_token = kRowBytes, .stride_head = kRowBytes};
    p.pool = {.k = k_.data(),
              .v = v_.data(),
              .k_stride_row = kRowBytes,
              .v_stride_row = kRowBytes,
              .rows = static_cast<std::int64_t>(k_.size()) / kDim};
    p.table = {.entries = table.data(),
               .page_size = static_cast<std::int32_t>(manager.page_size()),
               .row_stride = static_cast<std::int64_t>(table.size())};
    p.output = {.out = out.data(),
                .type = FloatType::fp32,
                .stride_token = 4 * kDim,
                .stride_head = 4 * kDim};
    reference_verify(p);
    return out;
  }

 private:
  std::vector<std::uint16_t> k_;
  std::vector<std::uint16_t> v_;
};

std::vector<std::string> policies() {
  return {placement_names().begin(), placement_names().end()};
}

TEST(ValueFault, SP08_DraftsPastAPageEdgeReadWhatDecodingWithoutSpeculationReads) {
  for (const std::string& policy : policies()) {
    for (const std::int64_t page_size : {16, 1, 3}) {
      SCOPED_TRACE(policy + ", pages of " + std::to_string(page_size));
      World eager(64, page_size, policy);
      const SeqId alone = eager.grown(100, 14);
      std::vector<float> expected;
      for (TokenCount at = 14; at < 18; ++at) {
        eager.append(alone, 100 + at, 1);
        const std::vector<float> one = eager.attend(alone, at, 1);
        expected.insert(expected.end(), one.begin(), one.end());
      }

      World world(64, page_size, policy);
      const SeqId seq = world.grown(100, 14);
      const SeqId neighbour = world.grown(500, 16);
      const PageCount before = world.manager.available_pages();
      ASSERT_EQ(world.drafts.reserve(seq, 4), Status::ok);
      EXPECT_EQ(before - world.manager.available_pages(),
                pages_for(18, page_size) - pages_for(14, page_size));
      for (std::int64_t node = 0; node < 4; ++node) {
        world.write(world.drafts.slot(seq, node), 114 + node);
      }
      EXPECT_EQ(world.attend(seq, 14, 4), expected);

      const std::vector<std::int32_t> path = {0, 1, 2};
      for (const SlotMove& move : world.drafts.commit(seq, DraftTree::chain(4), path).moves) {
        world.copy(move);
      }
      ASSERT_EQ(world.manager.length(seq), 17);
      world.append(seq, 117, 1);
      EXPECT_EQ(world.attend(seq, 17, 1),
                std::vector<float>(expected.end() - kDim, expected.end()));

      for (SlotId slot = 0; slot < page_size; ++slot) EXPECT_TRUE(world.poisoned(slot));
      for (TokenCount t = 0; t < 16; ++t) {
        EXPECT_EQ(world.read(world.manager.slot(neighbour, t)), row_of(500 + t, 0));
      }
    }
  }
}

TEST(ValueFault, PS10_EachSideOfAForkReadsItsOwnTokenBehindTheSharedOnes) {
  for (const std::string& policy : policies()) {
    for (const bool parent_first : {true, false}) {
      SCOPED_TRACE(policy);
      World world(8, 16, policy);
      const SeqId a = world.grown(100, 10);
      SeqId b;
      ASSERT_EQ(world.manager.fork(a, 10, b), Status::ok);
      const PageId shared = world.manager.pages(a)[0];
      const PageCount before = world.manager.available_pages();
      world.append(parent_first ? a : b, parent_first ? 201 : 302, 1);
      world.append(parent_first ? b : a, parent_first ? 302 : 201, 1);
      EXPECT_EQ(world.manager.available_pages(), before - 1);
      EXPECT_EQ(world.manager.allocator().set().references(shared), 1);
      for (const auto& [seq, token] : {std::pair{a, 201}, std::pair{b, 302}}) {
        EXPECT_EQ(world.read(world.manager.slot(seq, 10)), row_of(token, 0));
        for (TokenCount t = 0; t < 10; ++t) {
          EXPECT_EQ(world.read(world.manager.slot(seq, t)), row_of(100 + t, 0));
        }
        World apart(8, 16, policy);
        const SeqId alone = apart.grown(100, 10);
        apart.append(alone, token, 1);
        EXPECT_EQ(world.attend(seq, 10, 1), apart.attend(alone, 10, 1));
      }
      world.manager.check();
    }
  }
}

}  // namespace
}  // namespace packstone
