// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/draft_commit.hpp>
#include <packstone/cuda/page_table.hpp>
#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <thread>

namespace packstone::testing {
namespace {

std::int32_t below(std::mt19937_64& random, std::int64_t bound) {
  return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(bound));
}

/// A manager on the host, a pool and tables on the device, and what each token must read.
class Model {
 public:
  Model(const PoolLayout& layout, std::uint64_t seed)
      : random_(seed),
        page_size_(layout.page_size),
        columns_(page_size_ == 1 ? 96 : 12),
        pages_(page_size_ == 1 ? 900 : 110),
        pool_(layout, {.pages = pages_}),
        tokens_(pool_),
        by_page_({.rows = kRows, .columns = columns_, .page_size = page_size_, .pages = pages_}),
        by_token_({.rows = kRows,
                   .columns = columns_,
                   .page_size = page_size_,
                   .pages = pages_,
                   .form = TableForm::tokens,
                   .type = IndexType::int64}),
        manager_({.pages = pages_, .page_size = page_size_, .policy = "fifo"}),
        compactor_(std::array{static_cast<const DevicePool*>(&pool_)},
                   std::array{PatchedArray{.entries = by_page_.data(), .count = by_page_.entries()},
                              PatchedArray{.entries = by_token_.data(),
                                           .count = by_token_.entries(),
                                           .type = IndexType::int64,
                                           .kind = PatchedArray::Kind::slots}},
                   {.moves_max = 256}),
        commit_(pool_, {.batch_max = kRows, .nodes_max = kNodes}),
        lengths_(kRows),
        counts_(kRows),
        path_(kRows * kNodes) {}

  void step() {
    switch (below(random_, 10)) {
      case 0:
      case 1:
        create();
        break;
      case 2:
      case 3:
        append();
        break;
      case 4:
        fork();
        break;
      case 5:
        tree();
        break;
      case 6:
        if (below(random_, 2) == 0) finish();
        break;
      case 7:
        pin();
        break;
      default:
        defragment();
    }
    if (below(random_, 3) == 0) manager_.reclaim(fence_.completed());
    check();
  }

  [[nodiscard]] std::int64_t moved() const { return moved_; }
  [[nodiscard]] std::int64_t committed() const { return committed_; }

 private:
  static constexpr std::int64_t kRows = 12;
  static constexpr std::int32_t kNodes = 9;
  struct Sequence {
    SeqId id;
    std::vector<std::uint64_t> tokens;
    std::int64_t pinned{0};
  };

  std::int64_t tokens_max() const { return columns_ * page_size_; }
  Sequence* any() {
    std::vector<Sequence*> live;
    for (auto& sequence : rows_) {
      if (sequence) live.push_back(&*sequence);
    }
    return live.empty() ? nullptr
                        : live[static_cast<std::size_t>(
                              below(random_, static_cast<std::int64_t>(live.size())))];
  }
  std::int64_t row_of(const Sequence& sequence) const {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row] && &*rows_[row] == &sequence) return static_cast<std::int64_t>(row);
    }
    return -1;
  }

  /// Writes the row's table and the bytes of its tokens from `first` on.
  void write(const Sequence& sequence, std::size_t first) {
    for (const PageCopy& copy : manager_.take_copies()) {
      ASSERT_TRUE(compactor_.copy(std::array{PageMove{copy.from, copy.to}}, stream_.get()));
      sync(stream_.get());
    }
    const std::int64_t row = row_of(sequence);
    const std::span<const PageId> pages = manager_.pages(sequence.id);
    for (DevicePageTable* table : {&by_page_, &by_token_}) {
      table->clear(row);
      table->set(row, 0, pages);
      ASSERT_TRUE(table->flush(stream_.get()));
    }
    std::vector<TokenAt> fresh;
    for (std::size_t i = first; i < sequence.tokens.size(); ++i) {
      fresh.push_back(
          {manager_.slot(sequence.id, static_cast<std::int64_t>(i)), sequence.tokens[i]});
    }
    tokens_.fill(fresh, stream_.get());
  }

  void create() {
    const auto place = std::ranges::find_if(rows_, [](const auto& row) { return !row; });
    if (place == rows_.end()) return;
    SeqId id;
    if (manager_.create(id) != Status::ok) return;
    place->emplace(Sequence{.id = id, .tokens = {}});
    grow(**place, 1 + below(random_, 3 * page_size_ + 5));
  }
  void grow(Sequence& sequence, std::int64_t tokens) {
    const std::size_t first = sequence.tokens.size();
    tokens = std::min(tokens, tokens_max() - static_cast<std::int64_t>(first));
    if (tokens <= 0 || manager_.append(sequence.id, tokens) != Status::ok) return;
    for (std::int64_t i = 0; i < tokens; ++i) sequence.tokens.push_back(++next_id_);
    write(sequence, first);
  }
  void append() {
    if (Sequence* sequence = any()) grow(*sequence, 1 + below(random_, page_size_ + 3));
  }
  void fork() {
    Sequence* const parent = any();
    const auto place = std::ranges::find_if(rows_, [](const auto& row) { return !row; });
    if (parent == nullptr || place == rows_.end()) return;
    const auto kept = below(random_, static_cast<std::int64_t>(parent->tokens.size()) + 1);
    SeqId id;
    if (manager_.fork(parent->id, kept, id) != Status::ok) return;
    place->emplace(
        Sequence{.id = id, .tokens = {parent->tokens.begin(), parent->tokens.begin() + kept}});
    write(**place, (*place)->tokens.size());
  }
  void finish() {
    Sequence* const sequence = any();
    if (sequence == nullptr || sequence->pinned > 0) return;
    const std::int64_t row = row_of(*sequence);
    manager_.finish(sequence->id);
    rows_[static_cast<std::size_t>(row)].reset();
    for (DevicePageTable* table : {&by_page_, &by_token_}) {
      table->clear(row);
      ASSERT_TRUE(table->flush(stream_.get()));
    }
  }
  void pin() {
    Sequence* const sequence = any();
    if (sequence == nullptr) return;
    if (sequence->pinned > 0) {
      manager_.unpin(sequence->id, 0, sequence->pinned);
      sequence->pinned = 0;
    } else if (!manager_.pages(sequence->id).empty()) {
      sequence->pinned = 1;
      manager_.pin(sequence->id, 0, 1);
    }
  }

  /// Draft nodes behind the sequence, an accepted path, and the rest cut off.
  void tree() {
    Sequence* const sequence = any();
    if (sequence == nullptr || sequence->pinned > 0) return;
    const std::size_t length = sequence->tokens.size();
    const std::int32_t nodes = 1 + below(random_, kNodes);
    if (static_cast<std::int64_t>(length) + nodes > tokens_max()) return;
    if (manager_.append(sequence->id, nodes) != Status::ok) return;
    std::vector<std::uint64_t> drafts;
    for (std::int32_t i = 0; i < nodes; ++i) drafts.push_back(++next_id_);
    sequence->tokens.insert(sequence->tokens.end(), drafts.begin(), drafts.end());
    write(*sequence, length);
    std::vector<std::int32_t> path;
    for (std::int32_t node = 0; node < nodes; ++node) {
      if (below(random_, 2) == 0) path.push_back(node);
    }
    const auto row = static_cast<std::size_t>(row_of(*sequence));
    std::vector<std::int32_t> lengths(kRows, 0);
    std::vector<std::int32_t> counts(kRows, 0);
    std::vector<std::int32_t> paths(kRows * kNodes, -1);
    lengths[row] = static_cast<std::int32_t>(length);
    counts[row] = static_cast<std::int32_t>(path.size());
    std::ranges::copy(path, paths.begin() + static_cast<std::ptrdiff_t>(row * kNodes));
    lengths_.set(lengths);
    counts_.set(counts);
    path_.set(paths);
    commit_.commit({.table = below(random_, 2) == 0 ? by_page_.view() : by_token_.view(),
                    .batch = kRows,
                    .lengths = lengths_.data(),
                    .counts = counts_.data(),
                    .path = path_.data(),
                    .path_stride = kNodes},
                   stream_.get());
    sequence->tokens.resize(length);
    for (const std::int32_t node : path) {
      sequence->tokens.push_back(drafts[static_cast<std::size_t>(node)]);
    }
    manager_.truncate(sequence->id, static_cast<std::int64_t>(sequence->tokens.size()));
    committed_ += static_cast<std::int64_t>(path.size());
    write(*sequence, sequence->tokens.size());
  }

  /// Random legal moves: live pages without a pin to free ones.
  void defragment() {
    const PoolSnapshot snapshot = manager_.snapshot();
    std::vector<PageId> sources;
    std::vector<PageId> destinations;
    for (std::int32_t page = 1; page < pages_; ++page) {
      const PageState state = snapshot.states[static_cast<std::size_t>(page)];
      if (state == PageState::free) destinations.push_back(PageId{page});
      if (state == PageState::live && !std::ranges::binary_search(snapshot.pinned, PageId{page})) {
        sources.push_back(PageId{page});
      }
    }
    std::ranges::shuffle(sources, random_);
    std::ranges::shuffle(destinations, random_);
    const std::size_t count = std::min(
        {sources.size(), destinations.size(), static_cast<std::size_t>(1 + below(random_, 40))});
    std::vector<PageMove> moves;
    for (std::size_t i = 0; i < count; ++i) moves.push_back({sources[i], destinations[i]});
    std::vector<TablePatch> patches;
    for (const PoolSnapshot::Table& table : snapshot.tables) {
      for (std::size_t i = 0; i < table.pages.size(); ++i) {
        for (const PageMove& move : moves) {
          if (move.from == table.pages[i]) {
            patches.push_back({table.seq, static_cast<std::int64_t>(i), move});
          }
        }
      }
    }
    manager_.apply(moves, patches, fence_.next());
    ASSERT_TRUE(compactor_.compact(moves, stream_.get()));
    fence_.record(stream_.get());
    moved_ += static_cast<std::int64_t>(moves.size());
  }

  void check() {
    manager_.check();
    std::vector<Expected> expected;
    for (const auto& sequence : rows_) {
      if (!sequence) continue;
      for (std::size_t i = 0; i < sequence->tokens.size(); ++i) {
        expected.push_back({row_of(*sequence), static_cast<std::int64_t>(i), sequence->tokens[i]});
      }
    }
    ASSERT_EQ(tokens_.wrong(by_page_.view(), expected, stream_.get()), 0U);
    ASSERT_EQ(tokens_.wrong(by_token_.view(), expected, stream_.get()), 0U);
  }

  std::mt19937_64 random_;
  std::int64_t page_size_;
  std::int64_t columns_;
  PageCount pages_;
  Stream stream_;
  DevicePool pool_;
  Tokens tokens_;
  DevicePageTable by_page_;
  DevicePageTable by_token_;
  KvManager manager_;
  Compactor compactor_;
  DraftCommit commit_;
  EventFence fence_;
  OnDevice<std::int32_t> lengths_;
  OnDevice<std::int32_t> counts_;
  OnDevice<std::int32_t> path_;
  std::array<std::optional<Sequence>, kRows> rows_;
  std::uint64_t next_id_{0};
  std::int64_t moved_{0};
  std::int64_t committed_{0};
};

class RandomCommands : public DeviceTestWithParam<NamedLayout> {};

TEST_P(RandomCommands, EveryTokenReadsBackThroughBothTables) {
  const char* const given = std::getenv("PACKSTONE_TEST_SEED");
  const std::uint64_t seed = given == nullptr ? 20261129 : std::strtoull(given, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Model model(GetParam().layout, seed);
  for (int step = 0; step < test_steps(80); ++step) {
    ASSERT_NO_FATAL_FAILURE(model.step()) << "step " << step;
    if (HasFailure()) FAIL() << "step " << step << " of seed " << seed;
  }
  if (test_steps(80) >= 80) {
    EXPECT_GT(model.moved(), 0);
    EXPECT_GT(model.committed(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomCommands, ::testing::ValuesIn(all_layouts()), layout_name);

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

std::vector<PageId> pages_of(std::initializer_list<std::int32_t> ids) {
  std::vector<PageId> pages;
  for (const std::int32_t id : ids) pages.push_back(PageId{id});
  return pages;
}

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

PoolLayout small_mla(std::int64_t page_size = 16) {
  return mla_layout({.layers = 2, .page_size = page_size});
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

/// Reads a page's id at once, waits at a gate, and only then copies the page's first plane: as an
/// attention kernel that has read its table before the table changes.
__global__ void late_reader(TokenTable table, std::int64_t row, const volatile int* open,
                            RowPlane plane, std::uint8_t* out, std::int64_t bytes,
                            volatile int* started) {
  __shared__ std::int32_t page;
  if (threadIdx.x == 0) {
    page = static_cast<const volatile std::int32_t*>(table.entries)[row * table.row_stride];
    *started = 1;
    std::uint64_t start = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    std::uint64_t now = start;
    while (*open == 0 && now - start < 5'000'000'000ULL) {
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    }
  }
  __syncthreads();
  const auto* from = reinterpret_cast<const std::uint8_t*>(plane.base) + page * plane.page_stride;
  for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = from[i];
}

// GS-02 and GS-08: a page that a reader in flight was given is not reused before that reader ends.
TEST_F(CompactorTest, Gs02Gs08SourceIsReusedOnlyAfterTheLastReader) {
  Rig rig(small_mla());
  Stream reader;
  KvManager manager({.pages = 64, .page_size = 16, .policy = "sorted"});
  SeqId seq;
  ASSERT_EQ(manager.create(seq), Status::ok);
  ASSERT_EQ(manager.append(seq, 16), Status::ok);
  const PageId page = manager.pages(seq)[0];
  rig.place(0, {page});
  sync(rig.stream.get());
  const RowPlane plane = rig.pool.row_planes()[0];
  const std::int64_t bytes = 16 * plane.row_bytes;
  const OnDevice<std::uint8_t> out(static_cast<std::size_t>(bytes));
  const PinnedMemory started(sizeof(int));
  *started.as<volatile int>() = 0;
  PinnedMemory gate(sizeof(int));
  *gate.as<volatile int>() = 0;
  late_reader<<<1, 128, 0, reader.get()>>>(rig.table.view(), 0, gate.as<int>(), plane, out.data(),
                                           bytes, started.as<int>());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  while (*started.as<volatile int>() == 0) std::this_thread::yield();

  EventFence fence;
  const PageMove move{page, PageId{33}};
  manager.apply(std::array{move}, std::array{TablePatch{seq, 0, move}}, fence.next());
  ASSERT_TRUE(rig.compactor.compact(std::array{move}, rig.stream.get()));
  fence.record({rig.stream.get(), reader.get()});
  sync(rig.stream.get());  // the step itself is over, the reader is not
  EXPECT_EQ(fence.completed(), 0U);
  EXPECT_EQ(manager.reclaim(fence.completed()), 0);
  EXPECT_EQ(manager.allocator().set().state(page), PageState::retired);

  *gate.as<volatile int>() = 1;
  sync(reader.get());
  EXPECT_EQ(fence.completed(), 1U);
  EXPECT_EQ(manager.reclaim(fence.completed()), 1);
  const std::vector<std::uint8_t> read = out.get();
  for (std::int64_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(read[static_cast<std::size_t>(i)],
              pattern(rig.id(0, 0, i / plane.row_bytes), 0, i % plane.row_bytes));
  }
  // Now the old place may be refilled, and the sequence still reads its own bytes.
  rig.place(1, {page});
  EXPECT_EQ(rig.wrong(0, 1, 0), 0U);
  EXPECT_EQ(rig.wrong(1, 1, 1), 0U);
}

// GS-03: a page freed behind a stalled write is not handed to another stream before the write.
TEST_F(CompactorTest, Gs03FreedPageKeepsTheOrderOfTheStreamThatFreedIt) {
  Rig rig(small_mla());
  Stream a;
  Stream c;
  const RowPlane plane = rig.pool.row_planes()[0];
  auto* const place =
      reinterpret_cast<void*>(plane.base + static_cast<std::uint64_t>(5 * plane.page_stride));
  const auto bytes = static_cast<std::size_t>(16 * plane.row_bytes);
  FreeSet set(64);
  set.acquire(PageId{5}, 1);
  set.acquire(PageId{6}, 1);
  EventFence fence;
  {
    Gate gate;
    gate.close(a.get());
    PACKSTONE_CUDA_CHECK(cudaMemsetAsync(place, 0xAA, bytes, a.get()));
    set.retire({PageId{5}, PageId{6}}, fence.record(a.get()));
    std::vector<PageId> freed;
    set.reclaim(fence.completed(), freed);  // B gathers A's list: nothing is there yet
    EXPECT_TRUE(freed.empty());
    gate.open();
    sync(a.get());
    set.reclaim(fence.completed(), freed);
    ASSERT_EQ(freed, pages_of({5}));
  }
  PACKSTONE_CUDA_CHECK(cudaMemsetAsync(place, 0xCC, bytes, c.get()));
  sync(c.get());
  std::vector<std::uint8_t> read(bytes);
  PACKSTONE_CUDA_CHECK(cudaMemcpy(read.data(), place, bytes, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::ranges::all_of(read, [](std::uint8_t b) { return b == 0xCC; }));
}

/// Sums the bytes of a sequence through the table, slowly, many times over.
__global__ void slow_sums(TokenTable table, std::int32_t pages, RowPlane plane, std::int64_t bytes,
                          std::int32_t rounds, unsigned long long* sums) {
  const std::int64_t row = blockIdx.x % 8;
  unsigned long long sum = 0;
  for (std::int32_t round = 0; round < rounds; ++round) {
    for (std::int32_t e = 0; e < pages; ++e) {
      const std::int32_t page =
          static_cast<const volatile std::int32_t*>(table.entries)[row * table.row_stride + e];
      const auto* from =
          reinterpret_cast<const volatile std::uint8_t*>(plane.base) + page * plane.page_stride;
      for (std::int64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
        sum += static_cast<unsigned long long>(from[i]) * static_cast<unsigned long long>(i + e);
      }
    }
  }
  atomicAdd(sums + blockIdx.x, sum);
}

// GS-08: 50 requests read in a long loop while steps on another stream move their pages.
TEST_F(CompactorTest, Gs08ReadersBesideStepsSeeTheSameBytes) {
  Rig rig(small_mla(), 512, {.multiprocessors = 8, .stage_bytes = 4096});
  std::array<std::vector<PageId>, 8> rows;
  std::int32_t next = 1;
  for (std::int64_t r = 0; r < 8; ++r) {
    for (int i = 0; i < 12; ++i) rows[static_cast<std::size_t>(r)].push_back(PageId{next++});
    rig.place(r, rows[static_cast<std::size_t>(r)]);
  }
  const RowPlane plane = rig.pool.row_planes()[0];
  const std::int64_t bytes = 16 * plane.row_bytes;
  Stream reader;
  const OnDevice<unsigned long long> serial(50);
  const OnDevice<unsigned long long> beside(50);
  sync(rig.stream.get());
  slow_sums<<<50, 256, 0, reader.get()>>>(rig.table.view(), 12, plane, bytes, 20, serial.data());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  sync(reader.get());
  slow_sums<<<50, 256, 0, reader.get()>>>(rig.table.view(), 12, plane, bytes, 20, beside.data());
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
  EventFence fence;
  std::int32_t place = 512;  // each step takes fresh pages: sources wait for the fence
  for (int step = 0; step < 6; ++step) {
    std::vector<PageMove> moves;
    for (auto& row : rows) {
      for (std::size_t i = static_cast<std::size_t>(step % 2); i < row.size(); i += 2) {
        moves.push_back({row[i], PageId{--place}});
        row[i] = moves.back().to;
      }
    }
    if (place < 120) break;
    ASSERT_TRUE(rig.compactor.compact(moves, rig.stream.get()));
    fence.record({rig.stream.get(), reader.get()});
  }
  sync(reader.get());
  sync(rig.stream.get());
  EXPECT_EQ(fence.completed(), fence.recorded());
  EXPECT_EQ(beside.get(), serial.get());
  for (std::int64_t r = 0; r < 8; ++r) EXPECT_EQ(rig.wrong(r, 12, r), 0U);
}

TEST_F(CompactorTest, MoveAndPatchOnTwoStreams) {
  Rig rig(small_mla(), 64, {.multiprocessors = 4});
  rig.place(0, pages_of({30, 31, 32}));
  Stream copies;
  for (std::int32_t round = 0; round < 5; ++round) {
    std::vector<PageMove> moves;
    for (std::int32_t i = 0; i < 3; ++i) {
      moves.push_back(round % 2 == 0 ? PageMove{PageId{30 + i}, PageId{50 + i}}
                                     : PageMove{PageId{50 + i}, PageId{30 + i}});
    }
    ASSERT_TRUE(rig.compactor.compact(moves, copies.get(), rig.stream.get()));
    EXPECT_EQ(rig.wrong(0, 3, 0), 0U) << round;
  }
}

TEST_F(CompactorTest, StagingBlocksAreNotReusedBeforeTheirCopy) {
  Rig rig(small_mla());
  rig.place(0, pages_of({10, 11, 12, 13, 14, 15}));
  Gate gate;
  gate.close(rig.stream.get());
  std::int32_t accepted = 0;
  for (std::int32_t i = 0; i < 6; ++i) {
    if (!rig.compactor.compact(std::array{PageMove{PageId{10 + i}, PageId{40 + i}}},
                               rig.stream.get())) {
      break;
    }
    ++accepted;
  }
  EXPECT_EQ(accepted, 4);  // the ring's blocks; the fifth call did nothing
  gate.open();
  EXPECT_EQ(rig.row(0, 6), (std::vector<std::int32_t>{40, 41, 42, 43, 14, 15}));
  EXPECT_EQ(rig.wrong(0, 6, 0), 0U);
}

// BP-02: the shared memory opt-in belongs to a device and a kernel; a failure is never a success.
TEST_F(CompactorTest, Bp02SharedMemoryOptInPerDeviceAndFromThreads) {
  int devices = 0;
  PACKSTONE_CUDA_CHECK(cudaGetDeviceCount(&devices));
  const auto run = [](int device) {
    PACKSTONE_CUDA_CHECK(cudaSetDevice(device));
    // Small and large rings share the kernel: the later, smaller one must not lower the limit.
    Rig large(small_mla(), 64, {.stage_bytes = 9216});
    Rig small(small_mla(), 64, {.warps = 1, .stages = 4, .stage_bytes = 128});
    for (Rig* rig : {&large, &small, &large}) {
      rig->place(0, pages_of({9, 10}));
      ASSERT_TRUE(
          rig->compactor.compact(std::array{PageMove{PageId{9}, PageId{1}}}, rig->stream.get()));
      EXPECT_EQ(rig->wrong(0, 2, 0), 0U);
    }
  };
  for (int device = 0; device < devices; ++device) run(device);
  std::thread first(run, 0);
  std::thread second(run, devices - 1);
  first.join();
  second.join();
  PACKSTONE_CUDA_CHECK(cudaSetDevice(0));
  if (devices > 1) {
    Rig rig(small_mla());
    PACKSTONE_CUDA_CHECK(cudaSetDevice(1));
    EXPECT_THROW(
        (void)rig.compactor.compact(std::array{PageMove{PageId{9}, PageId{1}}}, rig.stream.get()),
        InvalidArgument);
    PACKSTONE_CUDA_CHECK(cudaSetDevice(0));
  }
  // A tree too large for shared memory fails when the object is made, not at the launch.
  DevicePool pool(small_mla(), {.pages = 8});
  EXPECT_THROW(DraftCommit(pool, {.batch_max = 1, .nodes_max = 100'000}), UnsupportedDevice);
  EXPECT_THROW(Rig(small_mla(), 64, {.stage_bytes = 100}), InvalidArgument);
}

TEST_F(CompactorTest, CopiesOnePageToSeveralForks) {
  Rig rig(small_mla(7));
  rig.place(0, pages_of({9, 10}));
  rig.table.set(1, 0, pages_of({20, 21}));
  rig.table.set(2, 0, pages_of({30, 10}));
  ASSERT_TRUE(rig.table.flush(rig.stream.get()));
  ASSERT_TRUE(rig.compactor.copy(
      std::array{PageMove{PageId{9}, PageId{20}}, PageMove{PageId{10}, PageId{21}},
                 PageMove{PageId{9}, PageId{30}}},
      rig.stream.get()));
  for (const std::int64_t row : {0, 1, 2}) EXPECT_EQ(rig.wrong(row, 2, 0), 0U) << row;
  EXPECT_EQ(rig.row(0, 2), (std::vector<std::int32_t>{9, 10}));  // nothing was renamed
}

}  // namespace
}  // namespace packstone::testing
