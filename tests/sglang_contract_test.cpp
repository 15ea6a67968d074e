// SPDX-License-Identifier: Apache-2.0
// `fifo` and `sorted` against a plain model of the allocators whose contract they keep: SGLang's
// TokenToKVPoolAllocator (page size 1) and PagedTokenToKVPoolAllocator, need_sort off and on. The
// model is written from the published behaviour, with vectors, and shares no code with the library.
#include <packstone/kv_manager.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace packstone {
namespace {

using Slots = std::vector<SlotId>;

class ContractModel {
 public:
  ContractModel(std::int64_t pages, std::int64_t page_size, bool need_sort)
      : page_size_(page_size), need_sort_(need_sort) {
    for (std::int64_t page = 1; page < pages; ++page) free_.push_back(page);
  }

  struct Row {
    std::int64_t prefix;
    std::int64_t length;
    SlotId last;  // slot of token prefix - 1, or -1
  };

  [[nodiscard]] std::int64_t available_pages() const { return ssize(free_) + ssize(release_); }

  /// `pages` whole pages, ids in free-list order; page size 1: tokens.
  std::optional<Slots> alloc(std::int64_t pages) {
    if (need_sort_ && pages > ssize(free_)) merge_and_sort();
    if (pages > ssize(free_)) return std::nullopt;
    return slice(pages);
  }

  std::optional<Slots> alloc_extend(const std::vector<Row>& rows) {
    std::int64_t tokens = 0;
    std::int64_t wanted = 0;
    for (const Row& row : rows) {
      tokens += row.length - row.prefix;
      wanted += ceil(row.length) - ceil(row.prefix);
    }
    if (page_size_ == 1) return alloc(tokens);
    const std::int64_t estimate = tokens / page_size_ + static_cast<std::int64_t>(rows.size()) + 1;
    if (need_sort_ && estimate > ssize(free_)) merge_and_sort();
    if (wanted > ssize(free_)) return std::nullopt;
    Slots out;
    for (const Row& row : rows) {
      std::int64_t position = row.prefix;
      SlotId slot = row.last;
      while (position < row.length && position % page_size_ != 0) {  // the old partial page
        out.push_back(++slot);
        ++position;
      }
      while (position < row.length) {  // whole new pages, then the head of the last one
        const std::int64_t page = slice(1)[0];
        const std::int64_t count = std::min(page_size_, row.length - position);
        for (std::int64_t i = 0; i < count; ++i) out.push_back(page * page_size_ + i);
        position += count;
      }
    }
    return out;
  }

  /// Rows whose length already counts the new token.
  std::optional<Slots> alloc_decode(const std::vector<Row>& rows) {
    const auto size = static_cast<std::int64_t>(rows.size());
    if (page_size_ == 1) return alloc(size);
    if (need_sort_ && size > ssize(free_)) merge_and_sort();
    std::int64_t wanted = 0;
    for (const Row& row : rows) wanted += row.length % page_size_ == 1 ? 1 : 0;
    if (wanted > ssize(free_)) return std::nullopt;
    Slots out;
    for (const Row& row : rows) {
      out.push_back(row.length % page_size_ == 1 ? slice(1)[0] * page_size_ : row.last + 1);
    }
    return out;
  }

  void free(const Slots& slots) {
    if (slots.empty()) return;
    std::vector<std::int64_t>& list = need_sort_ ? release_ : free_;
    if (page_size_ == 1) {
      list.insert(list.end(), slots.begin(), slots.end());
      return;
    }
    std::vector<std::int64_t> pages;
    for (const SlotId slot : slots) pages.push_back(slot / page_size_);
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    list.insert(list.begin(), pages.begin(), pages.end());
  }

 private:
  static std::int64_t ssize(const std::vector<std::int64_t>& list) {
    return static_cast<std::int64_t>(list.size());
  }
  [[nodiscard]] std::int64_t ceil(std::int64_t tokens) const {
    return (tokens + page_size_ - 1) / page_size_;
  }
  Slots slice(std::int64_t count) {
    const auto end = free_.begin() + static_cast<std::ptrdiff_t>(count);
    Slots head(free_.begin(), end);
    free_.erase(free_.begin(), end);
    return head;
  }
  void merge_and_sort() {
    free_.insert(free_.end(), release_.begin(), release_.end());
    release_.clear();
    std::sort(free_.begin(), free_.end());
  }

  std::int64_t page_size_;
  bool need_sort_;
  std::vector<std::int64_t> free_;
  std::vector<std::int64_t> release_;
};

struct Case {
  std::string policy;
  std::int64_t page_size;
};

class SglangContract : public testing::TestWithParam<Case> {};

struct Request {
  SeqId seq;
  Slots row;
};

ContractModel::Row row_of(const Request& request, std::int64_t growth) {
  const auto prefix = static_cast<std::int64_t>(request.row.size());
  return {prefix, prefix + growth, prefix > 0 ? request.row.back() : -1};
}

/// A serving loop: both sides see the same extends, decodes, truncations and ends.
class TwoSides {
 public:
  TwoSides(const Case& param, std::uint64_t seed)
      : page_size_(param.page_size),
        manager_({.pages = kPages, .page_size = param.page_size, .policy = param.policy}),
        model_(kPages, param.page_size, param.policy == "sorted"),
        random_(seed) {}

  [[nodiscard]] std::int64_t refused() const { return refused_; }
  [[nodiscard]] std::int64_t served() const { return served_; }

  void call() {
    switch (draw(8)) {
      case 0:
      case 1:
        return extend();
      case 2:
        return end();
      case 3:
        return truncate();
      default:
        return decode();
    }
  }

 private:
  static constexpr PageCount kPages = 160;

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void extend() {
    if (requests_.size() < 12) {
      Request fresh;
      ASSERT_EQ(manager_.create(fresh.seq), Status::ok);
      requests_.push_back(std::move(fresh));
    }
    std::vector<ContractModel::Row> rows;
    std::vector<Growth> growths;
    std::vector<std::size_t> at;
    const std::size_t first = draw(requests_.size());
    for (std::size_t i = first; i < std::min(requests_.size(), first + 3); ++i) {
      const auto most = static_cast<std::uint64_t>(kPages / 6 * page_size_);
      rows.push_back(row_of(requests_[i], static_cast<std::int64_t>(draw(most))));
      growths.push_back({requests_[i].seq, rows.back().length});
      at.push_back(i);
    }
    Slots slots;
    const Status status = manager_.extend(growths, &slots);
    const std::optional<Slots> expected = model_.alloc_extend(rows);
    ASSERT_EQ(status == Status::ok, expected.has_value());
    refused_ += expected ? 0 : 1;
    if (!expected) return;
    ASSERT_EQ(slots, *expected);
    served_ += 1;
    auto next = expected->begin();
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto count = static_cast<std::ptrdiff_t>(rows[i].length - rows[i].prefix);
      Slots& row = requests_[at[i]].row;
      row.insert(row.end(), next, next + count);
      next += count;
    }
  }

  void decode() {
    std::vector<ContractModel::Row> rows;
    std::vector<SeqId> batch;
    for (const Request& request : requests_) {
      rows.push_back(row_of(request, 1));
      batch.push_back(request.seq);
    }
    Slots slots(batch.size());
    const Status status = manager_.decode(batch, slots);
    const std::optional<Slots> expected = model_.alloc_decode(rows);
    ASSERT_EQ(status == Status::ok, expected.has_value());
    refused_ += expected ? 0 : 1;
    if (!expected) return;
    ASSERT_EQ(slots, *expected);
    served_ += 1;
    for (std::size_t i = 0; i < batch.size(); ++i) requests_[i].row.push_back(slots[i]);
  }

  void end() {
    if (requests_.empty()) return;
    const std::size_t at = draw(requests_.size());
    manager_.finish(requests_[at].seq);
    model_.free(requests_[at].row);
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(at));
    ASSERT_EQ(manager_.available_pages(), model_.available_pages());
  }

  void truncate() {
    if (requests_.empty()) return;
    Request& request = requests_[draw(requests_.size())];
    const auto keep = static_cast<std::int64_t>(draw(request.row.size() + 1));
    manager_.truncate(request.seq, keep);
    const auto whole =
        std::min((keep + page_size_ - 1) / page_size_ * page_size_, std::ssize(request.row));
    model_.free({request.row.begin() + static_cast<std::ptrdiff_t>(whole), request.row.end()});
    request.row.resize(static_cast<std::size_t>(keep));
  }

  std::int64_t page_size_;
  KvManager manager_;
  ContractModel model_;
  std::mt19937_64 random_;
  std::vector<Request> requests_;
  std::int64_t refused_{0};
  std::int64_t served_{0};
};

TEST_P(SglangContract, AServingLoopGetsTheSameIdsInTheSameOrder) {
  TwoSides sides(GetParam(), 1);
  while (sides.served() < 100'000 && !HasFatalFailure()) sides.call();
  EXPECT_GT(sides.refused(), 100) << "shortages must be among the calls";
}

TEST_P(SglangContract, AllocationAndReleaseOfWholePagesKeepTheOrder) {
  const auto& [policy, page_size] = GetParam();
  PageAllocator allocator({.pages = 100, .placement = {.policy = policy, .page_size = page_size}});
  ContractModel model(100, page_size, policy == "sorted");
  std::mt19937_64 random(2);
  Slots live;
  for (int i = 0; i < 120'000; ++i) {
    if (random() % 2 == 0) {
      std::vector<PageId> pages(random() % 20);
      const Status status = allocator.allocate({.owner = 1}, pages);
      const std::optional<Slots> expected = model.alloc(static_cast<std::int64_t>(pages.size()));
      ASSERT_EQ(status == Status::ok, expected.has_value()) << "call " << i;
      if (!expected) continue;
      for (std::size_t p = 0; p < pages.size(); ++p) {
        ASSERT_EQ(index_of(pages[p]), (*expected)[p]) << "call " << i;
      }
      live.insert(live.end(), expected->begin(), expected->end());
    } else {
      std::shuffle(live.begin(), live.end(), random);
      const std::size_t count = std::min<std::size_t>(live.size(), random() % 15);
      std::vector<PageId> pages;
      Slots slots;
      for (std::size_t p = 0; p < count; ++p) {
        pages.push_back(PageId{static_cast<std::int32_t>(live.back())});
        slots.push_back(live.back() * page_size);
        live.pop_back();
      }
      allocator.release(pages);
      model.free(slots);
    }
    ASSERT_EQ(allocator.available(), model.available_pages());
  }
  allocator.check();
}

INSTANTIATE_TEST_SUITE_P(Policies, SglangContract,
                         testing::Values(Case{"fifo", 1}, Case{"fifo", 2}, Case{"fifo", 16},
                                         Case{"fifo", 64}, Case{"sorted", 1}, Case{"sorted", 2},
                                         Case{"sorted", 16}, Case{"sorted", 64}),
                         [](const auto& each) {
                           return each.param.policy + "_" + std::to_string(each.param.page_size);
                         });

}  // namespace
}  // namespace packstone
