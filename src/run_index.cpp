// SPDX-License-Identifier: Apache-2.0
#include "run_index.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace packstone {

namespace {

constexpr std::uint32_t kWordPages = 64;

std::size_t class_of(PageCount length) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)) - 1);
}

// Unsigned, so that division and remainder are a shift and a mask.
std::uint32_t word_of(std::int32_t page) {
  return static_cast<std::uint32_t>(page) / kWordPages;
}
unsigned place_of(std::int32_t page) {
  return static_cast<std::uint32_t>(page) % kWordPages;
}
std::uint64_t bit_of(std::int32_t page) {
  return std::uint64_t{1} << place_of(page);
}

}  // namespace

RunIndex::RunIndex(PageCount pages)
    : size_(pages),
      ends_(static_cast<std::size_t>(pages_for(pages, kWordPages))),
      words_(pages_for(pages, kWordPages)),
      classes_(class_of(pages) + 1) {}

inline void RunIndex::mark(std::uint32_t word, Ends bits) {
  Ends& ends = ends_[word];
  if ((ends.heads | ends.tails) == 0) words_.insert(word);
  ends.heads |= bits.heads;
  ends.tails |= bits.tails;
}

inline void RunIndex::unmark(std::uint32_t word, Ends bits) {
  Ends& ends = ends_[word];
  ends.heads &= ~bits.heads;
  ends.tails &= ~bits.tails;
  if ((ends.heads | ends.tails) == 0) words_.erase(word);
}

inline void RunIndex::mark_run(std::int32_t head, std::int32_t tail) {
  if (word_of(head) == word_of(tail)) {
    mark(word_of(head), {.heads = bit_of(head), .tails = bit_of(tail)});
  } else {
    mark(word_of(head), {.heads = bit_of(head)});
    mark(word_of(tail), {.tails = bit_of(tail)});
  }
}

inline void RunIndex::unmark_run(std::int32_t head, std::int32_t tail) {
  if (word_of(head) == word_of(tail)) {
    unmark(word_of(head), {.heads = bit_of(head), .tails = bit_of(tail)});
  } else {
    unmark(word_of(head), {.heads = bit_of(head)});
    unmark(word_of(tail), {.tails = bit_of(tail)});
  }
}

inline bool RunIndex::is_head(std::int32_t page) const {
  return page < size_ && (ends_[word_of(page)].heads & bit_of(page)) != 0;
}

inline bool RunIndex::is_tail(std::int32_t page) const {
  return page >= 0 && (ends_[word_of(page)].tails & bit_of(page)) != 0;
}

inline std::int32_t RunIndex::tail_of(std::int32_t head) const {
  const std::uint64_t behind = ends_[word_of(head)].tails >> place_of(head);
  if (behind != 0) return head + std::countr_zero(behind);
  const std::int64_t word = words_.next(std::int64_t{word_of(head)} + 1);
  PACKSTONE_ASSERT(word >= 0 && ends_[static_cast<std::size_t>(word)].tails != 0);
  const auto base = static_cast<std::int32_t>(word * kWordPages);
  return base + std::countr_zero(ends_[static_cast<std::size_t>(word)].tails);
}

inline std::int32_t RunIndex::head_of(std::int32_t tail) const {
  const std::uint64_t before = ends_[word_of(tail)].heads << (kWordPages - 1 - place_of(tail));
  if (before != 0) return tail - std::countl_zero(before);
  const std::int64_t word = words_.previous(std::int64_t{word_of(tail)} - 1);
  PACKSTONE_ASSERT(word >= 0 && ends_[static_cast<std::size_t>(word)].heads != 0);
  const auto last = static_cast<std::int32_t>(word * kWordPages + kWordPages - 1);
  return last - std::countl_zero(ends_[static_cast<std::size_t>(word)].heads);
}

inline void RunIndex::list(std::int32_t head, std::size_t size_class) {
  BitTree& heads = classes_[size_class];
  if (heads.size() == 0) heads = BitTree(size_);
  heads.insert(head);
}

void RunIndex::settle() {
  if (loose_.count == 0) return;
  const std::int32_t head = index_of(loose_.first);
  mark_run(head, head + loose_.count - 1);
  list(head, class_of(loose_.count));
  loose_.count = 0;
}

void RunIndex::insert(PageRun run) {
  settle();
  const std::int32_t head = index_of(run.first);
  const std::int32_t behind = head + run.count;
  pages_ += run.count;
  const bool joins_right = is_head(behind);
  std::int32_t tail = behind - 1;
  if (joins_right) {
    tail = tail_of(behind);
    classes_[class_of(tail - behind + 1)].erase(behind);
  }
  if (!is_tail(head - 1)) {
    if (joins_right) {
      mark(word_of(head), {.heads = bit_of(head)});
      unmark(word_of(behind), {.heads = bit_of(behind)});
      list(head, class_of(tail - head + 1));
    } else {
      loose_ = run;
    }
    return;
  }
  const std::int32_t left = head_of(head - 1);
  if (joins_right) {
    unmark(word_of(behind), {.heads = bit_of(behind)});
  } else {
    mark(word_of(tail), {.tails = bit_of(tail)});
  }
  unmark(word_of(head - 1), {.tails = bit_of(head - 1)});
  const std::size_t old_class = class_of(head - left);
  const std::size_t new_class = class_of(tail - left + 1);
  if (old_class == new_class) return;
  classes_[old_class].erase(left);
  list(left, new_class);
}

void RunIndex::take_front(PageRun run, std::int32_t count) {
  PACKSTONE_ASSERT(count >= 1 && count <= run.count);
  PACKSTONE_ASSERT_SLOW(at(run.first) == run);
  const std::int32_t head = index_of(run.first);
  pages_ -= count;
  if (run == loose_) {
    loose_ = {page_after(run.first, count), run.count - count};
    return;
  }
  if (count == run.count) {
    unmark_run(head, head + count - 1);
  } else {
    // Set before cleared: a word and a class that stay in use change once.
    mark(word_of(head + count), {.heads = bit_of(head + count)});
    unmark(word_of(head), {.heads = bit_of(head)});
    list(head + count, class_of(run.count - count));
  }
  classes_[class_of(run.count)].erase(head);
}

void RunIndex::take_exact(PageId page) {
  settle();
  const std::int32_t head = head_of(index_of(page));
  const PageRun run = run_at(head);
  const std::int32_t left = index_of(page) - head;
  PACKSTONE_ASSERT(left < run.count);
  take_front(run, left + 1);
  if (left > 0) insert({run.first, left});
}

PageRun RunIndex::at(PageId page) const {
  if (loose_.count > 0 && page == loose_.first) return loose_;
  return is_head(index_of(page)) ? run_at(index_of(page)) : PageRun{};
}

template <typename Better>
PageRun RunIndex::choose(std::size_t size_class, PageCount at_least, PageCount ideal,
                         Better better) const {
  PageRun best;
  const BitTree& heads = classes_[size_class];
  if (heads.empty()) return best;
  std::int64_t head = heads.next(0);
  for (int i = 0; i < kCandidates && head != BitTree::kNone; ++i, head = heads.next(head + 1)) {
    const PageRun run = run_at(static_cast<std::int32_t>(head));
    if (run.count >= at_least && (best.count == 0 || better(run.count, best.count))) {
      best = run;
      if (run.count == ideal) break;
    }
  }
  return best;
}

PageRun RunIndex::best_fit(PageCount pages) {
  if (loose_.count == pages) {
    // What the search would find: no run fits better, and none so well lies lower.
    const BitTree& heads = classes_[class_of(pages)];
    if (heads.empty() || heads.next(0) > index_of(loose_.first)) return loose_;
  }
  settle();
  for (std::size_t c = class_of(pages); c < classes_.size(); ++c) {
    const PageCount shortest = std::max(pages, PageCount{1} << c);
    if (const PageRun run = choose(c, pages, shortest, std::less{}); run.count > 0) return run;
  }
  return {};
}

PageRun RunIndex::longest() {
  settle();
  for (std::size_t c = classes_.size(); c-- > 0;) {
    const PageCount longest_of_class = (PageCount{2} << c) - 1;
    if (const PageRun run = choose(c, 1, longest_of_class, std::greater{}); run.count > 0) {
      return run;
    }
  }
  return {};
}

std::vector<PageRun> RunIndex::runs() const {
  std::vector<PageRun> result;
  for (std::int64_t word = words_.next(0); word != BitTree::kNone; word = words_.next(word + 1)) {
    std::uint64_t heads = ends_[static_cast<std::size_t>(word)].heads;
    for (; heads != 0; heads &= heads - 1) {
      const std::int64_t head = word * kWordPages + std::countr_zero(heads);
      result.push_back(run_at(static_cast<std::int32_t>(head)));
    }
  }
  if (loose_.count > 0) {
    result.insert(std::ranges::lower_bound(result, loose_.first, {}, &PageRun::first), loose_);
  }
  return result;
}

}  // namespace packstone
