// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/pool_layout.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace packstone {
namespace {

std::vector<PoolLayout> layouts() {
  std::vector<PoolLayout> result;
  for (const PoolOrder order : {PoolOrder::layer_major, PoolOrder::page_major}) {
    for (const std::int64_t page_size : {1, 7, 16, 64}) {
      result.push_back(mla_layout({.layers = 3, .page_size = page_size, .order = order}));
      result.push_back(mla_layout({.layers = 2,
                                   .page_size = page_size,
                                   .order = order,
                                   .type = KvType::e4m3_tile,
                                   .indexer_key_bytes = 128,
                                   .indexer_scale_bytes = 4}));
      result.push_back(gqa_layout({.layers = 2,
                                   .page_size = page_size,
                                   .order = order,
                                   .type = KvType::e4m3,
                                   .scale_bytes = 4}));
      result.push_back({page_size, order, {{"odd", {30, 3}, 2}, {"flag", {1}, 1}}});
    }
  }
  return result;
}

// Every row of every token has bytes of its own, all of them inside the page's planes.
TEST(PoolLayout, RowsTileThePool) {
  constexpr PageCount kPages = 5;
  for (const PoolLayout& layout : layouts()) {
    const PoolPlanes planes = place(layout, kPages);
    std::vector<int> used(static_cast<std::size_t>(planes.bytes), 0);
    for (const RowPlane& plane : planes.rows) {
      for (std::int64_t page = 0; page < kPages; ++page) {
        for (std::int64_t token = 0; token < layout.page_size; ++token) {
          for (Bytes i = 0; i < plane.row_bytes; ++i) {
            const Bytes at = static_cast<Bytes>(plane.base) + page * plane.page_stride +
                             token * plane.row_bytes + i;
            ASSERT_LT(at, planes.bytes);
            ++used[static_cast<std::size_t>(at)];
          }
        }
      }
    }
    EXPECT_LE(std::ranges::max(used), 1);
    // A page's planes hold exactly its rows, and at most the padding besides.
    for (std::int64_t page = 0; page < kPages; ++page) {
      Bytes rows = 0;
      Bytes covered = 0;
      for (const PagePlane& plane : planes.pages) {
        covered += plane.bytes;
        for (Bytes i = 0; i < plane.bytes; ++i) {
          rows += used[static_cast<std::size_t>(static_cast<Bytes>(plane.base) +
                                                page * plane.stride + i)];
        }
      }
      EXPECT_EQ(rows, page_bytes(layout));
      EXPECT_LE(covered, page_bytes(layout) + kRowAlignment * plane_count(layout));
    }
  }
}

TEST(PoolLayout, PresetsHaveTheDocumentedSizes) {
  EXPECT_EQ(page_bytes(mla_layout({})), 1152);
  EXPECT_EQ(page_bytes(mla_layout({.type = KvType::e4m3_tile})), 656);
  EXPECT_EQ(page_bytes(gqa_layout({.page_size = 16})), 2 * 16 * 8 * 128 * 2);
  EXPECT_EQ(page_bytes(gqa_layout({.page_size = 16, .type = KvType::e4m3, .scale_bytes = 4})),
            2 * 16 * (8 * 128 + 4));
  // A layer-major plane is gapless, so that a slot's row is at slot x row_bytes.
  const PoolPlanes planes = place(mla_layout({.layers = 2, .page_size = 7}), 9);
  EXPECT_EQ(planes.rows[1].page_stride, 7 * 1152);
  // Page-major planes of one page merge into one copy.
  EXPECT_EQ(place(mla_layout({.layers = 61, .order = PoolOrder::page_major}), 9).pages.size(), 1U);
}

TEST(PoolLayout, PlanesStartOnTheAskedAlignment) {
  const PoolPlanes planes = place(mla_layout({.layers = 4, .page_size = 7}), 11, Bytes{2} << 20);
  for (const PagePlane& plane : planes.planes) EXPECT_EQ(plane.base % (2U << 20), 0U);
  EXPECT_THROW(std::ignore = place(mla_layout({}), 11, 24), InvalidArgument);
  EXPECT_THROW(std::ignore = place(mla_layout({}), 11, 8), InvalidArgument);
}

TEST(PoolLayout, GapsOfUnknownOwnersAreNotMerged) {
  const std::vector<PagePlane> planes{{0, 100, 20}, {32, 100, 20}, {52, 100, 10}};
  EXPECT_EQ(merged(planes, 1), (std::vector<PagePlane>{{0, 100, 20}, {32, 100, 30}}));
  EXPECT_EQ(merged(planes, 16), (std::vector<PagePlane>{{0, 100, 52}, {52, 100, 10}}));
}

TEST(PoolLayout, RefusesWhatCannotBe) {
  EXPECT_THROW(std::ignore = place({1, PoolOrder::layer_major, {}}, 10), InvalidArgument);
  EXPECT_THROW(std::ignore = place(mla_layout({.layers = 0}), 10), InvalidArgument);
  EXPECT_THROW(std::ignore = place(mla_layout({.page_size = 0}), 10), InvalidArgument);
  EXPECT_THROW(std::ignore = place(mla_layout({}), 0), InvalidArgument);
  EXPECT_THROW(std::ignore = place({1, PoolOrder::layer_major, {{"k", {}, 1}}}, 10),
               InvalidArgument);
  EXPECT_THROW(std::ignore = place({1, PoolOrder::layer_major, {{"k", {-4}, 1}}}, 10),
               InvalidArgument);
  const PoolLayout huge{std::int64_t{1} << 30, PoolOrder::layer_major, {{"k", {1 << 30}, 1}}};
  EXPECT_THROW(std::ignore = place(huge, kPagesMax), InvalidArgument);
  // Past 2^32 bytes a plane nothing wraps.
  const PoolPlanes large = place(mla_layout({.layers = 2, .page_size = 64}), 116'520);
  EXPECT_EQ(large.planes[1].base, 116'520ULL * 64 * 1152);
}

}  // namespace
}  // namespace packstone
