// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The state of every page of a pool, and the only legal ways to change it.
///
/// Each page is in exactly one state:
///
///     free ──acquire──> live ──release (last reference)──> free
///       │                 └────retire (by a move)──> retired ──reclaim(epoch)──> free
///       └──reserve──> reserved ──acquire──> live
///                         └──────forfeit──> free
///
/// - *free*: nobody's; a placement policy may hand it out.
/// - *reserved*: room kept ahead of a sequence. Nobody reads or writes it, and it goes back under
/// pressure.
/// - *live*: named by `references(page)` >= 1 tables, cache nodes and pins.
/// - *retired*: the source of a move. Nobody names it, yet a kernel in flight may still read it, so
/// it becomes free
///   only when the epoch after its last reader has been reached.
///
/// Page 0 is none of these for the caller: it never leaves the set and never comes back.
///
/// Invariants, verified by `check()`: free + reserved + live + retired == pages - 1; each counter
/// equals the number of pages in that state.
///
/// Every operation is O(pages named), never O(pool); memory is 8 bytes and 2 bits a page. The two
/// bits say all that most calls ask, so that a page taken or given back is looked up where 32 pages
/// share 8 bytes; the bytes beside are read when a page is shared or its owner is named. A violated
/// precondition (double free, foreign page, page 0, id outside the pool) throws PageError and
/// changes nothing, also in the middle of a list.
///
/// Not thread-safe: one owner at a time.

#include <packstone/error.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

namespace packstone {

enum class PageState : std::uint8_t { free, reserved, live, retired };

const char* to_string(PageState state);

/// A point in the order of device work: retired pages become free once their epoch has been
/// reached.
using Epoch = std::uint64_t;

class FreeSet {
 public:
  /// @param pages  pages of the pool with the reserved page 0 counted, 1 .. kPagesMax; usable are
  /// pages - 1. Throws InvalidArgument outside that range. All usable pages are free.
  explicit FreeSet(PageCount pages);

  [[nodiscard]] PageCount pages() const { return static_cast<PageCount>(owners_.size()); }
  [[nodiscard]] PageCount count(PageState state) const {
    switch (state) {
      case PageState::free:
        return free_;
      case PageState::reserved:
        return reserved_;
      case PageState::live:
        return live_;
      case PageState::retired:
        return retired_;
    }
    return 0;
  }

  /// State of a page; throws PageError for an id outside the pool. Page 0 reads as reserved.
  [[nodiscard]] PageState state(PageId page) const;
  /// Tables, nodes and pins that name the page; 0 unless live.
  [[nodiscard]] std::int32_t references(PageId page) const;
  /// Tag the page is, or last was, given to; 0 if never.
  [[nodiscard]] OwnerTag owner(PageId page) const;
  [[nodiscard]] bool pinned(PageId page) const { return !pins_.empty() && pins_.contains(page); }
  /// Pins on the page; 0 if none.
  [[nodiscard]] std::int32_t pins(PageId page) const {
    if (pins_.empty()) return 0;
    const auto pin = pins_.find(page);
    return pin == pins_.end() ? 0 : pin->second;
  }
  /// Pinned pages, ascending.
  [[nodiscard]] std::vector<PageId> pinned_list() const;
  [[nodiscard]] std::int64_t pinned_pages() const {
    return static_cast<std::int64_t>(pins_.size());
  }

  /// Tells the processor that the page will be acquired soon. Any id is allowed.
  void prefetch(PageId page) const {
    prefetch_mark(page);
#if defined(__GNUC__)
    const auto at = static_cast<std::uint32_t>(index_of(page));
    if (tagged_ && at < owners_.size()) __builtin_prefetch(&owners_[at], 1);
#endif
  }

  /// free or reserved -> live with one reference. A bug of the placement policy, not of the caller,
  /// if not so.
  void acquire(PageId page, OwnerTag owner) {
    const std::size_t at = place_of(page);
    const Mark was = mark(at);
    // Page 0 is `counted`.
    PACKSTONE_ASSERT(was == Mark::free || was == Mark::reserved);
    (was == Mark::free ? free_ : reserved_) -= 1;
    live_ += 1;
    set_mark(at, Mark::sole);
    tagged_ = tagged_ || owner != 0;
    if (tagged_) owners_[at] = owner;
  }
  void acquire(std::span<const PageId> pages, OwnerTag owner);
  /// free -> reserved.
  void reserve(PageRun run);
  /// reserved -> free.
  void forfeit(PageRun run);

  /// One more table or node names each page. Throws PageError (not_live) and changes nothing.
  void retain(std::span<const PageId> pages);

  /// Drops one reference per entry; a page may stand as often as it has references. Pages whose
  /// last reference went become free and are appended to `freed` in the order of `pages`.
  /// Throws PageError naming the first bad entry; then nothing has changed, `freed` included.
  void release(std::span<const PageId> pages, std::vector<PageId>& freed);
  /// The same; a page whose tag is not `expected_owner` is `foreign`.
  void release(std::span<const PageId> pages, std::vector<PageId>& freed, OwnerTag expected_owner);

  /// The same for one page that has no other reference, or false: then nothing has changed, and
  /// `release` says why or does more.
  [[nodiscard]] bool release_sole(PageId page) {
    const auto at = static_cast<std::uint32_t>(index_of(page));
    if (at >= owners_.size() || mark(at) != Mark::sole || !pins_.empty()) return false;
    set_mark(at, Mark::free);
    live_ -= 1;
    free_ += 1;
    return true;
  }

  /// Holds the page in place, and alive: one more reference, and moves are refused. Nests.
  void pin(PageId page);
  /// Undoes one pin. Returns true when that was the last reference, so that the page became free.
  /// Throws PageError (not_live) without a matching pin.
  [[nodiscard]] bool unpin(PageId page);

  /// live -> retired until `epoch`. Takes the page's references to `to`, which must be live with
  /// one reference and has the same owner afterwards. Epochs must not decrease from call to call.
  void retire(PageMove move, Epoch epoch);
  /// Epoch of the youngest retired page, 0 when there is none: no later `retire` may be older.
  [[nodiscard]] Epoch last_epoch() const {
    return retired_batches_.empty() ? Epoch{0} : retired_batches_.back().epoch;
  }
  /// Frees every page retired at or before `reached`; appends them to `freed` in the order of
  /// retirement.
  void reclaim(Epoch reached, std::vector<PageId>& freed);

  /// O(pool): verifies every invariant; throws InvariantError naming the first that does not hold.
  void check() const;

  /// O(pool): live pages counted by owner tag, ascending by tag: who leaks what.
  struct Holding {
    OwnerTag owner;
    std::vector<PageId> pages;
  };
  [[nodiscard]] std::vector<Holding> holdings() const;

 private:
  /// Two bits a page. `counted`: references_ has what is to know.
  enum class Mark : std::uint8_t { free, sole, reserved, counted };
  static constexpr std::size_t kWordPages = 32;
  /// In references_: page 0's and a retired page's.
  static constexpr std::int32_t kReserved = -1;
  static constexpr std::int32_t kRetired = -2;
  struct RetiredBatch {
    Epoch epoch;
    std::vector<PageId> pages;
  };

  static unsigned shift_of(std::size_t at) {
    return 2 * static_cast<unsigned>(at % kWordPages);
  }
  static std::size_t place_of(PageId page) {
    return static_cast<std::size_t>(index_of(page));
  }
  [[nodiscard]] Mark mark(std::size_t at) const {
    return static_cast<Mark>(marks_[at / kWordPages] >> shift_of(at) & 3U);
  }
  void set_mark(std::size_t at, Mark mark) {
    std::uint64_t& word = marks_[at / kWordPages];
    word = (word & ~(std::uint64_t{3} << shift_of(at))) | std::uint64_t(mark) << shift_of(at);
  }
  /// Tables, nodes and pins that name the page, or a negative number for page 0 and retired ones.
  [[nodiscard]] std::int32_t counted(std::size_t at) const {
    const Mark m = mark(at);
    return m == Mark::counted ? references_[at] : m == Mark::sole ? 1 : 0;
  }
  void set_references(std::size_t at, std::int32_t references);
  void prefetch_mark(PageId page) const {
#if defined(__GNUC__)
    const std::size_t word = static_cast<std::uint32_t>(index_of(page)) / kWordPages;
    if (word < marks_.size()) __builtin_prefetch(&marks_[word], 1);
#else
    (void)page;
#endif
  }
  /// How many pages at the front of `pages`, consecutive ones of one word of marks, have the mark
  /// `from`; they have `to` afterwards. 0 where it is not worth the look.
  std::size_t exchange_run(std::span<const PageId> pages, Mark from, Mark to);
  /// Drops one reference of each page, in order, up to the first that is not live; freed ones go to
  /// `freed`. Returns how many pages that were and how many became free.
  struct Dropped {
    std::size_t pages;
    std::size_t freed;
  };
  Dropped drop_references(std::span<const PageId> pages, PageId* freed);
  /// Releases pages[done ..], of which those before are released already. Any owner will do when
  /// there is none expected.
  void release_from(std::size_t done, std::span<const PageId> pages, std::vector<PageId>& freed,
                    std::size_t freed_before, const OwnerTag* expected_owner);
  void require_in_pool(PageId page, const char* verb) const;
  void require_live(PageId page, const char* verb) const {
    // An id below 0 becomes a large number.
    const auto at = static_cast<std::uint32_t>(index_of(page));
    if (at >= owners_.size() || counted(at) < 1) refuse_not_live(page, verb);
  }
  [[noreturn]] void refuse_not_live(PageId page, const char* verb) const;

  std::vector<std::uint64_t> marks_;      // [pages / 32]
  std::vector<std::int32_t> references_;  // [pages], valid where the mark is `counted`
  std::vector<OwnerTag> owners_;          // [pages]
  bool tagged_{false};                    // some owner is, or was, not 0
  PageCount free_{0};
  PageCount reserved_{0};
  PageCount live_{0};
  PageCount retired_{0};
  std::deque<RetiredBatch> retired_batches_;
  std::unordered_map<PageId, std::int32_t> pins_;  // looked up, never iterated for a decision
};

}  // namespace packstone
