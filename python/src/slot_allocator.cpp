// SPDX-License-Identifier: Apache-2.0
#include "slot_allocator.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace packstone::python {
namespace {

PageCount pool_of(PageCount usable) {
  if (usable < 0 || usable >= kPagesMax) {
    throw InvalidArgument("a pool of " + std::to_string(usable) + " pages");
  }
  return usable + 1;
}

#if defined(__x86_64__) && defined(__GNUC__)
// A wheel runs on any x86-64; these loops gain most from what newer ones have.
#define PACKSTONE_WIDE [[gnu::target_clones("avx2", "default")]]
#else
#define PACKSTONE_WIDE
#endif

/// How many pages stand whole and in order at the beginning of `slots`; their ids go to `pages`.
PACKSTONE_WIDE std::size_t leading_pages(std::span<const std::int64_t> slots, std::int64_t size,
                                         int shift, std::span<PageId> pages) {
  const auto step = static_cast<std::size_t>(size);
  std::size_t count = 0;
  for (; (count + 1) * step <= slots.size(); ++count) {
    const std::int64_t* page = slots.data() + count * step;
    const std::int64_t first = page[0];
    std::int64_t differing = first & (size - 1);
    for (std::int64_t i = 0; i < size; ++i) differing |= page[i] ^ (first + i);
    const std::int64_t id = first >> shift;
    if (differing != 0 || id != static_cast<std::int32_t>(id) || id < 0) break;
    pages[count] = PageId{static_cast<std::int32_t>(id)};
  }
  return count;
}

/// The slots of whole pages, page after page.
PACKSTONE_WIDE void write_pages(std::span<const PageId> pages, std::int64_t size,
                                std::int64_t* out) {
  if (size == 1) {
    for (std::size_t i = 0; i < pages.size(); ++i) out[i] = index_of(pages[i]);
    return;
  }
  for (const PageId page : pages) {
    const std::int64_t first = slot_of(page, size, 0);
    for (std::int64_t i = 0; i < size; ++i) out[i] = first + i;
    out += size;
  }
}

std::string row_name(std::int64_t row) {
  return "row " + std::to_string(row);
}

}  // namespace

SlotAllocator::SlotAllocator(PageCount pages, std::int64_t page_size, const std::string& policy)
    : page_size_(page_size),
      policy_(policy == "fifo"     ? Policy::fifo
              : policy == "lifo"   ? Policy::lifo
              : policy == "sorted" ? Policy::sorted
                                   : Policy::other),
      allocator_(
          {.pages = pool_of(pages), .placement = {.policy = policy, .page_size = page_size}}) {
  if (page_size < 1) throw InvalidArgument("page_size = " + std::to_string(page_size));
  const auto size = static_cast<std::uint64_t>(page_size);
  if (std::has_single_bit(size)) shift_ = std::countr_zero(size);
}

void SlotAllocator::note_demand(PageCount estimate) {
  if (!sorts()) return;
  if (estimate > allocator_.available() - std::ssize(released_)) released_.clear();
}

PageId SlotAllocator::page_of(std::int64_t slot) const {
  // A division takes as long as all the rest of a release, and page sizes are mostly powers of two.
  const std::int64_t page = shift_ >= 0 ? slot >> shift_ : slot < 0 ? -1 : slot / page_size_;
  if (page < 0 || page > std::numeric_limits<std::int32_t>::max()) {
    throw PageError(PageError::Kind::out_of_range, kNoPage, 0,
                    "slot " + std::to_string(slot) + " is outside the pool");
  }
  return PageId{static_cast<std::int32_t>(page)};
}

std::span<const std::int64_t> SlotAllocator::dense(const IntView& view) {
  if (view.wide && (view.stride == 1 || view.count == 0)) {
    return {static_cast<const std::int64_t*>(view.data), static_cast<std::size_t>(view.count)};
  }
  gathered_.clear();
  for (std::int64_t i = 0; i < view.count; ++i) gathered_.push_back(view[i]);
  return gathered_;
}

void SlotAllocator::append_page(Slots& out, PageId page, std::int64_t count) const {
  const SlotId first = slot_of(page, page_size_, 0);
  const std::size_t at = out.size();
  out.resize(at + static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) out[at + static_cast<std::size_t>(i)] = first + i;
}

bool SlotAllocator::take_pages(PageCount pages) {
  note_demand(pages);
  if (pages > allocator_.available()) {
    // Tells the policy of the refused batch, as the contract has it.
    allocator_.prepare({.pages = pages, .tokens = pages * page_size_});
    return false;
  }
  scratch_.resize(static_cast<std::size_t>(pages));
  return allocator_.allocate({}, scratch_) == Status::ok;
}

std::optional<SlotAllocator::Slots> SlotAllocator::alloc(std::int64_t need_size) {
  if (need_size < 0) throw InvalidArgument("alloc of " + std::to_string(need_size) + " tokens");
  if (!take_pages(need_size / page_size_)) return std::nullopt;
  Slots out(scratch_.size() * static_cast<std::size_t>(page_size_));
  write_pages(scratch_, page_size_, out.data());
  return out;
}

bool SlotAllocator::alloc(std::span<std::int64_t> out) {
  if (std::ssize(out) % page_size_ != 0) {
    throw InvalidArgument("alloc of " + std::to_string(out.size()) + " tokens, no whole pages");
  }
  if (!take_pages(std::ssize(out) / page_size_)) return false;
  write_pages(scratch_, page_size_, out.data());
  return true;
}

std::optional<SlotAllocator::Slots> SlotAllocator::extend(const IntView& prefix, const IntView& seq,
                                                          const IntView& last,
                                                          std::int64_t tokens) {
  if (seq.count != prefix.count || last.count != prefix.count) {
    throw InvalidArgument("alloc_extend: " + std::to_string(prefix.count) + " prefix_lens, " +
                          std::to_string(seq.count) + " seq_lens, " + std::to_string(last.count) +
                          " last_loc");
  }
  PageCount wanted = 0;
  std::int64_t growth = 0;
  for (std::int64_t i = 0; i < seq.count; ++i) {
    if (prefix[i] < 0 || seq[i] < prefix[i]) {
      throw InvalidArgument("alloc_extend: " + row_name(i) + " from " + std::to_string(prefix[i]) +
                            " to " + std::to_string(seq[i]) + " tokens");
    }
    if (prefix[i] % page_size_ != 0 && (last[i] + 1) % page_size_ != prefix[i] % page_size_) {
      throw InvalidArgument("alloc_extend: " + row_name(i) + " has " + std::to_string(prefix[i]) +
                            " tokens, the last in slot " + std::to_string(last[i]));
    }
    if (last[i] >= 0) (void)allocator_.set().state(page_of(last[i]));  // throws outside the pool
    if (seq[i] - prefix[i] > tokens - growth) {  // also where the sum would pass 64 bits
      throw InvalidArgument("alloc_extend: extend_num_tokens = " + std::to_string(tokens) + ", " +
                            row_name(i) + " passes it");
    }
    wanted += pages_for(seq[i], page_size_) - pages_for(prefix[i], page_size_);
    growth += seq[i] - prefix[i];
  }
  if (growth != tokens) {
    throw InvalidArgument("alloc_extend: extend_num_tokens = " + std::to_string(tokens) +
                          ", the rows grow by " + std::to_string(growth));
  }
  note_demand(page_size_ == 1 ? wanted : tokens / page_size_ + seq.count + 1);
  allocator_.prepare({.pages = wanted, .tokens = tokens, .sequences = seq.count});
  if (wanted > allocator_.available()) return std::nullopt;

  Slots out;
  out.reserve(static_cast<std::size_t>(tokens));
  for (std::int64_t i = 0; i < seq.count; ++i) {
    std::int64_t left = seq[i] - prefix[i];
    const std::int64_t room = (page_size_ - prefix[i] % page_size_) % page_size_;
    for (std::int64_t slot = last[i] + 1, end = slot + std::min(room, left); slot < end; ++slot) {
      out.push_back(slot);
    }
    left -= std::min(room, left);
    scratch_.resize(static_cast<std::size_t>(pages_for(left, page_size_)));
    const PageId after = last[i] > 0 ? page_of(last[i]) : kNoPage;
    const Status status = allocator_.allocate({.take = {.after = after}}, scratch_);
    PACKSTONE_ASSERT(status == Status::ok);
    for (const PageId page : scratch_) {
      append_page(out, page, std::min(left, page_size_));
      left -= std::min(left, page_size_);
    }
  }
  return out;
}

std::optional<SlotAllocator::Slots> SlotAllocator::decode(const IntView& seq, const IntView& last) {
  if (last.count != seq.count) {
    throw InvalidArgument("alloc_decode: " + std::to_string(seq.count) + " seq_lens, " +
                          std::to_string(last.count) + " last_loc");
  }
  const auto needs_page = [&](std::int64_t i) { return (seq[i] - 1) % page_size_ == 0; };
  PageCount wanted = 0;
  for (std::int64_t i = 0; i < seq.count; ++i) {
    if (seq[i] < 1 || (!needs_page(i) && (last[i] + 2) % page_size_ != seq[i] % page_size_)) {
      throw InvalidArgument("alloc_decode: " + row_name(i) + " has " + std::to_string(seq[i]) +
                            " tokens, the last in slot " + std::to_string(last[i]));
    }
    if (last[i] >= 0) (void)allocator_.set().state(page_of(last[i]));  // throws outside the pool
    wanted += needs_page(i) ? 1 : 0;
  }
  note_demand(page_size_ == 1 ? wanted : seq.count);
  allocator_.prepare(
      {.pages = wanted, .tokens = seq.count, .sequences = seq.count, .decode = true});
  if (wanted > allocator_.available()) return std::nullopt;
  Slots out(static_cast<std::size_t>(seq.count));
  for (std::int64_t i = 0; i < seq.count; ++i) {
    std::int64_t& slot = out[static_cast<std::size_t>(i)];
    if (!needs_page(i)) {
      slot = last[i] + 1;
      continue;
    }
    PageId page{};
    const PageId after = last[i] > 0 ? page_of(last[i]) : kNoPage;
    const Status status = allocator_.allocate({.take = {.after = after}}, {&page, 1});
    PACKSTONE_ASSERT(status == Status::ok);
    slot = slot_of(page, page_size_, 0);
  }
  return out;
}

void SlotAllocator::release(std::span<const PageId> pages) {
  allocator_.release(pages);
  if (!sorts()) return;
  const auto at = page_size_ == 1 ? released_.end() : released_.begin();
  released_.insert(at, pages.begin(), pages.end());
}

void SlotAllocator::free(const IntView& view) {
  const std::span<const std::int64_t> slots = dense(view);
  scratch_.clear();
  if (page_size_ == 1) {
    // One test for all, so that the loop has no branch; the slow one names the slot at fault.
    scratch_.resize(slots.size());
    std::int64_t high_bits = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      high_bits |= slots[i];
      scratch_[i] = PageId{static_cast<std::int32_t>(slots[i])};
    }
    if ((high_bits >> 31) != 0) {
      for (const std::int64_t slot : slots) (void)page_of(slot);
    }
    return release(scratch_);
  }
  const auto size = static_cast<std::size_t>(page_size_);
  scratch_.resize(slots.size() / size + 1);
  // Mostly whole pages in order: one test without a branch a slot.
  const std::size_t whole = shift_ >= 0 ? leading_pages(slots, page_size_, shift_, scratch_) : 0;
  scratch_.resize(whole);
  for (std::size_t i = whole * size; i < slots.size();) {
    const PageId page = page_of(slots[i]);
    scratch_.push_back(page);
    const SlotId first = slot_of(page, page_size_, 0);
    for (++i; i < slots.size() && slots[i] >= first && slots[i] - first < page_size_;) ++i;
  }
  const bool ascending =
      std::ranges::adjacent_find(scratch_, std::greater_equal{}) == scratch_.end();
  if (!ascending) {
    std::ranges::sort(scratch_);
    scratch_.erase(std::unique(scratch_.begin(), scratch_.end()), scratch_.end());
  }
  release(scratch_);
}

SlotAllocator::Slots SlotAllocator::representatives(const IntView& slots,
                                                    std::int64_t start) const {
  if (start < 0) throw InvalidArgument("free_segment: start_pos = " + std::to_string(start));
  Slots out;
  const std::int64_t to_next = page_size_ - start % page_size_;
  for (std::int64_t i = 0; i < slots.count; i = i == 0 ? to_next : i + page_size_) {
    out.push_back(slots[i]);
  }
  return out;
}

void SlotAllocator::free_segment(const IntView& slots, std::int64_t start) {
  scratch_.clear();
  for (const std::int64_t slot : representatives(slots, start)) scratch_.push_back(page_of(slot));
  if (policy_ != Policy::fifo || page_size_ == 1) return release(scratch_);
  // The contract puts them before the list in the order of the row. Tested as a whole first, then
  // The contract puts them before the list in the order of the row, and one call would order them
  // by id: so one by one from the back, after looking for what a single call would refuse.
  const std::vector<PageId> pages = scratch_;
  std::ranges::sort(scratch_);
  if (const auto twice = std::ranges::adjacent_find(scratch_); twice != scratch_.end()) {
    throw PageError(PageError::Kind::duplicate, *twice, 0,
                    "free_segment names page " + std::to_string(index_of(*twice)) + " twice");
  }
  allocator_.retain(pages);
  allocator_.release(pages);
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) allocator_.release({&*page, 1});
}

void SlotAllocator::merge_and_sort() {
  constexpr PageCount kMost = std::numeric_limits<std::int32_t>::max();
  allocator_.prepare({.pages = kMost, .tokens = kMost, .sequences = kMost, .decode = true});
  released_.clear();
}

void SlotAllocator::clear() {
  allocator_.clear();
  released_.clear();
}

void SlotAllocator::check() const {
  allocator_.check();
  for (const PageId page : released_) {
    if (allocator_.set().state(page) != PageState::free) {
      throw InvariantError("page " + std::to_string(index_of(page)) + " is set aside but not free");
    }
  }
}

void SlotAllocator::list_in_order(std::span<const PageId> pages) {
  if (policy_ == Policy::fifo && page_size_ == 1) {
    allocator_.release(pages);
  } else if (policy_ == Policy::fifo || policy_ == Policy::lifo) {
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) allocator_.release({&*page, 1});
  } else {
    allocator_.release(pages);
  }
}

SlotAllocator::Slots SlotAllocator::free_list() {
  Slots out;
  if (policy_ == Policy::fifo || policy_ == Policy::lifo) {
    // The list has no reader but `take`: all of it is taken and given back as it was.
    std::vector<PageId> pages(static_cast<std::size_t>(allocator_.available()));
    const Status status = allocator_.allocate({}, pages);
    PACKSTONE_ASSERT(status == Status::ok);
    list_in_order(pages);
    for (const PageId page : pages) out.push_back(index_of(page));
    return out;
  }
  std::vector<PageId> aside = released_;
  std::ranges::sort(aside);
  const FreeSet& set = allocator_.set();
  for (std::int32_t i = 1; i < set.pages(); ++i) {
    const PageState state = set.state(PageId{i});
    if ((state == PageState::free || state == PageState::reserved) &&
        !std::ranges::binary_search(aside, PageId{i})) {
      out.push_back(i);
    }
  }
  return out;
}

SlotAllocator::Slots SlotAllocator::release_list() const {
  Slots out;
  for (const PageId page : released_) out.push_back(index_of(page));
  return out;
}

void SlotAllocator::restore(const IntView& free, const IntView& released) {
  const FreeSet& set = allocator_.set();
  std::vector<char> listed(static_cast<std::size_t>(set.pages()), 0);
  const auto read = [&](const IntView& list) {
    std::vector<PageId> pages;
    for (std::int64_t i = 0; i < list.count; ++i) {
      if (list[i] < 1 || list[i] >= set.pages() || listed[static_cast<std::size_t>(list[i])] != 0) {
        throw InvalidArgument("restore_state: page " + std::to_string(list[i]));
      }
      listed[static_cast<std::size_t>(list[i])] = 1;
      pages.push_back(PageId{static_cast<std::int32_t>(list[i])});
    }
    return pages;
  };
  const std::vector<PageId> free_pages = read(free);
  const std::vector<PageId> released_pages = read(released);
  for (std::int32_t i = 1; i < set.pages(); ++i) {
    const bool live = set.state(PageId{i}) == PageState::live;
    if (set.state(PageId{i}) == PageState::retired ||
        (!live && listed[static_cast<std::size_t>(i)] == 0)) {
      throw InvalidArgument("restore_state: page " + std::to_string(i) + " was freed since");
    }
  }
  // All live, then given back in the order of the lists.
  std::vector<PageId> rest(static_cast<std::size_t>(allocator_.available()));
  const Status status = allocator_.allocate({}, rest);
  PACKSTONE_ASSERT(status == Status::ok);
  released_.clear();
  list_in_order(free_pages);
  if (!sorts()) return list_in_order(released_pages);
  merge_and_sort();
  release(released_pages);
}

}  // namespace packstone::python
