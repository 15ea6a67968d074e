// SPDX-License-Identifier: Apache-2.0
#include "list_placement.hpp"

#include <algorithm>
#include <string>

namespace packstone {

namespace {

constexpr std::size_t kPrefetchAhead = 12;

}  // namespace

ListPlacement::ListPlacement(FreeSet& set, std::string_view name, Giving giving)
    : Placement(set),
      name_(name),
      giving_(giving),
      ring_(static_cast<std::size_t>(set.pages())),
      places_(static_cast<std::size_t>(set.pages())) {
  ListPlacement::rebuild();
}

std::size_t ListPlacement::behind(std::size_t place, std::size_t distance) const {
  const std::size_t at = place + distance;
  return at < ring_.size() ? at : at - ring_.size();
}

void ListPlacement::put(std::size_t place, PageId page) {
  ring_[place] = page;
  places_[static_cast<std::size_t>(index_of(page))] = static_cast<std::uint32_t>(place);
}

void ListPlacement::push_back(PageId page) {
  put(behind(head_, count_), page);
  count_ += 1;
}

void ListPlacement::push_front(PageId page) {
  head_ = behind(head_, ring_.size() - 1);
  count_ += 1;
  put(head_, page);
}

void ListPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  PACKSTONE_ASSERT(out.size() <= count_);
  const std::size_t before_end = std::min(out.size(), ring_.size() - head_);
  const auto first = ring_.begin() + static_cast<std::ptrdiff_t>(head_);
  std::copy_n(first, before_end, out.begin());
  std::copy_n(ring_.begin(), out.size() - before_end,
              out.begin() + static_cast<std::ptrdiff_t>(before_end));
  head_ = behind(head_, out.size());
  count_ -= out.size();
  // What the takes to come will make live; a batched decode takes page by page.
  const std::size_t ahead = std::min<std::size_t>(out.size(), kPrefetchAhead);
  for (std::size_t i = 0; i < ahead; ++i) {
    set_.prefetch(ring_[behind(head_, (kPrefetchAhead - i) % ring_.size())]);
  }
}

void ListPlacement::take_exact(PageId page) {
  const std::size_t gap = places_[static_cast<std::size_t>(index_of(page))];
  PACKSTONE_ASSERT(ring_[gap] == page && count_ > 0);
  put(gap, ring_[behind(head_, count_ - 1)]);
  count_ -= 1;
}

void ListPlacement::give(std::span<const PageId> pages) {
  switch (giving_) {
    case Giving::append:
      for (const PageId page : pages) push_back(page);
      return;
    case Giving::push_each:
      for (const PageId page : pages) push_front(page);
      return;
    case Giving::prepend_sorted_unique:
      // Mostly they come in order: a test is cheaper than sorting them again.
      sorted_.assign(pages.begin(), pages.end());
      if (!std::ranges::is_sorted(sorted_)) std::ranges::sort(sorted_);
      for (auto page = sorted_.rbegin(); page != sorted_.rend(); ++page) push_front(*page);
      return;
  }
}

void ListPlacement::rebuild() {
  head_ = 0;
  count_ = 0;
  for (std::int32_t i = 1; i < set_.pages(); ++i) {
    if (set_.state(PageId{i}) == PageState::free) push_back(PageId{i});
  }
}

void ListPlacement::check() const {
  if (static_cast<PageCount>(count_) != available()) {
    throw InvariantError("the free list has " + std::to_string(count_) + " pages, the set " +
                         std::to_string(available()));
  }
  for (std::size_t i = 0; i < count_; ++i) {
    const std::size_t place = behind(head_, i);
    const PageId page = ring_[place];
    if (set_.state(page) != PageState::free ||
        places_[static_cast<std::size_t>(index_of(page))] != place) {
      throw InvariantError("the free list names page " + std::to_string(index_of(page)) +
                           ", which is " + to_string(set_.state(page)) + ", or twice");
    }
  }
}

}  // namespace packstone
