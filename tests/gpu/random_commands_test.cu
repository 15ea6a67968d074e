// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_test.cuh"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/draft_commit.hpp>
#include <packstone/cuda/page_table.hpp>
#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <random>

namespace packstone::testing {
namespace {

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

}  // namespace
}  // namespace packstone::testing
