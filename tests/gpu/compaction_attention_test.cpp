// SPDX-License-Identifier: Apache-2.0
// DF-01: attention over a pool of every row type, before and after its pages were moved.
#include "tests/gpu/attention_device.hpp"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/stream.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace packstone {
namespace {

using test::AttentionCase;
using test::AttentionInputs;
using test::DeviceInputs;
using test::DeviceResult;

struct Rows {
  AttentionKind kind;
  KvType type;
  std::int32_t page_size;
};

class CompactionAttention : public test::AttentionDeviceTest,
                            public ::testing::WithParamInterface<Rows> {};

std::vector<Rows> all_rows() {
  std::vector<Rows> rows;
  for (const std::int32_t page_size : {1, 16}) {
    for (const KvType type : {KvType::bf16, KvType::e4m3}) {
      rows.push_back({AttentionKind::mla, type, page_size});
      rows.push_back({AttentionKind::gqa, type, page_size});
    }
    rows.push_back({AttentionKind::mla, KvType::e4m3_tile, page_size});
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Rows, CompactionAttention, ::testing::ValuesIn(all_rows()),
                         [](const auto& rows) {
                           const Rows& r = rows.param;
                           return std::string(r.kind == AttentionKind::gqa ? "gqa_" : "mla_") +
                                  to_string(r.type) + "_p" + std::to_string(r.page_size);
                         });

/// The inputs' pool and table on the device, as what a compactor moves and patches.
cuda::DevicePool wrapped_pool(const AttentionInputs& inputs, const VerifyParams& p) {
  const std::int64_t page_size = p.table.page_size;
  PoolLayout layout{.page_size = page_size,
                    .order = PoolOrder::layer_major,
                    .buffers = {{"k", {inputs.k_row_bytes()}, 1}}};
  std::vector<cuda::WrappedPlane> planes = {
      {.data = const_cast<void*>(p.pool.k), .stride = page_size * inputs.k_row_bytes()}};
  if (p.pool.v != nullptr) {
    layout.buffers.push_back({"v", {inputs.v_row_bytes()}, 1});
    planes.push_back(
        {.data = const_cast<void*>(p.pool.v), .stride = page_size * inputs.v_row_bytes()});
  }
  return {layout, p.pool.rows / page_size, planes};
}

/// Moves that pack the live pages below the free ones.
std::vector<PageMove> packing(const std::vector<std::int32_t>& table, PageCount pages) {
  std::vector<bool> live(static_cast<std::size_t>(pages), false);
  for (const std::int32_t page : table) {
    if (page < pages) live[static_cast<std::size_t>(page)] = true;
  }
  std::vector<PageMove> moves;
  std::int32_t to = 1;
  for (auto from = static_cast<std::int32_t>(pages - 1); from > to; --from) {
    if (!live[static_cast<std::size_t>(from)]) continue;
    while (to < from && live[static_cast<std::size_t>(to)]) ++to;
    if (to < from) moves.push_back({PageId{from}, PageId{to++}});
  }
  return moves;
}

TEST_P(CompactionAttention, Df01OutputsAreTheSameBitsBeforeAndAfter) {
  AttentionCase c;
  c.kind = GetParam().kind;
  c.kv_type = GetParam().type;
  c.page_size = GetParam().page_size;
  c.heads = 8;
  c.kv_heads = c.kind == AttentionKind::gqa ? 2 : 1;
  c.prefix = {200, 33};
  c.q_len = {5, 9};
  c.spare_pages = 300;  // the pool is fragmented: live pages lie anywhere among the free ones
  if (c.kv_type == KvType::e4m3) {
    c.kv_spread = 30.0F;
    c.k_scale = 0.003F;
    c.v_scale = 0.003F;
  }
  AttentionInputs inputs(c);
  DeviceInputs device(inputs);
  const VerifyParams& p = device.params();
  const VerifyPlanOptions options{.bounds = test::bounds_of(inputs)};
  const DeviceResult before = test::run_on(device, options);
  ASSERT_EQ(test::compare_with_oracle(inputs, before), "");

  std::vector<std::int32_t> table(inputs.table.size() / 4);
  std::memcpy(table.data(), inputs.table.data(), inputs.table.size());
  const cuda::DevicePool pool = wrapped_pool(inputs, p);
  const std::vector<PageMove> moves = packing(table, pool.pages());
  ASSERT_GT(moves.size(), 2U);
  const std::array<const cuda::DevicePool*, 1> pools{&pool};
  cuda::Compactor compactor(
      pools,
      std::array{cuda::PatchedArray{.entries = const_cast<void*>(p.table.entries),
                                    .count = static_cast<std::int64_t>(table.size())}},
      {});
  const cuda::Stream stream;
  ASSERT_TRUE(compactor.compact(moves, stream.get()));
  // What was left behind is not read again.
  for (const PageMove& move : moves) {
    for (const PagePlane& plane : pool.page_planes()) {
      const std::uint64_t page =
          plane.base + static_cast<std::uint64_t>(index_of(move.from) * plane.stride);
      PACKSTONE_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(page), 0xFF,
                                           static_cast<std::size_t>(plane.bytes), stream.get()));
    }
  }
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  std::vector<std::int32_t> patched(table.size());
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(patched.data(), p.table.entries, inputs.table.size(), cudaMemcpyDeviceToHost));
  for (const PageMove& move : moves) {
    std::ranges::replace(table, index_of(move.from), index_of(move.to));
  }
  EXPECT_EQ(patched, table);
  device.poison_outputs(inputs);
  EXPECT_TRUE(test::run_on(device, options) == before);
}

}  // namespace
}  // namespace packstone
