// SPDX-License-Identifier: Apache-2.0
#include "list_placement.hpp"

#include <algorithm>
#include <string>

namespace packstone {

ListPlacement::ListPlacement(FreeSet& set, std::string_view name, Giving giving)
    : Placement(set), name_(name), giving_(giving), links_(static_cast<std::size_t>(set.pages())) {
  ListPlacement::rebuild();
}

void ListPlacement::insert_between(std::int32_t previous, std::int32_t page, std::int32_t next) {
  link(page) = {.previous = previous, .next = next};
  link(previous).next = page;
  link(next).previous = page;
}

void ListPlacement::take(const TakeRequest& /*request*/, std::span<PageId> out) {
  std::int32_t page = link(0).next;
  for (PageId& place : out) {
    PACKSTONE_ASSERT(page != 0);
    place = PageId{page};
    page = link(page).next;
  }
  link(0).next = page;
  link(page).previous = 0;
}

void ListPlacement::take_exact(PageId page) {
  const Link at = link(index_of(page));
  link(at.previous).next = at.next;
  link(at.next).previous = at.previous;
}

void ListPlacement::give(std::span<const PageId> pages) {
  switch (giving_) {
    case Giving::append:
      for (const PageId page : pages) insert_between(link(0).previous, index_of(page), 0);
      return;
    case Giving::push_each:
      for (const PageId page : pages) insert_between(0, index_of(page), link(0).next);
      return;
    case Giving::prepend_sorted_unique:
      sorted_.assign(pages.begin(), pages.end());
      std::ranges::sort(sorted_, std::greater{});
      for (const PageId page : sorted_) insert_between(0, index_of(page), link(0).next);
      return;
  }
}

void ListPlacement::rebuild() {
  link(0) = {.previous = 0, .next = 0};
  for (std::int32_t i = 1; i < set_.pages(); ++i) {
    if (set_.state(PageId{i}) == PageState::free) insert_between(link(0).previous, i, 0);
  }
}

void ListPlacement::check() const {
  PageCount seen = 0;
  for (std::int32_t page = links_[0].next; page != 0;
       page = links_[static_cast<std::size_t>(page)].next) {
    if (set_.state(PageId{page}) != PageState::free || ++seen > set_.pages()) {
      throw InvariantError("the free list names page " + std::to_string(page) + ", which is " +
                           to_string(set_.state(PageId{page})) + ", or it is a loop");
    }
  }
  if (seen != available()) {
    throw InvariantError("the free list has " + std::to_string(seen) + " pages, the set " +
                         std::to_string(available()));
  }
}

}  // namespace packstone
