// SPDX-License-Identifier: Apache-2.0
#include <packstone/page_allocator.hpp>

#include <limits>
#include <string>

namespace packstone {

PageAllocator::PageAllocator(const PageAllocatorOptions& options)
    : set_(options.pages),
      placement_options_(options.placement),
      placement_(make_placement(set_, placement_options_)) {
  if (options.placement.page_size > std::numeric_limits<SlotId>::max() / options.pages) {
    throw InvalidArgument("page_size = " + std::to_string(options.placement.page_size) + " with " +
                          std::to_string(options.pages) + " pages: slots pass 64 bits");
  }
}

Status PageAllocator::hold(PageCount pages) {
  if (pages < 0) throw InvalidArgument("hold of " + std::to_string(pages) + " pages");
  if (pages > available()) return Status::out_of_pages;
  held_ += pages;
  return Status::ok;
}

void PageAllocator::forfeit(PageCount pages) {
  if (pages < 0 || pages > held_) {
    throw InvalidArgument("forfeit of " + std::to_string(pages) + " pages, " +
                          std::to_string(held_) + " are held");
  }
  held_ -= pages;
}

Status PageAllocator::allocate(const Request& request, std::span<PageId> out) {
  if (const std::int32_t after = index_of(request.take.after);
      after < index_of(kNoPage) || after >= set_.pages()) {
    (void)set_.state(request.take.after);  // throws
  }
  // Also a size that would be negative as a PageCount.
  if (out.size() > static_cast<std::size_t>(set_.pages())) return Status::out_of_pages;
  const auto count = static_cast<PageCount>(out.size());
  if (request.from_hold) {
    if (count > held_) return Status::out_of_pages;
    held_ -= count;
  } else if (count > available()) {
    placement_->prepare({.pages = count, .tokens = count * placement_options_.page_size});
    return Status::out_of_pages;
  }
  placement_->take(request.take, out);
  if (count == 1) {
    set_.acquire(out[0], request.owner);
  } else {
    set_.acquire(out, request.owner);
  }
  return Status::ok;
}

PageCount PageAllocator::give_freed() {
  if (!freed_.empty()) placement_->give(freed_);
  return static_cast<PageCount>(freed_.size());
}

PageCount PageAllocator::release(std::span<const PageId> pages) {
  if (pages.size() == 1 && set_.release_sole(pages[0])) {
    placement_->give(pages);
    return 1;
  }
  return release_several(pages);
}

PageCount PageAllocator::release_several(std::span<const PageId> pages) {
  freed_.clear();
  set_.release(pages, freed_);
  return give_freed();
}

PageCount PageAllocator::release(std::span<const PageId> pages, OwnerTag expected_owner) {
  freed_.clear();
  set_.release(pages, freed_, expected_owner);
  return give_freed();
}

void PageAllocator::unpin(PageId page) {
  if (set_.unpin(page)) placement_->give({&page, 1});
}

void PageAllocator::move(PageMove move, Epoch epoch) {
  if (set_.state(move.from) != PageState::live || index_of(move.from) == 0) {
    throw PageError(PageError::Kind::not_live, move.from, set_.owner(move.from),
                    "move of page " + std::to_string(index_of(move.from)) + ": it is " +
                        to_string(set_.state(move.from)));
  }
  if (set_.pinned(move.from)) {
    throw PageError(PageError::Kind::pinned, move.from, set_.owner(move.from),
                    "move of page " + std::to_string(index_of(move.from)) +
                        ": it is pinned, owner tag " + std::to_string(set_.owner(move.from)));
  }
  if (set_.state(move.to) != PageState::free) {
    throw PageError(PageError::Kind::not_live, move.to, set_.owner(move.to),
                    "move to page " + std::to_string(index_of(move.to)) + ": it is " +
                        to_string(set_.state(move.to)) + ", not free");
  }
  require_movable(1, epoch);
  placement_->take_exact(move.to);
  set_.acquire(move.to, set_.owner(move.from));
  set_.retire(move, epoch);
}

void PageAllocator::require_movable(PageCount pages, Epoch epoch) const {
  if (pages > available()) {
    throw InvalidArgument("move of " + std::to_string(pages) + " pages with " +
                          std::to_string(available()) + " available and " + std::to_string(held_) +
                          " held");
  }
  if (epoch < set_.last_epoch()) {
    throw InvalidArgument("move until epoch " + std::to_string(epoch) + " after one until epoch " +
                          std::to_string(set_.last_epoch()));
  }
}

PageCount PageAllocator::reclaim(Epoch reached) {
  freed_.clear();
  set_.reclaim(reached, freed_);
  return give_freed();
}

void PageAllocator::clear() {
  restore({});
}

void PageAllocator::restore(std::span<const Living> living) {
  std::int32_t previous = 0;
  for (const Living& each : living) {
    if (index_of(each.page) <= previous || index_of(each.page) >= set_.pages() ||
        each.references < 1) {
      throw InvalidArgument("restore of page " + std::to_string(index_of(each.page)) + " with " +
                            std::to_string(each.references) + " references");
    }
    previous = index_of(each.page);
  }
  // The policy refers to the set, so the set is assigned, and the policy made anew once the states
  // are right.
  set_ = FreeSet(set_.pages());
  for (const Living& each : living) {
    set_.acquire(each.page, each.owner);
    for (std::int32_t i = 1; i < each.references; ++i) set_.retain({&each.page, 1});
  }
  placement_ = make_placement(set_, placement_options_);
  held_ = 0;
}

void PageAllocator::check() const {
  set_.check();
  placement_->check();
  if (held_ < 0 || held_ > placement_->available()) {
    throw InvariantError(std::to_string(held_) + " pages are held, " +
                         std::to_string(placement_->available()) + " are free");
  }
}

}  // namespace packstone
