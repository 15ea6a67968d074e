// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/draft_commit.hpp>
#include <packstone/cuda/page_table.hpp>

#include <algorithm>
#include <random>

namespace packstone::testing {
namespace {

/// Sequences with their own scattered pages, full of tokens whose id is row * 10^6 + position.
struct Trees {
  static constexpr std::int32_t kBatch = 5;
  static constexpr std::int32_t kNodes = 65;

  Trees(const PoolLayout& layout, TableForm form, std::int64_t columns_)
      : page_size(layout.page_size),
        columns(columns_),
        pool(layout, {.pages = kBatch * columns_ + 9}),
        tokens(pool),
        table({.rows = kBatch,
               .columns = columns_,
               .page_size = page_size,
               .pages = pool.pages(),
               .form = form}),
        commit(pool, {.batch_max = kBatch, .nodes_max = kNodes}),
        lengths(kBatch),
        counts(kBatch),
        path(kBatch * kNodes) {
    std::mt19937_64 random(3);
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 1; i < pool.pages() - 1; ++i) ids.push_back(i);
    std::ranges::shuffle(ids, random);
    for (std::int64_t row = 0; row < kBatch; ++row) {
      std::vector<PageId> mine;
      for (std::int64_t c = 0; c < columns; ++c) {
        mine.push_back(PageId{ids.back()});
        ids.pop_back();
      }
      table.set(row, 0, mine);
      pages.push_back(mine);
    }
    EXPECT_TRUE(table.flush(stream.get()));
    fill();
  }
  void fill() {
    std::vector<TokenAt> list;
    for (std::int64_t row = 0; row < kBatch; ++row) {
      for (std::int64_t t = 0; t < columns * page_size; ++t) {
        list.push_back(
            {slot_of(pages[static_cast<std::size_t>(row)][static_cast<std::size_t>(t / page_size)],
                     page_size, t % page_size),
             id(row, t)});
      }
    }
    tokens.fill(list, stream.get());
  }
  static std::uint64_t id(std::int64_t row, std::int64_t position) {
    return static_cast<std::uint64_t>(row * 1'000'000 + position);
  }
  void set(const std::vector<std::int32_t>& new_lengths,
           const std::vector<std::vector<std::int32_t>>& accepted) {
    std::vector<std::int32_t> new_counts;
    std::vector<std::int32_t> paths(kBatch * kNodes, -1);
    for (std::size_t b = 0; b < kBatch; ++b) {
      new_counts.push_back(static_cast<std::int32_t>(accepted[b].size()));
      for (std::size_t k = 0; k < std::min<std::size_t>(accepted[b].size(), kNodes); ++k) {
        paths[b * kNodes + k] = accepted[b][k];
      }
    }
    lengths.set(new_lengths);
    counts.set(new_counts);
    path.set(paths);
  }
  [[nodiscard]] CommitBatch batch() const {
    return {.table = table.view(),
            .batch = kBatch,
            .lengths = lengths.data(),
            .counts = counts.data(),
            .path = path.data(),
            .path_stride = kNodes};
  }
  [[nodiscard]] std::vector<std::int32_t> faults() const {
    std::vector<std::int32_t> result(kBatch);
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(result.data(), commit.faults(), kBatch * 4, cudaMemcpyDeviceToHost));
    return result;
  }
  /// Wrong bytes over the whole tables, when row b had `accepted[b]` committed behind lengths[b].
  /// Tokens behind the committed ones keep their bytes.
  [[nodiscard]] std::uint64_t wrong(const std::vector<std::int32_t>& before,
                                    const std::vector<std::vector<std::int32_t>>& accepted) const {
    std::vector<Expected> expected;
    for (std::int64_t row = 0; row < kBatch; ++row) {
      const auto b = static_cast<std::size_t>(row);
      for (std::int64_t t = 0; t < columns * page_size; ++t) {
        const std::int64_t k = t - before[b];
        const bool committed = k >= 0 && k < static_cast<std::int64_t>(accepted[b].size());
        const std::int64_t from =
            committed ? before[b] + accepted[b][static_cast<std::size_t>(k)] : t;
        expected.push_back({row, t, id(row, from)});
      }
    }
    return tokens.wrong(table.view(), expected, stream.get());
  }

  std::int64_t page_size;
  std::int64_t columns;
  Stream stream;
  DevicePool pool;
  Tokens tokens;
  DevicePageTable table;
  DraftCommit commit;
  OnDevice<std::int32_t> lengths;
  OnDevice<std::int32_t> counts;
  OnDevice<std::int32_t> path;
  std::vector<std::vector<PageId>> pages;
};

std::int64_t columns_for(std::int64_t page_size) {
  return 100 / page_size + 2;
}

class CommitLayouts : public DeviceTestWithParam<NamedLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, CommitLayouts, ::testing::ValuesIn(all_layouts()), layout_name);

TEST_P(CommitLayouts, RandomPathsMoveToTheFront) {
  const std::int64_t page_size = GetParam().layout.page_size;
  for (const TableForm form : {TableForm::pages, TableForm::tokens}) {
    Trees trees(GetParam().layout, form, columns_for(page_size));
    std::mt19937_64 random(5);
    for (int round = 0; round < test_steps(4); ++round) {
      if (round > 0) trees.fill();
      std::vector<std::int32_t> lengths;
      std::vector<std::vector<std::int32_t>> accepted;
      for (int b = 0; b < Trees::kBatch; ++b) {
        lengths.push_back(static_cast<std::int32_t>(random() % 34));
        accepted.emplace_back();
        for (std::int32_t node = 0; node < Trees::kNodes; ++node) {
          if (random() % (1 + static_cast<unsigned>(b)) == 0) accepted.back().push_back(node);
        }
      }
      trees.set(lengths, accepted);
      trees.commit.commit(trees.batch(), trees.stream.get());
      ASSERT_EQ(trees.wrong(lengths, accepted), 0U) << "round " << round;
      ASSERT_EQ(trees.faults(), std::vector<std::int32_t>(Trees::kBatch, 0));
    }
  }
}

class CommitTest : public DeviceTest {};

// Sources and targets overlap: path 1, 2, 3, ... moves every row one place forward at once.
TEST_F(CommitTest, OverlappingPathsAreStaged) {
  Trees trees(mla_layout({.layers = 4, .page_size = 16}), TableForm::pages, columns_for(16));
  std::vector<std::int32_t> shifted(64);
  for (std::int32_t k = 0; k < 64; ++k) shifted[static_cast<std::size_t>(k)] = k + 1;
  const std::vector<std::int32_t> lengths{14, 0, 33, 15, 16};
  const std::vector<std::vector<std::int32_t>> accepted{
      shifted, {0, 1, 2}, {0, 2, 3, 4, 7, 64}, {64}, shifted};
  for (int repeat = 0; repeat < 5; ++repeat) {  // a race would show sooner or later
    trees.fill();
    trees.set(lengths, accepted);
    trees.commit.commit(trees.batch(), trees.stream.get());
    ASSERT_EQ(trees.wrong(lengths, accepted), 0U);
  }
}

// SP-10: an accepted count of 0 moves nothing and reaches no index -1.
TEST_F(CommitTest, Sp10AcceptZeroMovesNothing) {
  Trees trees(mla_layout({.layers = 2, .page_size = 16}), TableForm::pages, columns_for(16));
  const std::vector<std::int32_t> lengths{37, 20, 3, 0, 5};
  const std::vector<std::vector<std::int32_t>> accepted{{}, {0, 2, 3, 4, 9}, {1}, {}, {}};
  trees.set(lengths, accepted);
  trees.commit.commit(trees.batch(), trees.stream.get());
  EXPECT_EQ(trees.wrong(lengths, accepted), 0U);
  EXPECT_EQ(trees.faults(), std::vector<std::int32_t>(Trees::kBatch, 0));
}

// SP-08: drafts that cross a page edge. Without the lookahead page the commit is refused and
// sentinels stay; with it the rows are right.
TEST_F(CommitTest, Sp08LookaheadPage) {
  const PoolLayout layout = mla_layout({.layers = 2, .page_size = 16});
  Trees trees(layout, TableForm::pages, columns_for(16));
  const std::vector<std::int32_t> lengths{14, 14, 14, 14, 14};
  trees.table.clear(0, 1, columns_for(16) - 1);  // row 0 has one page: positions 0 .. 15
  ASSERT_TRUE(trees.table.flush(trees.stream.get()));
  const std::vector<std::vector<std::int32_t>> accepted{{1, 3}, {1, 3}, {}, {}, {}};
  trees.set(lengths, accepted);
  trees.commit.commit(trees.batch(), trees.stream.get());
  sync(trees.stream.get());
  const auto faults = trees.faults();
  EXPECT_EQ(faults[0], static_cast<std::int32_t>(CommitFault::outside_table));
  EXPECT_EQ(faults[1], 0);
  // Put the row back: nothing of row 0 or of its neighbours may have changed, and row 1 has moved.
  trees.table.set(0, 0, trees.pages[0]);
  ASSERT_TRUE(trees.table.flush(trees.stream.get()));
  EXPECT_EQ(trees.wrong(lengths, {{}, {1, 3}, {}, {}, {}}), 0U);
  std::vector<std::uint8_t> page0(static_cast<std::size_t>(16 * 1152));
  PACKSTONE_CUDA_CHECK(cudaMemcpy(page0.data(),
                                  reinterpret_cast<const void*>(trees.pool.row_planes()[0].base),
                                  page0.size(), cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::ranges::all_of(page0, [](std::uint8_t b) { return b == 0; }));
}

TEST_F(CommitTest, BadPathsMoveNothingAndAreNamed) {
  Trees trees(mla_layout({.layers = 2, .page_size = 7}), TableForm::tokens, columns_for(7));
  const std::vector<std::int32_t> lengths{5, 5, 5, 5, -1};
  trees.set(lengths, {{2, 1}, {0, 65}, {-1, 3}, {3, 4}, {1}});
  std::vector<std::int32_t> counts{2, 2, 2, 66, 1};
  trees.counts.set(counts);
  trees.commit.commit(trees.batch(), trees.stream.get());
  EXPECT_EQ(trees.wrong({0, 0, 0, 0, 0}, {{}, {}, {}, {}, {}}), 0U);
  const auto path = static_cast<std::int32_t>(CommitFault::bad_path);
  const auto count = static_cast<std::int32_t>(CommitFault::bad_count);
  EXPECT_EQ(trees.faults(), (std::vector<std::int32_t>{path, path, path, count, count}));
}

TEST_F(CommitTest, RefusesBadCallsBeforeTheLaunch) {
  Trees trees(mla_layout({.layers = 1, .page_size = 16}), TableForm::pages, columns_for(16));
  CommitBatch batch = trees.batch();
  batch.batch = Trees::kBatch + 1;
  EXPECT_THROW(trees.commit.commit(batch, trees.stream.get()), InvalidArgument);
  batch = trees.batch();
  batch.counts = nullptr;
  EXPECT_THROW(trees.commit.commit(batch, trees.stream.get()), InvalidArgument);
  batch = trees.batch();
  batch.path_stride = Trees::kNodes - 1;
  EXPECT_THROW(trees.commit.commit(batch, trees.stream.get()), InvalidArgument);
  batch = trees.batch();
  batch.table.page_size = 8;
  EXPECT_THROW(trees.commit.commit(batch, trees.stream.get()), InvalidArgument);
  batch = trees.batch();
  batch.batch = 0;
  trees.commit.commit(batch, trees.stream.get());
  EXPECT_EQ(trees.wrong({0, 0, 0, 0, 0}, {{}, {}, {}, {}, {}}), 0U);
}

// Sizes are read on the device: one captured commit serves later lengths, counts and paths.
TEST_F(CommitTest, CapturedCommitReadsSizesOnTheDevice) {
  Trees trees(mla_layout({.layers = 3, .page_size = 16}), TableForm::pages, columns_for(16));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PACKSTONE_CUDA_CHECK(
      cudaStreamBeginCapture(trees.stream.get(), cudaStreamCaptureModeThreadLocal));
  trees.commit.commit(trees.batch(), trees.stream.get());
  PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(trees.stream.get(), &graph));
  PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  const std::vector<std::vector<std::vector<std::int32_t>>> rounds{
      {{0, 3}, {}, {5, 6, 7}, {64}, {}}, {{}, {1}, {2, 9, 33}, {}, {0, 1, 2, 4}}};
  for (const auto& accepted : rounds) {
    trees.fill();
    const std::vector<std::int32_t> lengths{1, 20, 14, 30, 16};
    trees.set(lengths, accepted);
    PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, trees.stream.get()));
    EXPECT_EQ(trees.wrong(lengths, accepted), 0U);
  }
  PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
  PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
}

// GS-07: padded sequences of a captured batch touch neither page 0 nor the last page.
TEST_F(CommitTest, Gs07PaddedSequencesTouchNothing) {
  Trees trees(mla_layout({.layers = 2, .page_size = 16}), TableForm::pages, columns_for(16));
  for (const std::int64_t row : {3, 4}) trees.table.clear(row);
  ASSERT_TRUE(trees.table.flush(trees.stream.get()));
  const auto edges = [&] {
    std::vector<std::uint8_t> bytes;
    for (const PagePlane& plane : trees.pool.page_planes()) {
      for (const std::int64_t page : {std::int64_t{0}, trees.pool.pages() - 1}) {
        std::vector<std::uint8_t> part(static_cast<std::size_t>(plane.bytes));
        PACKSTONE_CUDA_CHECK(cudaMemcpy(
            part.data(),
            reinterpret_cast<const void*>(plane.base +
                                          static_cast<std::uint64_t>(page * plane.stride)),
            part.size(), cudaMemcpyDeviceToHost));
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
    }
    return bytes;
  };
  const std::vector<std::uint8_t> before = edges();
  // Row 3 is padding done right (count 0); row 4 is padding with stale counts and a cleared table.
  trees.set({4, 5, 6, 0, 0}, {{1, 2}, {3}, {0, 9}, {}, {1, 2, 3}});
  trees.commit.commit(trees.batch(), trees.stream.get());
  sync(trees.stream.get());
  EXPECT_EQ(edges(), before);
  EXPECT_EQ(trees.faults()[4], static_cast<std::int32_t>(CommitFault::outside_table));
}

}  // namespace
}  // namespace packstone::testing
