// SPDX-License-Identifier: Apache-2.0
#include "address_placement.hpp"

#include <string>
#include <utility>

namespace packstone {

namespace {

void take_lowest(BitTree& tree, std::span<PageId> out) {
  std::int64_t page = 0;
  for (PageId& place : out) {
    page = tree.next(page);
    PACKSTONE_ASSERT(page != BitTree::kNone);
    tree.erase(page);
    place = PageId{static_cast<std::int32_t>(page)};
  }
}

BitTree free_pages(const FreeSet& set) {
  BitTree tree(set.pages());
  for (std::int32_t i = 1; i < set.pages(); ++i) {
    if (set.state(PageId{i}) == PageState::free) tree.insert(i);
  }
  return tree;
}

void require_free(const FreeSet& set, const BitTree& tree) {
  for (std::int64_t i = tree.next(0); i != BitTree::kNone; i = tree.next(i + 1)) {
    if (set.state(PageId{static_cast<std::int32_t>(i)}) != PageState::free) {
      throw InvariantError("page " + std::to_string(i) + " is listed as free but is not");
    }
  }
}

void require_count(PageCount listed, PageCount available) {
  if (listed != available) {
    throw InvariantError(std::to_string(listed) + " pages are listed as free, the set has " +
                         std::to_string(available));
  }
}

}  // namespace

LowestPlacement::LowestPlacement(FreeSet& set) : Placement(set), free_(free_pages(set)) {}

void LowestPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  take_lowest(free_, out);
}

void LowestPlacement::give(std::span<const PageId> pages) {
  for (const PageId page : pages) free_.insert(index_of(page));
  if (free_.lowest() == index_of(pages[0])) set_.prefetch(pages[0]);  // the next to be taken
}

void LowestPlacement::rebuild() {
  free_ = free_pages(set_);
}

void LowestPlacement::check() const {
  require_free(set_, free_);
  require_count(free_.count(), available());
}

SortedPlacement::SortedPlacement(FreeSet& set, std::int64_t page_size)
    : Placement(set), page_size_(page_size), sorted_(free_pages(set)), released_(set.pages()) {}

void SortedPlacement::merge() {
  // The set with fewer members is poured into the other.
  if (released_.count() > sorted_.count()) std::swap(released_, sorted_);
  for (std::int64_t i = released_.next(0); i != BitTree::kNone; i = released_.next(i + 1)) {
    released_.erase(i);
    sorted_.insert(i);
  }
}

void SortedPlacement::prepare(const BatchDemand& demand) {
  PageCount estimate = demand.pages;
  if (page_size_ > 1) {
    estimate = demand.decode ? demand.sequences : demand.tokens / page_size_ + demand.sequences + 1;
  }
  if (estimate > sorted_.count()) merge();
}

void SortedPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  if (static_cast<std::int64_t>(out.size()) > sorted_.count()) merge();
  take_lowest(sorted_, out);
}

void SortedPlacement::take_exact(PageId page) {
  (sorted_.contains(index_of(page)) ? sorted_ : released_).erase(index_of(page));
}

void SortedPlacement::give(std::span<const PageId> pages) {
  for (const PageId page : pages) released_.insert(index_of(page));
}

void SortedPlacement::rebuild() {
  sorted_ = free_pages(set_);
  released_ = BitTree(set_.pages());
}

void SortedPlacement::check() const {
  require_free(set_, sorted_);
  require_free(set_, released_);
  require_count(sorted_.count() + released_.count(), available());
}

}  // namespace packstone
