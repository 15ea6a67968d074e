// SPDX-License-Identifier: Apache-2.0
#include "run_index.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace packstone {

namespace {

std::size_t class_of(PageCount length) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)) - 1);
}

}  // namespace

RunIndex::RunIndex(PageCount pages)
    : lengths_(static_cast<std::size_t>(pages)),
      heads_(pages),
      tails_(pages),
      classes_(class_of(pages) + 1) {}

void RunIndex::add(PageRun run) {
  const std::int32_t first = index_of(run.first);
  const std::int32_t last = first + run.count - 1;
  lengths_[static_cast<std::size_t>(first)] = run.count;
  lengths_[static_cast<std::size_t>(last)] = run.count;
  heads_.insert(first);
  tails_.insert(last);
  BitTree& size_class = classes_[class_of(run.count)];
  if (size_class.size() == 0) size_class = BitTree(static_cast<std::int64_t>(lengths_.size()));
  size_class.insert(first);
  pages_ += run.count;
}

void RunIndex::remove(PageRun run) {
  heads_.erase(index_of(run.first));
  tails_.erase(index_of(run.first) + run.count - 1);
  classes_[class_of(run.count)].erase(index_of(run.first));
  pages_ -= run.count;
}

void RunIndex::insert(PageRun run) {
  const std::int32_t before = index_of(run.first) - 1;
  if (before >= 0 && tails_.contains(before)) {
    const PageRun left{PageId{before + 1 - length(before)}, length(before)};
    remove(left);
    run = {left.first, left.count + run.count};
  }
  const std::int32_t behind = index_of(run.first) + run.count;
  if (behind < static_cast<std::int64_t>(lengths_.size()) && heads_.contains(behind)) {
    const PageRun right{PageId{behind}, length(behind)};
    remove(right);
    run.count += right.count;
  }
  add(run);
}

void RunIndex::take_front(PageId first, std::int32_t count) {
  const PageRun run = at(first);
  PACKSTONE_ASSERT(count >= 1 && count <= run.count);
  remove(run);
  if (run.count > count) add({page_after(first, count), run.count - count});
}

void RunIndex::take_exact(PageId page) {
  const std::int64_t head = heads_.previous(index_of(page));
  PACKSTONE_ASSERT(head != BitTree::kNone && head + length(head) > index_of(page));
  const PageRun run{PageId{static_cast<std::int32_t>(head)}, length(head)};
  remove(run);
  const std::int32_t left = index_of(page) - index_of(run.first);
  if (left > 0) add({run.first, left});
  if (run.count - left > 1) add({page_after(page), run.count - left - 1});
}

PageRun RunIndex::at(PageId page) const {
  if (index_of(page) >= static_cast<std::int64_t>(lengths_.size()) ||
      !heads_.contains(index_of(page))) {
    return {};
  }
  return {page, length(index_of(page))};
}

template <typename Better>
PageRun RunIndex::choose(std::size_t size_class, PageCount at_least, PageCount ideal,
                         Better better) const {
  PageRun best;
  const BitTree& heads = classes_[size_class];
  if (heads.empty()) return best;
  std::int64_t head = heads.next(0);
  for (int i = 0; i < kCandidates && head != BitTree::kNone; ++i, head = heads.next(head + 1)) {
    const std::int32_t count = length(head);
    if (count >= at_least && (best.count == 0 || better(count, best.count))) {
      best = {PageId{static_cast<std::int32_t>(head)}, count};
      if (count == ideal) break;
    }
  }
  return best;
}

PageRun RunIndex::best_fit(PageCount pages) const {
  for (std::size_t c = class_of(pages); c < classes_.size(); ++c) {
    const PageCount shortest = std::max(pages, PageCount{1} << c);
    if (const PageRun run = choose(c, pages, shortest, std::less{}); run.count > 0) return run;
  }
  return {};
}

PageRun RunIndex::longest() const {
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
  for (std::int64_t head = heads_.next(0); head != BitTree::kNone; head = heads_.next(head + 1)) {
    result.push_back({PageId{static_cast<std::int32_t>(head)}, length(head)});
  }
  return result;
}

}  // namespace packstone
