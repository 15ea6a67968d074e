// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/compactor_rig.cuh"

#include <packstone/cuda/draft_commit.hpp>
#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

namespace packstone::testing {
namespace {

class EachLayout : public DeviceTestWithParam<NamedLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, EachLayout, ::testing::ValuesIn(all_layouts()), layout_name);

// DF-01: the pool's quantized types, with their scales, move bit for bit.
TEST_P(EachLayout, Df01QuantizedRowsAndScalesSurviveCompaction) {
  Rig rig(GetParam().layout);
  rig.place(0, pages_of({2, 4, 6, 8, 10, 12}));  // every second page free
  const std::array moves{PageMove{PageId{12}, PageId{1}}, PageMove{PageId{10}, PageId{3}},
                         PageMove{PageId{8}, PageId{5}}};
  ASSERT_TRUE(rig.compactor.compact(moves, rig.stream.get()));
  EXPECT_EQ(rig.row(0, 7), (std::vector<std::int32_t>{2, 4, 6, 5, 3, 1, 0}));
  EXPECT_EQ(rig.wrong(0, 6, 0), 0U);
}

TEST_P(EachLayout, RegistersAndBulkCopiesGiveTheSameBytes) {
  for (const bool bulk : {false, true}) {
    for (const std::int32_t stage_bytes : {128, 4096, 9216}) {
      for (const std::int32_t stages : {2, 4}) {
        Rig rig(GetParam().layout, 64,
                {.multiprocessors = 3,
                 .bulk = bulk,
                 .warps = 2,
                 .stages = stages,
                 .stage_bytes = stage_bytes});
        rig.place(0, pages_of({9, 8, 7, 40, 41, 42, 63, 50, 33}));
        ASSERT_TRUE(rig.compactor.compact(
            std::array{PageMove{PageId{63}, PageId{1}}, PageMove{PageId{9}, PageId{62}},
                       PageMove{PageId{42}, PageId{2}}},
            rig.stream.get()));
        EXPECT_EQ(rig.wrong(0, 9, 0), 0U);
      }
    }
  }
}

class CompactorTest : public DeviceTest {};

// DF-06: a shared page is copied once in each pool, and every table that names it changes.
TEST_F(CompactorTest, Df06SharedPageMovesOnceInBothPools) {
  Rig rig(small_mla());
  DevicePool draft(gqa_layout({.layers = 1, .page_size = 16}), {.pages = 64});
  const Tokens draft_tokens(draft);
  const std::array<const DevicePool*, 2> pools{&rig.pool, &draft};
  Compactor both(
      pools, std::array{PatchedArray{.entries = rig.table.data(), .count = rig.table.entries()}},
      {});
  rig.place(0, pages_of({9}));
  for (const std::int64_t row : {1, 2}) {
    rig.table.set(row, 0, pages_of({9}));
  }
  ASSERT_TRUE(rig.table.flush(rig.stream.get()));
  std::vector<TokenAt> in_draft;
  std::vector<Expected> expected;
  for (std::int64_t o = 0; o < 16; ++o) {
    in_draft.push_back({9 * 16 + o, rig.id(0, 0, o)});
    expected.push_back({2, o, rig.id(0, 0, o)});
  }
  draft_tokens.fill(in_draft, rig.stream.get());

  KvManager manager({.pages = 64, .page_size = 16, .policy = "sorted"});
  ASSERT_TRUE(both.compact(std::array{PageMove{PageId{9}, PageId{3}}}, rig.stream.get()));
  for (const std::int64_t row : {0, 1, 2}) {
    EXPECT_EQ(rig.row(row, 1), (std::vector<std::int32_t>{3})) << "row " << row;
    EXPECT_EQ(rig.wrong(row, 1, 0), 0U) << "row " << row;
  }
  EXPECT_EQ(draft_tokens.wrong(rig.table.view(), expected, rig.stream.get()), 0U);
  // A page named twice in the plan would be moved twice: refused before anything is queued.
  EXPECT_THROW(
      (void)both.compact(std::array{PageMove{PageId{3}, PageId{4}}, PageMove{PageId{3}, PageId{5}}},
                         rig.stream.get()),
      PageError);
  EXPECT_EQ(rig.row(0, 1), (std::vector<std::int32_t>{3}));
}

// DF-07: compaction alone, with nothing else pending, is not a silent no-op.
TEST_F(CompactorTest, Df07CompactionAloneIsApplied) {
  Rig rig(small_mla());
  rig.place(0, pages_of({40, 50, 60}));
  ASSERT_TRUE(rig.compactor.compact(
      std::array{PageMove{PageId{40}, PageId{1}}, PageMove{PageId{50}, PageId{2}},
                 PageMove{PageId{60}, PageId{3}}},
      rig.stream.get()));
  EXPECT_EQ(rig.row(0, 3), (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(rig.wrong(0, 3, 0), 0U);
  // And a step of no moves is a legal one that changes nothing.
  ASSERT_TRUE(rig.compactor.compact({}, rig.stream.get()));
  EXPECT_EQ(rig.row(0, 3), (std::vector<std::int32_t>{1, 2, 3}));
}

// DF-08: counters hold after every single move; a cached value names the new place.
TEST_F(CompactorTest, Df08CountersHoldAfterEachMoveAndCachedValuesFollow) {
  constexpr std::int64_t kPageSize = 16;
  Rig rig(small_mla(kPageSize));
  KvManager manager({.pages = 64, .page_size = kPageSize, .policy = "fifo"});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 6 * kPageSize), Status::ok);
  const std::vector<PageId> before(manager.pages(seq).begin(), manager.pages(seq).end());
  rig.place(0, before);
  std::vector<std::int64_t> cached;  // a prefix-cache node: one slot a token
  for (const PageId page : before) {
    for (std::int64_t o = 0; o < kPageSize; ++o) cached.push_back(slot_of(page, kPageSize, o));
  }
  cached.push_back(-1);  // a tombstone stays
  OnDevice<std::int64_t> values(cached);
  Compactor compactor(
      std::array{static_cast<const DevicePool*>(&rig.pool)},
      std::array{PatchedArray{.entries = rig.table.data(), .count = rig.table.entries()},
                 PatchedArray{.entries = values.data(),
                              .count = static_cast<std::int64_t>(values.size()),
                              .type = IndexType::int64,
                              .kind = PatchedArray::Kind::slots}},
      {});
  EventFence fence;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const PageMove move{before[i], PageId{static_cast<std::int32_t>(40 + i)}};
    const PageCount live = manager.allocator().set().count(PageState::live);
    manager.apply(std::array{move}, std::array{TablePatch{seq, static_cast<std::int64_t>(i), move}},
                  fence.next());
    ASSERT_TRUE(compactor.compact(std::array{move}, rig.stream.get()));
    fence.record(rig.stream.get());
    manager.check();
    EXPECT_EQ(manager.allocator().set().count(PageState::live), live);
    EXPECT_EQ(manager.allocator().set().count(PageState::retired), 1);
    sync(rig.stream.get());
    EXPECT_EQ(manager.reclaim(fence.completed()), 1);
    manager.check();
    EXPECT_EQ(rig.wrong(0, before.size(), 0), 0U) << "after move " << i;
  }
  const std::vector<std::int64_t> after = values.get();
  for (std::size_t i = 0; i + 1 < after.size(); ++i) {
    EXPECT_EQ(after[i], (40 + static_cast<std::int64_t>(i) / kPageSize) * kPageSize +
                            static_cast<std::int64_t>(i) % kPageSize);
  }
  EXPECT_EQ(after.back(), -1);
}

// Tables of every kind and width against a host model, with tombstones and foreign entries.
TEST_F(CompactorTest, PatchesArraysOfEveryKind) {
  constexpr std::int64_t kPages = 500;
  for (const std::int64_t page_size : {1, 7, 16}) {
    DevicePool pool({.page_size = page_size, .buffers = {{"k", {16}, 1}}}, {.pages = kPages});
    std::mt19937_64 random(7);
    std::vector<std::int32_t> ids(kPages - 1);
    std::iota(ids.begin(), ids.end(), 1);
    std::ranges::shuffle(ids, random);
    std::vector<PageMove> moves;
    std::vector<std::int64_t> went(kPages);
    std::iota(went.begin(), went.end(), 0);
    for (std::size_t i = 0; i < 120; ++i) {
      moves.push_back({PageId{ids[2 * i]}, PageId{ids[2 * i + 1]}});
      went[static_cast<std::size_t>(ids[2 * i])] = ids[2 * i + 1];
    }
    std::vector<std::int32_t> pages;
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> slots32;
    for (int i = 0; i < 1003; ++i) {
      pages.push_back(below(random, kPages + 20) - 10);
      slots.push_back(below(random, (kPages + 20) * page_size) - 10);
      slots32.push_back(static_cast<std::int32_t>(slots.back()));
    }
    std::vector<std::int64_t> keyed(static_cast<std::size_t>(kPages * page_size + 1));
    for (auto& entry : keyed) entry = below(random, 1000);
    keyed.back() = -1;
    std::vector<std::int32_t> by_page(kPages);
    for (auto& entry : by_page) entry = below(random, 1000);
    OnDevice<std::int32_t> d_pages(pages);
    OnDevice<std::int64_t> d_slots(slots);
    OnDevice<std::int32_t> d_slots32(slots32);
    OnDevice<std::int64_t> d_keyed(keyed);
    OnDevice<std::int32_t> d_by_page(by_page);
    using Kind = PatchedArray::Kind;
    // The first array starts off a 16-byte boundary.
    const std::array arrays{
        PatchedArray{d_pages.data() + 1, 1002, IndexType::int32, Kind::pages},
        PatchedArray{d_slots.data(), 1003, IndexType::int64, Kind::slots},
        PatchedArray{d_slots32.data(), 1003, IndexType::int32, Kind::slots},
        PatchedArray{d_keyed.data(), kPages * page_size + 1, IndexType::int64, Kind::keyed_by_slot},
        PatchedArray{d_by_page.data(), kPages, IndexType::int32, Kind::keyed_by_page}};
    Stream stream;
    Compactor compactor(std::array{static_cast<const DevicePool*>(&pool)}, arrays, {});
    ASSERT_TRUE(compactor.compact(moves, stream.get()));
    sync(stream.get());

    const auto remap_slot = [&](std::int64_t slot) {
      if (slot <= 0 || slot >= kPages * page_size) return slot;
      return went[static_cast<std::size_t>(slot / page_size)] * page_size + slot % page_size;
    };
    for (std::size_t i = 1; i < pages.size(); ++i) {
      if (pages[i] > 0 && pages[i] < kPages) {
        pages[i] = static_cast<std::int32_t>(went[static_cast<std::size_t>(pages[i])]);
      }
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = remap_slot(slots[i]);
      slots32[i] = static_cast<std::int32_t>(remap_slot(slots32[i]));
    }
    for (const PageMove& move : moves) {
      for (std::int64_t o = 0; o < page_size; ++o) {
        const auto from = static_cast<std::size_t>(slot_of(move.from, page_size, o));
        keyed[static_cast<std::size_t>(slot_of(move.to, page_size, o))] = keyed[from];
        keyed[from] = 0;
      }
      const auto from = static_cast<std::size_t>(index_of(move.from));
      by_page[static_cast<std::size_t>(index_of(move.to))] = by_page[from];
      by_page[from] = 0;
    }
    EXPECT_EQ(d_pages.get(), pages) << page_size;
    EXPECT_EQ(d_slots.get(), slots) << page_size;
    EXPECT_EQ(d_slots32.get(), slots32) << page_size;
    EXPECT_EQ(d_keyed.get(), keyed) << page_size;
    EXPECT_EQ(d_by_page.get(), by_page) << page_size;
  }
}

TEST_F(CompactorTest, RefusesBadPlansBeforeAnythingIsQueued) {
  Rig rig(small_mla(), 64, {}, 4);
  rig.place(0, pages_of({5, 6, 7}));
  const auto kind_of = [&](std::vector<PageMove> moves) {
    try {
      (void)rig.compactor.compact(moves, rig.stream.get());
    } catch (const PageError& error) {
      return error.kind();
    }
    return PageError::Kind::pinned;  // never thrown here
  };
  EXPECT_EQ(kind_of({{PageId{5}, PageId{0}}}), PageError::Kind::reserved_page);
  EXPECT_EQ(kind_of({{PageId{0}, PageId{9}}}), PageError::Kind::reserved_page);
  EXPECT_EQ(kind_of({{PageId{5}, PageId{64}}}), PageError::Kind::out_of_range);
  EXPECT_EQ(kind_of({{PageId{-1}, PageId{9}}}), PageError::Kind::out_of_range);
  EXPECT_EQ(kind_of({{PageId{5}, PageId{9}}, {PageId{6}, PageId{9}}}), PageError::Kind::duplicate);
  EXPECT_EQ(kind_of({{PageId{5}, PageId{9}}, {PageId{9}, PageId{10}}}), PageError::Kind::duplicate);
  EXPECT_EQ(kind_of({{PageId{5}, PageId{5}}}), PageError::Kind::duplicate);
  const std::vector<PageMove> many{{PageId{5}, PageId{10}},
                                   {PageId{6}, PageId{11}},
                                   {PageId{7}, PageId{12}},
                                   {PageId{1}, PageId{13}},
                                   {PageId{2}, PageId{14}}};
  EXPECT_THROW((void)rig.compactor.compact(many, rig.stream.get()), InvalidArgument);
  EXPECT_EQ(rig.row(0, 3), (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(rig.wrong(0, 3, 0), 0U);
  // The checker is clean afterwards: the same pages in a good plan pass.
  ASSERT_TRUE(rig.compactor.compact(std::array{PageMove{PageId{5}, PageId{9}}}, rig.stream.get()));
  EXPECT_EQ(rig.wrong(0, 3, 0), 0U);
}

// A graph captured before a defragmentation replays correctly after it, and a list is applied once.
TEST_F(CompactorTest, GraphCapturedBeforeDefragReplaysAfterIt) {
  Rig rig(small_mla());
  rig.place(0, pages_of({20, 21, 22}));
  Stream capture;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  PACKSTONE_CUDA_CHECK(cudaStreamBeginCapture(capture.get(), cudaStreamCaptureModeThreadLocal));
  rig.compactor.launch(capture.get());
  EXPECT_THROW((void)rig.compactor.compact({}, capture.get()), InvalidArgument);
  PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(capture.get(), &graph));
  PACKSTONE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, rig.stream.get()));  // nothing uploaded: nothing moves
  EXPECT_EQ(rig.row(0, 3), (std::vector<std::int32_t>{20, 21, 22}));
  for (std::int32_t round = 0; round < 4; ++round) {
    const std::int32_t from = round % 2 == 0 ? 20 : 40;
    const std::int32_t to = round % 2 == 0 ? 40 : 20;
    std::vector<PageMove> moves;
    for (std::int32_t i = 0; i < 3 - round / 2; ++i) {  // fewer moves in the same graph
      moves.push_back({PageId{from + i}, PageId{to + i}});
    }
    ASSERT_TRUE(rig.compactor.upload(moves, rig.stream.get()));
    PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, rig.stream.get()));
    PACKSTONE_CUDA_CHECK(cudaGraphLaunch(exec, rig.stream.get()));  // the list is used up
    EXPECT_EQ(rig.wrong(0, 3, 0), 0U) << "round " << round;
  }
  EXPECT_EQ(rig.row(0, 3), (std::vector<std::int32_t>{20, 21, 22}));
  PACKSTONE_CUDA_CHECK(cudaGraphExecDestroy(exec));
  PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
}

// AT-11: more moves than a grid dimension has blocks, in one launch.
TEST_F(CompactorTest, At11SeventyThousandMoves) {
  for (const std::int64_t moves_count : {65'535, 65'536, 70'000}) {
    const std::int64_t pages = 2 * moves_count + 1;
    DevicePool pool({.page_size = 1, .buffers = {{"k", {64}, 1}, {"s", {4}, 1}}}, {.pages = pages});
    const Tokens tokens(pool);
    DevicePageTable table({.rows = 1,
                           .columns = moves_count,
                           .page_size = 1,
                           .pages = pages,
                           .batch_pages_max = moves_count});
    Compactor compactor(std::array{static_cast<const DevicePool*>(&pool)},
                        std::array{PatchedArray{.entries = table.data(), .count = table.entries()}},
                        {.moves_max = moves_count});
    std::vector<PageId> row;
    std::vector<TokenAt> list;
    std::vector<Expected> expected;
    std::vector<PageMove> moves;
    for (std::int32_t i = 0; i < moves_count; ++i) {
      row.push_back(PageId{i + 1});
      list.push_back({i + 1, static_cast<std::uint64_t>(i)});
      expected.push_back({0, i, static_cast<std::uint64_t>(i)});
      moves.push_back({PageId{i + 1}, PageId{static_cast<std::int32_t>(2 * moves_count) - i}});
    }
    Stream stream;
    table.set(0, 0, row);
    ASSERT_TRUE(table.flush(stream.get()));
    tokens.fill(list, stream.get());
    // Destinations hold other bytes beforehand, so an unwritten page would show.
    for (TokenAt& token : list) token = {token.slot + moves_count, token.id + 5'000'000};
    tokens.fill(list, stream.get());
    ASSERT_TRUE(compactor.compact(moves, stream.get()));
    EXPECT_EQ(tokens.wrong(table.view(), expected, stream.get()), 0U) << moves_count;
  }
}

// AT-02 and DF-09: page numbers whose element or byte offsets pass 2^31 and 2^32.
TEST_F(CompactorTest, At02PagesPast31And32Bits) {
  constexpr std::int64_t kPageSize = 64;
  constexpr PageCount kPages = 116'520;  // 8.0 GiB of 576 two-byte values a token
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  PACKSTONE_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < (std::size_t{10} << 30)) GTEST_SKIP() << "needs 10 GiB of device memory";
  Rig rig(mla_layout({.layers = 1, .page_size = kPageSize}), kPages);
  // Either side of 2^31 and of 2^32 elements, and of 2^32 bytes.
  const std::vector<PageId> high = pages_of({58'254, 58'255, 116'508, 116'509, 58'253, 116'507});
  rig.place(0, high);
  EXPECT_EQ(rig.wrong(0, high.size(), 0), 0U);
  std::vector<PageMove> down;
  std::vector<PageMove> up;
  for (std::size_t i = 0; i < high.size(); ++i) {
    down.push_back({high[i], PageId{static_cast<std::int32_t>(i) + 1}});
    up.push_back({PageId{static_cast<std::int32_t>(i) + 1},
                  PageId{index_of(high[i]) - 10 * static_cast<std::int32_t>(i % 2) - 5}});
  }
  ASSERT_TRUE(rig.compactor.compact(down, rig.stream.get()));
  EXPECT_EQ(rig.row(0, 6), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(rig.wrong(0, high.size(), 0), 0U);
  ASSERT_TRUE(rig.compactor.compact(up, rig.stream.get()));
  EXPECT_EQ(rig.wrong(0, high.size(), 0), 0U);

  // A commit whose tail lies on the high pages: node 5 to the front of page 116,509's sequence.
  rig.place(1, pages_of({116'508, 116'509}));
  DraftCommit commit(rig.pool, {.batch_max = 2, .nodes_max = 8});
  const OnDevice<std::int32_t> lengths(std::vector<std::int32_t>{0, 62});
  const OnDevice<std::int32_t> counts(std::vector<std::int32_t>{0, 2});
  std::vector<std::int32_t> path(16, -1);
  path[8] = 0;
  path[9] = 5;
  const OnDevice<std::int32_t> paths(path);
  commit.commit({.table = rig.table.view(),
                 .batch = 2,
                 .lengths = lengths.data(),
                 .counts = counts.data(),
                 .path = paths.data(),
                 .path_stride = 8},
                rig.stream.get());
  EXPECT_EQ(rig.tokens.wrong(rig.table.view(),
                             {{1, 62, rig.id(1, 0, 62)},
                              {1, 63, rig.id(1, 1, 3)},
                              {1, 64, rig.id(1, 1, 0)},
                              {1, 61, rig.id(1, 0, 61)}},
                             rig.stream.get()),
            0U);
}

}  // namespace
}  // namespace packstone::testing
