// SPDX-License-Identifier: Apache-2.0
#include "list_placement.hpp"

#include <algorithm>
#include <functional>
#include <string>

namespace packstone {

ListPlacement::ListPlacement(FreeSet& set, std::string_view name, Giving giving)
    : Placement(set),
      name_(name),
      giving_(giving),
      stale_max_(set.pages() / 64 + 16),
      ring_(static_cast<std::size_t>(set.pages() + stale_max_), kNoPage) {
  ListPlacement::rebuild();
}

PageId ListPlacement::pop() {
  PACKSTONE_ASSERT(size_ > 0);
  const PageId page = ring_[head_];
  head_ = wrapped(head_ + 1);
  size_ -= 1;
  return page;
}

void ListPlacement::push_back(PageId page) {
  PACKSTONE_ASSERT(size_ < ring_.size());
  ring_[wrapped(head_ + size_)] = page;
  size_ += 1;
}

void ListPlacement::push_front(PageId page) {
  PACKSTONE_ASSERT(size_ < ring_.size());
  head_ = (head_ == 0 ? ring_.size() : head_) - 1;
  ring_[head_] = page;
  size_ += 1;
}

bool ListPlacement::skip(PageId page) {
  if (stale_.empty()) return false;
  const auto found = stale_.find(page);
  if (found == stale_.end()) return false;
  Stale& stale = found->second;
  if (giving_ != Giving::append && stale.listed) {
    stale.listed = false;
    return false;
  }
  stale_entries_ -= 1;
  if (--stale.count == 0) stale_.erase(found);
  return true;
}

void ListPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  for (PageId& place : out) {
    do {
      place = pop();
    } while (skip(place));
  }
}

void ListPlacement::take_exact(PageId page) {
  Stale& stale = stale_[page];
  stale.count += 1;
  stale.listed = false;
  stale_entries_ += 1;
  if (stale_entries_ >= stale_max_) sweep();
}

void ListPlacement::give(std::span<const PageId> pages) {
  if (!stale_.empty()) {
    for (const PageId page : pages) {
      if (const auto found = stale_.find(page); found != stale_.end()) found->second.listed = true;
    }
  }
  switch (giving_) {
    case Giving::append:
      for (const PageId page : pages) push_back(page);
      return;
    case Giving::push_each:
      for (const PageId page : pages) push_front(page);
      return;
    case Giving::prepend_sorted_unique:
      sorted_.assign(pages.begin(), pages.end());
      std::ranges::sort(sorted_, std::greater{});
      for (const PageId page : sorted_) push_front(page);
      return;
  }
}

void ListPlacement::sweep() {
  for (std::size_t left = size_; left > 0; --left) {
    const PageId page = pop();
    if (!skip(page)) push_back(page);
  }
  PACKSTONE_ASSERT(stale_entries_ == 0);
  stale_.clear();
}

void ListPlacement::rebuild() {
  head_ = 0;
  size_ = 0;
  stale_entries_ = 0;
  stale_.clear();
  for (std::int32_t i = 1; i < set_.pages(); ++i) {
    if (set_.state(PageId{i}) == PageState::free) push_back(PageId{i});
  }
}

void ListPlacement::check() const {
  std::unordered_map<PageId, Stale> stale = stale_;
  std::vector<bool> listed(static_cast<std::size_t>(set_.pages()), false);
  PageCount seen = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    const PageId page = ring_[wrapped(head_ + i)];
    const std::string name = "the free list names page " + std::to_string(index_of(page));
    if (const auto found = stale.find(page); found != stale.end() && found->second.count > 0) {
      const bool counts = giving_ != Giving::append && found->second.listed;
      if (!counts) {
        found->second.count -= 1;
        continue;
      }
      found->second.listed = false;
    }
    if (set_.state(page) != PageState::free) {
      throw InvariantError(name + ", which is " + to_string(set_.state(page)));
    }
    if (listed[static_cast<std::size_t>(index_of(page))]) throw InvariantError(name + " twice");
    listed[static_cast<std::size_t>(index_of(page))] = true;
    seen += 1;
  }
  if (seen != available()) {
    throw InvariantError("the free list has " + std::to_string(seen) + " pages, the set " +
                         std::to_string(available()));
  }
}

}  // namespace packstone
