// SPDX-License-Identifier: Apache-2.0
#include <packstone/free_set.hpp>

#include <algorithm>
#include <map>
#include <string>

namespace packstone {

const char* to_string(PageState state) {
  switch (state) {
    case PageState::free:
      return "free";
    case PageState::reserved:
      return "reserved";
    case PageState::live:
      return "live";
    case PageState::retired:
      return "retired";
  }
  return "unknown";
}

namespace {

// Pages to look at ahead of the one at hand: enough to overlap the misses of a pool whose owners do
// not fit in the second-level cache.
constexpr std::size_t kPrefetchAhead = 32;

// Consecutive pages that are worth a look as a whole.
constexpr std::uint32_t kRunLeast = 8;

std::string describe(const char* verb, PageId page) {
  return std::string(verb) + " of page " + std::to_string(index_of(page));
}

}  // namespace

FreeSet::FreeSet(PageCount pages) {
  if (pages < 1 || pages > kPagesMax) {
    throw InvalidArgument("pages = " + std::to_string(pages) + " is outside 1 .. " +
                          std::to_string(kPagesMax));
  }
  const auto count = static_cast<std::size_t>(pages);
  marks_.resize((count + kWordPages - 1) / kWordPages);
  references_.resize(count);
  owners_.resize(count);
  set_mark(0, Mark::counted);
  references_[0] = kReserved;
  free_ = pages - 1;
}

PageState FreeSet::state(PageId page) const {
  require_in_pool(page, "state");
  const std::size_t at = place_of(page);
  switch (mark(at)) {
    case Mark::free:
      return PageState::free;
    case Mark::sole:
      return PageState::live;
    case Mark::reserved:
      return PageState::reserved;
    case Mark::counted:
      break;
  }
  return references_[at] == kReserved  ? PageState::reserved
         : references_[at] == kRetired ? PageState::retired
                                       : PageState::live;
}

std::int32_t FreeSet::references(PageId page) const {
  require_in_pool(page, "references");
  return std::max(counted(place_of(page)), 0);
}

OwnerTag FreeSet::owner(PageId page) const {
  require_in_pool(page, "owner");
  return owners_[place_of(page)];
}

void FreeSet::set_references(std::size_t at, std::int32_t references) {
  if (references >= 0 && references <= 1) {
    set_mark(at, references == 0 ? Mark::free : Mark::sole);
    return;
  }
  references_[at] = references;
  set_mark(at, Mark::counted);
}

void FreeSet::require_in_pool(PageId page, const char* verb) const {
  if (index_of(page) < 0 || index_of(page) >= pages()) {
    throw PageError(
        PageError::Kind::out_of_range, page, 0,
        describe(verb, page) + ": the pool has pages 0 .. " + std::to_string(pages() - 1));
  }
}

void FreeSet::refuse_not_live(PageId page, const char* verb) const {
  require_in_pool(page, verb);
  if (index_of(page) == 0) {
    throw PageError(PageError::Kind::reserved_page, page, 0,
                    describe(verb, page) + ": page 0 is reserved for padded rows");
  }
  throw PageError(PageError::Kind::not_live, page, owner(page),
                  describe(verb, page) + ": it is " + to_string(state(page)) + ", last owner tag " +
                      std::to_string(owner(page)));
}

std::size_t FreeSet::exchange_run(std::span<const PageId> pages, Mark from, Mark to) {
  constexpr std::uint64_t kEach = 0x5555'5555'5555'5555U;
  // One test that goes the same way for one scattered page after the other: where a page stands in
  // its word is anybody's guess, and a wrong guess costs more than the page.
  if (pages.size() < kRunLeast) return 0;
  const auto first = static_cast<std::uint32_t>(index_of(pages[0]));
  if (static_cast<std::uint32_t>(index_of(pages[kRunLeast - 1])) != first + kRunLeast - 1) return 0;
  if (first >= owners_.size() || mark(first) != from) return 0;
  std::size_t count = std::min(kWordPages - first % kWordPages, pages.size());
  // Without a branch a page, so that the compiler takes several at a time.
  std::uint32_t differing = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    differing |= static_cast<std::uint32_t>(index_of(pages[i])) ^ (first + i);
  }
  if (differing != 0) {
    const std::size_t most = count;
    count = 1;
    while (count < most && static_cast<std::uint32_t>(index_of(pages[count])) == first + count)
      ++count;
    if (count < kRunLeast) return 0;
  }
  if (first + count > owners_.size()) return 0;
  const std::uint64_t all =
      (count == kWordPages ? ~std::uint64_t{0} : (std::uint64_t{1} << (2 * count)) - 1)
      << shift_of(first);
  std::uint64_t& word = marks_[first / kWordPages];
  if ((word & all) != (std::uint64_t(from) * kEach & all)) return 0;
  word ^= (std::uint64_t(from) ^ std::uint64_t(to)) * kEach & all;
  return count;
}

void FreeSet::acquire(std::span<const PageId> pages, OwnerTag owner) {
  tagged_ = tagged_ || owner != 0;
  PageCount from_reserved = 0;
  for (std::size_t i = 0; i < pages.size();) {
    if (const std::size_t run = exchange_run(pages.subspan(i), Mark::free, Mark::sole); run > 0) {
      if (tagged_) std::fill_n(owners_.data() + place_of(pages[i]), run, owner);
      i += run;
      continue;
    }
    if (i + kPrefetchAhead < pages.size()) prefetch(pages[i + kPrefetchAhead]);
    const std::size_t at = place_of(pages[i++]);
    const Mark was = mark(at);
    // Page 0 is `counted`.
    PACKSTONE_ASSERT(was == Mark::free || was == Mark::reserved);
    from_reserved += was == Mark::reserved ? 1 : 0;
    set_mark(at, Mark::sole);
    if (tagged_) owners_[at] = owner;
  }
  const auto count = static_cast<PageCount>(pages.size());
  free_ -= count - from_reserved;
  reserved_ -= from_reserved;
  live_ += count;
}

void FreeSet::reserve(PageRun run) {
  for (std::int32_t i = 0; i < run.count; ++i) {
    const std::size_t at = place_of(page_after(run.first, i));
    PACKSTONE_ASSERT(mark(at) == Mark::free);
    set_mark(at, Mark::reserved);
  }
  free_ -= run.count;
  reserved_ += run.count;
}

void FreeSet::forfeit(PageRun run) {
  for (std::int32_t i = 0; i < run.count; ++i) {
    const std::size_t at = place_of(page_after(run.first, i));
    PACKSTONE_ASSERT(mark(at) == Mark::reserved);
    set_mark(at, Mark::free);
  }
  free_ += run.count;
  reserved_ -= run.count;
}

void FreeSet::retain(std::span<const PageId> pages) {
  for (const PageId page : pages) require_live(page, "retain");
  for (const PageId page : pages) {
    const std::size_t at = place_of(page);
    set_references(at, counted(at) + 1);
  }
}

FreeSet::Dropped FreeSet::drop_references(std::span<const PageId> pages, PageId* freed) {
  std::size_t i = 0;
  std::size_t count = 0;
  while (i < pages.size()) {
    if (const std::size_t run = exchange_run(pages.subspan(i), Mark::sole, Mark::free); run > 0) {
      std::copy_n(pages.data() + i, run, freed + count);
      i += run;
      count += run;
      continue;
    }
    if (i + kPrefetchAhead < pages.size()) prefetch_mark(pages[i + kPrefetchAhead]);
    const auto at = static_cast<std::uint32_t>(index_of(pages[i]));
    if (at >= owners_.size()) break;
    const Mark was = mark(at);
    if (was == Mark::sole) {
      set_mark(at, Mark::free);
      freed[count++] = pages[i];
    } else {
      if (was != Mark::counted || references_[at] < 1) break;
      set_references(at, references_[at] - 1);
    }
    i += 1;
  }
  return {.pages = i, .freed = count};
}

void FreeSet::release(std::span<const PageId> pages, std::vector<PageId>& freed) {
  const std::size_t freed_before = freed.size();
  if (!pins_.empty()) return release_from(0, pages, freed, freed_before, nullptr);
  // With nothing but the references to look at; what is refused is refused below.
  freed.resize(freed_before + pages.size());
  const Dropped dropped = drop_references(pages, freed.data() + freed_before);
  freed.resize(freed_before + dropped.freed);
  if (dropped.pages < pages.size()) {
    return release_from(dropped.pages, pages, freed, freed_before, nullptr);
  }
  live_ -= static_cast<PageCount>(dropped.freed);
  free_ += static_cast<PageCount>(dropped.freed);
}

void FreeSet::release(std::span<const PageId> pages, std::vector<PageId>& freed,
                      OwnerTag expected_owner) {
  release_from(0, pages, freed, freed.size(), &expected_owner);
}

void FreeSet::release_from(std::size_t done, std::span<const PageId> pages,
                           std::vector<PageId>& freed, std::size_t freed_before,
                           const OwnerTag* expected_owner) {
  try {
    for (; done < pages.size(); ++done) {
      const PageId page = pages[done];
      require_live(page, "release");
      const std::size_t at = place_of(page);
      if (expected_owner != nullptr && owners_[at] != *expected_owner) {
        throw PageError(PageError::Kind::foreign, page, owners_[at],
                        describe("release", page) + ": it belongs to owner tag " +
                            std::to_string(owners_[at]) + ", not " +
                            std::to_string(*expected_owner));
      }
      // A pin keeps one reference of its own, which no table may drop.
      if (counted(at) <= pins(page)) {
        throw PageError(PageError::Kind::pinned, page, owners_[at],
                        describe("release", page) + ": only pins hold it, owner tag " +
                            std::to_string(owners_[at]));
      }
      if (counted(at) == 1) freed.push_back(page);
      set_references(at, counted(at) - 1);
    }
  } catch (...) {
    // require_live refused a page that this very call had brought to zero, or one that was bad
    // before.
    while (done > 0) {
      const std::size_t at = place_of(pages[--done]);
      set_references(at, counted(at) + 1);
    }
    freed.resize(freed_before);
    throw;
  }
  const auto count = static_cast<PageCount>(freed.size() - freed_before);
  live_ -= count;
  free_ += count;
}

void FreeSet::pin(PageId page) {
  require_live(page, "pin");
  pins_[page] += 1;
  set_references(place_of(page), counted(place_of(page)) + 1);
}

bool FreeSet::unpin(PageId page) {
  require_live(page, "unpin");
  const auto pin = pins_.find(page);
  const std::size_t at = place_of(page);
  if (pin == pins_.end()) {
    throw PageError(
        PageError::Kind::not_live, page, owners_[at],
        describe("unpin", page) + ": it is not pinned, owner tag " + std::to_string(owners_[at]));
  }
  if (--pin->second == 0) pins_.erase(pin);
  set_references(at, counted(at) - 1);
  if (counted(at) > 0) return false;
  live_ -= 1;
  free_ += 1;
  return true;
}

std::vector<PageId> FreeSet::pinned_list() const {
  std::vector<PageId> pages;
  pages.reserve(pins_.size());
  for (const auto& [page, count] : pins_) pages.push_back(page);
  std::ranges::sort(pages);
  return pages;
}

void FreeSet::retire(PageMove move, Epoch epoch) {
  const std::size_t from = place_of(move.from);
  const std::size_t to = place_of(move.to);
  PACKSTONE_ASSERT(counted(from) > 0 && mark(to) == Mark::sole && !pinned(move.from));
  PACKSTONE_ASSERT(last_epoch() <= epoch);
  set_references(to, counted(from));
  owners_[to] = owners_[from];
  set_references(from, kRetired);
  live_ -= 1;
  retired_ += 1;
  if (retired_batches_.empty() || retired_batches_.back().epoch != epoch) {
    retired_batches_.push_back({.epoch = epoch, .pages = {}});
  }
  retired_batches_.back().pages.push_back(move.from);
}

void FreeSet::reclaim(Epoch reached, std::vector<PageId>& freed) {
  while (!retired_batches_.empty() && retired_batches_.front().epoch <= reached) {
    for (const PageId page : retired_batches_.front().pages) {
      set_mark(place_of(page), Mark::free);
      freed.push_back(page);
    }
    const auto count = static_cast<PageCount>(retired_batches_.front().pages.size());
    retired_ -= count;
    free_ += count;
    retired_batches_.pop_front();
  }
}

void FreeSet::check() const {
  PageCount counts[4] = {};
  for (std::int32_t i = 1; i < pages(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (mark(at) == Mark::counted && references_[at] != kRetired && references_[at] < 2) {
      throw InvariantError("page " + std::to_string(i) + " has an impossible reference count");
    }
    counts[static_cast<std::size_t>(state(PageId{i}))] += 1;
  }
  for (const PageState s :
       {PageState::free, PageState::reserved, PageState::live, PageState::retired}) {
    if (counts[static_cast<std::size_t>(s)] != count(s)) {
      throw InvariantError("counted " + std::to_string(counts[static_cast<std::size_t>(s)]) + " " +
                           to_string(s) + " pages, the counter says " + std::to_string(count(s)));
    }
  }
  PageCount retired = 0;
  for (const RetiredBatch& batch : retired_batches_) {
    for (const PageId page : batch.pages) {
      if (state(page) != PageState::retired) {
        throw InvariantError("page " + std::to_string(index_of(page)) +
                             " waits for an epoch but is " + to_string(state(page)));
      }
    }
    retired += static_cast<PageCount>(batch.pages.size());
  }
  if (retired != retired_) throw InvariantError("retired pages and their batches disagree");
  for (const auto& [page, pins] : pins_) {
    if (pins < 1 || references(page) < pins) {
      throw InvariantError("page " + std::to_string(index_of(page)) + " has " +
                           std::to_string(pins) + " pins and " + std::to_string(references(page)) +
                           " references");
    }
  }
}

std::vector<FreeSet::Holding> FreeSet::holdings() const {
  std::map<OwnerTag, std::vector<PageId>> by_owner;
  for (std::int32_t i = 1; i < pages(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (counted(at) > 0) by_owner[owners_[at]].push_back(PageId{i});
  }
  std::vector<Holding> result;
  result.reserve(by_owner.size());
  for (auto& [owner, pages] : by_owner) result.push_back({owner, std::move(pages)});
  return result;
}

}  // namespace packstone
