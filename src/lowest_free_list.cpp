// SPDX-License-Identifier: Apache-2.0
#include <packstone/lowest_free_list.hpp>

#include <algorithm>
#include <bit>
#include <string>

namespace packstone {

namespace {

constexpr std::int64_t kBits = 64;

std::size_t word_of(PageId page) {
  return static_cast<std::size_t>(index_of(page)) / static_cast<std::size_t>(kBits);
}
std::uint64_t bit_of(PageId page) {
  return std::uint64_t{1} << (static_cast<std::uint32_t>(index_of(page)) % 64U);
}

}  // namespace

LowestFreeList::LowestFreeList(PageCount pages) : pages_(pages) {
  if (pages < 1 || pages > kPagesMax) {
    throw InvalidArgument("a free list of " + std::to_string(pages) + " pages");
  }
  bits_.assign(static_cast<std::size_t>((pages + kBits - 1) / kBits), ~std::uint64_t{0});
  if (pages % kBits != 0) bits_.back() = (std::uint64_t{1} << (pages % kBits)) - 1;
  bits_.front() &= ~std::uint64_t{1};
  free_ = pages - 1;
}

bool LowestFreeList::is_free(PageId page) const {
  if (index_of(page) < 0 || index_of(page) >= pages_) return false;
  return (bits_[word_of(page)] & bit_of(page)) != 0;
}

Status LowestFreeList::allocate(std::span<const std::int32_t> counts, std::vector<PageId>& out) {
  PageCount wanted = 0;
  for (const std::int32_t count : counts) {
    if (count < 0) throw InvalidArgument("a request of " + std::to_string(count) + " pages");
    wanted += count;
  }
  if (wanted > free_) return Status::out_of_pages;
  free_ -= wanted;
  for (; wanted > 0; ++lowest_) {
    std::uint64_t& word = bits_[lowest_];
    for (; word != 0 && wanted > 0; --wanted) {
      const auto page = static_cast<std::int32_t>(lowest_) * static_cast<std::int32_t>(kBits) +
                        std::countr_zero(word);
      out.push_back(PageId{page});
      word &= word - 1;
    }
    if (word != 0) break;
  }
  return Status::ok;
}

void LowestFreeList::release(std::span<const PageId> pages) {
  std::size_t done = 0;
  const auto refuse = [&](PageError::Kind kind, PageId page, const char* what) {
    for (const PageId undone : pages.first(done)) bits_[word_of(undone)] &= ~bit_of(undone);
    throw PageError(kind, page, 0,
                    "release of page " + std::to_string(index_of(page)) + ": " + what);
  };
  for (const PageId page : pages) {
    if (page == kReservedPage) refuse(PageError::Kind::reserved_page, page, "page 0 is reserved");
    if (index_of(page) < 0 || index_of(page) >= pages_) {
      refuse(PageError::Kind::out_of_range, page, "no such page");
    }
    if (is_free(page)) {
      const bool twice = std::ranges::find(pages.first(done), page) != pages.first(done).end();
      refuse(twice ? PageError::Kind::duplicate : PageError::Kind::not_live, page,
             twice ? "it stands twice" : "it is free already");
    }
    bits_[word_of(page)] |= bit_of(page);
    ++done;
  }
  free_ += static_cast<PageCount>(pages.size());
  for (const PageId page : pages) lowest_ = std::min(lowest_, word_of(page));
}

void LowestFreeList::assign(std::span<const std::uint64_t> bits) {
  const std::uint64_t past =
      pages_ % kBits == 0 ? 0 : ~((std::uint64_t{1} << (pages_ % kBits)) - 1);
  if (bits.size() != bits_.size() || (bits.back() & past) != 0 || (bits.front() & 1U) != 0) {
    throw InvalidArgument("a state of " + std::to_string(bits.size()) +
                          " words does not fit a free list of " + std::to_string(pages_) +
                          " pages");
  }
  bits_.assign(bits.begin(), bits.end());
  free_ = 0;
  for (const std::uint64_t word : bits_) free_ += std::popcount(word);
  lowest_ = 0;
}

}  // namespace packstone
