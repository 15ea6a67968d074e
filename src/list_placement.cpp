// SPDX-License-Identifier: Apache-2.0
#include "list_placement.hpp"

#include <algorithm>
#include <string>

namespace packstone {

namespace {

constexpr std::size_t kPrefetchAhead = 12;

}  // namespace

ListPlacement::ListPlacement(FreeSet& set, std::string_view name, Giving giving)
    : Placement(set), name_(name), giving_(giving), ring_(static_cast<std::size_t>(set.pages())) {
  ListPlacement::rebuild();
}

std::size_t ListPlacement::behind(std::size_t place, std::size_t distance) const {
  const std::size_t at = place + distance;
  return at < ring_.size() ? at : at - ring_.size();
}

ListPlacement::Pieces ListPlacement::entries(std::size_t first, std::size_t count) {
  const std::size_t place = behind(head_, first);
  const std::size_t before_end = std::min(count, ring_.size() - place);
  return {.first = std::span(ring_).subspan(place, before_end),
          .second = std::span(ring_).first(count - before_end)};
}

void ListPlacement::push_back(std::span<const PageId> pages) {
  const Pieces to = entries(count_, pages.size());
  std::ranges::copy(pages.first(to.first.size()), to.first.begin());
  std::ranges::copy(pages.last(to.second.size()), to.second.begin());
  count_ += pages.size();
  unplaced_back_ += pages.size();
}

void ListPlacement::push_front(std::span<const PageId> pages) {
  head_ = behind(head_, ring_.size() - pages.size());
  const Pieces to = entries(0, pages.size());
  std::ranges::copy(pages.first(to.first.size()), to.first.begin());
  std::ranges::copy(pages.last(to.second.size()), to.second.begin());
  count_ += pages.size();
  unplaced_front_ += pages.size();
}

void ListPlacement::push_front_each(std::span<const PageId> pages) {
  head_ = behind(head_, ring_.size() - pages.size());
  const Pieces to = entries(0, pages.size());
  std::ranges::reverse_copy(pages.last(to.first.size()), to.first.begin());
  std::ranges::reverse_copy(pages.first(to.second.size()), to.second.begin());
  count_ += pages.size();
  unplaced_front_ += pages.size();
}

void ListPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  if (out.size() != 1) return take_several(out);
  PACKSTONE_ASSERT(count_ > 0);
  out[0] = ring_[head_];
  head_ = behind(head_, 1);
  count_ -= 1;
  if (unplaced_front_ > 0) {
    unplaced_front_ -= 1;
  } else if (unplaced_back_ > count_) {
    unplaced_back_ = count_;
  }
  // A batched decode takes page by page.
  set_.prefetch(ring_[behind(head_, kPrefetchAhead % ring_.size())]);
}

void ListPlacement::take_several(std::span<PageId> out) {
  PACKSTONE_ASSERT(out.size() <= count_);
  const Pieces from = entries(0, out.size());
  std::ranges::copy(from.first, out.begin());
  std::ranges::copy(from.second, out.last(from.second.size()).begin());
  head_ = behind(head_, out.size());
  count_ -= out.size();
  unplaced_front_ -= std::min(unplaced_front_, out.size());
  unplaced_back_ = std::min(unplaced_back_, count_);
  // What the takes to come will make live; a batched decode takes page by page.
  const std::size_t ahead = std::min<std::size_t>(out.size(), kPrefetchAhead);
  for (std::size_t i = 0; i < ahead; ++i) {
    set_.prefetch(ring_[behind(head_, (kPrefetchAhead - i) % ring_.size())]);
  }
}

void ListPlacement::find_places() {
  places_.resize(ring_.size());
  const auto write = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      const std::size_t place = behind(head_, i);
      places_[static_cast<std::size_t>(index_of(ring_[place]))] = static_cast<std::uint32_t>(place);
    }
  };
  write(0, unplaced_front_);
  write(count_ - unplaced_back_, unplaced_back_);
  unplaced_front_ = 0;
  unplaced_back_ = 0;
}

void ListPlacement::take_exact(PageId page) {
  find_places();
  const std::size_t gap = places_[static_cast<std::size_t>(index_of(page))];
  PACKSTONE_ASSERT(ring_[gap] == page && count_ > 0);
  const PageId last = ring_[behind(head_, count_ - 1)];
  ring_[gap] = last;
  places_[static_cast<std::size_t>(index_of(last))] = static_cast<std::uint32_t>(gap);
  count_ -= 1;
}

void ListPlacement::give(std::span<const PageId> pages) {
  if (pages.size() != 1) return give_several(pages);
  if (giving_ == Giving::append) {
    ring_[behind(head_, count_)] = pages[0];
    unplaced_back_ += 1;
  } else {
    head_ = behind(head_, ring_.size() - 1);
    ring_[head_] = pages[0];
    unplaced_front_ += 1;
    set_.prefetch(pages[0]);  // the next to be taken
  }
  count_ += 1;
}

void ListPlacement::give_several(std::span<const PageId> pages) {
  switch (giving_) {
    case Giving::append:
      return push_back(pages);
    case Giving::push_each:
      return push_front_each(pages);
    case Giving::prepend_sorted_unique:
      // Mostly they come in order: a test is cheaper than sorting them again.
      if (std::ranges::is_sorted(pages)) return push_front(pages);
      sorted_.assign(pages.begin(), pages.end());
      std::ranges::sort(sorted_);
      return push_front(sorted_);
  }
}

void ListPlacement::rebuild() {
  head_ = 0;
  count_ = 0;
  for (std::int32_t i = 1; i < set_.pages(); ++i) {
    if (set_.state(PageId{i}) == PageState::free) ring_[count_++] = PageId{i};
  }
  unplaced_front_ = 0;
  unplaced_back_ = count_;
}

void ListPlacement::check() const {
  if (static_cast<PageCount>(count_) != available()) {
    throw InvariantError("the free list has " + std::to_string(count_) + " pages, the set " +
                         std::to_string(available()));
  }
  if (unplaced_front_ + unplaced_back_ > count_) {
    throw InvariantError("the free list has entries without a place twice");
  }
  std::vector<bool> listed(ring_.size());
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t place = behind(head_, i);
    const PageId page = ring_[place];
    const auto at = static_cast<std::size_t>(index_of(page));
    const bool placed = i >= unplaced_front_ && i < count_ - unplaced_back_;
    const bool twice = listed[at];
    listed[at] = true;
    if (set_.state(page) != PageState::free || twice || (placed && places_[at] != place)) {
      throw InvariantError("the free list names page " + std::to_string(index_of(page)) +
                           ", which is " + to_string(set_.state(page)) + ", or twice");
    }
  }
}

}  // namespace packstone
