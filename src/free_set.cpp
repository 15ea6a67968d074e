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

// Records to read ahead of the one at hand: enough to overlap the misses of a pool whose records do
// not fit in the second-level cache.
constexpr std::size_t kPrefetchAhead = 12;

std::string describe(const char* verb, PageId page) {
  return std::string(verb) + " of page " + std::to_string(index_of(page));
}

}  // namespace

FreeSet::FreeSet(PageCount pages) {
  if (pages < 1 || pages > kPagesMax) {
    throw InvalidArgument("pages = " + std::to_string(pages) + " is outside 1 .. " +
                          std::to_string(kPagesMax));
  }
  records_.resize(static_cast<std::size_t>(pages));
  records_[0].references = kReserved;
  free_ = pages - 1;
}

PageState FreeSet::state(PageId page) const {
  require_in_pool(page, "state");
  switch (record(page).references) {
    case kFree:
      return PageState::free;
    case kReserved:
      return PageState::reserved;
    case kRetired:
      return PageState::retired;
    default:
      return PageState::live;
  }
}

std::int32_t FreeSet::references(PageId page) const {
  require_in_pool(page, "references");
  return std::max(record(page).references, 0);
}

OwnerTag FreeSet::owner(PageId page) const {
  require_in_pool(page, "owner");
  return record(page).owner;
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
  throw PageError(PageError::Kind::not_live, page, record(page).owner,
                  describe(verb, page) + ": it is " + to_string(state(page)) + ", last owner tag " +
                      std::to_string(record(page).owner));
}

void FreeSet::acquire(PageId page, OwnerTag owner) {
  Record& r = record(page);
  PACKSTONE_ASSERT(index_of(page) > 0 && (r.references == kFree || r.references == kReserved));
  (r.references == kFree ? free_ : reserved_) -= 1;
  r = {.references = 1, .owner = owner};
  live_ += 1;
}

void FreeSet::acquire(std::span<const PageId> pages, OwnerTag owner) {
  PageCount from_free = 0;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (i + kPrefetchAhead < pages.size()) prefetch(pages[i + kPrefetchAhead]);
    const PageId page = pages[i];
    Record& r = record(page);
    PACKSTONE_ASSERT(index_of(page) > 0 && (r.references == kFree || r.references == kReserved));
    from_free += r.references == kFree ? 1 : 0;
    r = {.references = 1, .owner = owner};
  }
  const auto count = static_cast<PageCount>(pages.size());
  free_ -= from_free;
  reserved_ -= count - from_free;
  live_ += count;
}

void FreeSet::reserve(PageRun run) {
  for (std::int32_t i = 0; i < run.count; ++i) {
    Record& r = record(page_after(run.first, i));
    PACKSTONE_ASSERT(r.references == kFree && index_of(run.first) > 0);
    r.references = kReserved;
  }
  free_ -= run.count;
  reserved_ += run.count;
}

void FreeSet::forfeit(PageRun run) {
  for (std::int32_t i = 0; i < run.count; ++i) {
    Record& r = record(page_after(run.first, i));
    PACKSTONE_ASSERT(r.references == kReserved && index_of(run.first) > 0);
    r.references = kFree;
  }
  free_ += run.count;
  reserved_ -= run.count;
}

void FreeSet::retain(std::span<const PageId> pages) {
  for (const PageId page : pages) require_live(page, "retain");
  for (const PageId page : pages) record(page).references += 1;
}

void FreeSet::release(std::span<const PageId> pages, std::vector<PageId>& freed,
                      std::optional<OwnerTag> expected_owner) {
  const std::size_t freed_before = freed.size();
  std::size_t done = 0;
  if (!expected_owner && pins_.empty()) {
    // As below, with nothing but the reference to look at; what is refused is refused there.
    freed.resize(freed_before + pages.size());
    PageId* next = freed.data() + freed_before;
    for (; done < pages.size(); ++done) {
      const auto at = static_cast<std::uint32_t>(index_of(pages[done]));
      if (done + kPrefetchAhead < pages.size()) prefetch(pages[done + kPrefetchAhead]);
      if (at >= records_.size() || records_[at].references < 1) break;
      *next = pages[done];
      next += --records_[at].references == 0 ? 1 : 0;
    }
    freed.resize(static_cast<std::size_t>(next - freed.data()));
  }
  try {
    for (; done < pages.size(); ++done) {
      const PageId page = pages[done];
      if (done + kPrefetchAhead < pages.size()) prefetch(pages[done + kPrefetchAhead]);
      require_live(page, "release");
      Record& r = record(page);
      if (expected_owner && r.owner != *expected_owner) {
        throw PageError(PageError::Kind::foreign, page, r.owner,
                        describe("release", page) + ": it belongs to owner tag " +
                            std::to_string(r.owner) + ", not " + std::to_string(*expected_owner));
      }
      // A pin keeps one reference of its own, which no table may drop.
      if (!pins_.empty()) {
        const auto pin = pins_.find(page);
        if (pin != pins_.end() && r.references <= pin->second) {
          throw PageError(PageError::Kind::pinned, page, r.owner,
                          describe("release", page) + ": only pins hold it, owner tag " +
                              std::to_string(r.owner));
        }
      }
      r.references -= 1;
      if (r.references == 0) freed.push_back(page);
    }
  } catch (...) {
    // require_live refused a page that this very call had brought to zero, or one that was bad
    // before.
    while (done > 0) record(pages[--done]).references += 1;
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
  record(page).references += 1;
}

bool FreeSet::unpin(PageId page) {
  require_live(page, "unpin");
  const auto pin = pins_.find(page);
  Record& r = record(page);
  if (pin == pins_.end()) {
    throw PageError(
        PageError::Kind::not_live, page, r.owner,
        describe("unpin", page) + ": it is not pinned, owner tag " + std::to_string(r.owner));
  }
  if (--pin->second == 0) pins_.erase(pin);
  r.references -= 1;
  if (r.references > 0) return false;
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
  Record& from = record(move.from);
  Record& to = record(move.to);
  PACKSTONE_ASSERT(from.references > 0 && to.references == 1 && !pinned(move.from));
  PACKSTONE_ASSERT(last_epoch() <= epoch);
  to = from;
  from.references = kRetired;
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
      record(page).references = kFree;
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
    const PageId page{i};
    if (record(page).references < kRetired) {
      throw InvariantError("page " + std::to_string(i) + " has an impossible reference count");
    }
    counts[static_cast<std::size_t>(state(page))] += 1;
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
    if (record(PageId{i}).references > 0) by_owner[record(PageId{i}).owner].push_back(PageId{i});
  }
  std::vector<Holding> result;
  result.reserve(by_owner.size());
  for (auto& [owner, pages] : by_owner) result.push_back({owner, std::move(pages)});
  return result;
}

}  // namespace packstone
