// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A compactor with a small pool and table, and pages full of known tokens.

#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/page_table.hpp>

#include <array>
#include <initializer_list>
#include <vector>

namespace packstone::testing {

/// A pool of one layout with pages filled, tables of one row a sequence, and a compactor over both.
struct Rig {
  explicit Rig(const PoolLayout& layout, PageCount pages = 64, MoverTuning tuning = {},
               std::int64_t moves_max = 4096)
      : pool(layout, {.pages = pages}),
        tokens(pool),
        table({.rows = 8, .columns = 64, .page_size = layout.page_size, .pages = pages}),
        compactor(std::array{static_cast<const DevicePool*>(&pool)},
                  std::array{PatchedArray{.entries = table.data(), .count = table.entries()}},
                  {.moves_max = moves_max, .tuning = tuning}) {}

  /// Row `row` gets these pages, full of tokens with ids row * 10^6 + position.
  void place(std::int64_t row, const std::vector<PageId>& pages) {
    table.clear(row);
    table.set(row, 0, pages);
    ASSERT_TRUE(table.flush(stream.get()));
    std::vector<TokenAt> list;
    const std::int64_t page_size = pool.page_size();
    for (std::size_t i = 0; i < pages.size(); ++i) {
      for (std::int64_t o = 0; o < page_size; ++o) {
        list.push_back({slot_of(pages[i], page_size, o), id(row, i, o)});
      }
    }
    tokens.fill(list, stream.get());
  }
  [[nodiscard]] std::uint64_t id(std::int64_t row, std::size_t page, std::int64_t offset) const {
    return static_cast<std::uint64_t>(row * 1'000'000 +
                                      static_cast<std::int64_t>(page) * pool.page_size() + offset);
  }
  /// Wrong bytes of `row`, read through the table as if its tokens were those of row `as`.
  [[nodiscard]] std::uint64_t wrong(std::int64_t row, std::size_t pages, std::int64_t as) const {
    std::vector<Expected> list;
    for (std::size_t i = 0; i < pages; ++i) {
      for (std::int64_t o = 0; o < pool.page_size(); ++o) {
        list.push_back({row, static_cast<std::int64_t>(i) * pool.page_size() + o, id(as, i, o)});
      }
    }
    return tokens.wrong(table.view(), list, stream.get());
  }
  [[nodiscard]] std::vector<std::int32_t> row(std::int64_t row, std::size_t pages) const {
    sync(stream.get());
    std::vector<std::int32_t> all(static_cast<std::size_t>(table.entries()));
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(all.data(), table.data(), all.size() * 4, cudaMemcpyDeviceToHost));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * 64);
    return {first, first + static_cast<std::ptrdiff_t>(pages)};
  }

  Stream stream;
  DevicePool pool;
  Tokens tokens;
  DevicePageTable table;
  Compactor compactor;
};

inline std::vector<PageId> pages_of(std::initializer_list<std::int32_t> ids) {
  std::vector<PageId> pages;
  for (const std::int32_t id : ids) pages.push_back(PageId{id});
  return pages;
}

inline PoolLayout small_mla(std::int64_t page_size = 16) {
  return mla_layout({.layers = 2, .page_size = page_size});
}

}  // namespace packstone::testing
