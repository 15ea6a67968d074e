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
/// Every operation is O(pages named), never O(pool), and costs 8 bytes a page. A violated
/// precondition (double free, foreign page, page 0, id outside the pool) throws PageError and
/// changes nothing, also in the middle of a list.
///
/// Not thread-safe: one owner at a time.

#include <packstone/error.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <deque>
#include <optional>
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

  [[nodiscard]] PageCount pages() const { return static_cast<PageCount>(records_.size()); }
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

  /// Tells the processor that the page's record will be read soon. Any id is allowed.
  void prefetch(PageId page) const {
#if defined(__GNUC__)
    const auto at = static_cast<std::uint32_t>(index_of(page));
    if (at < records_.size()) __builtin_prefetch(&records_[at], 1);
#else
    (void)page;
#endif
  }

  /// free or reserved -> live with one reference. A bug of the placement policy, not of the caller,
  /// if not so.
  void acquire(PageId page, OwnerTag owner);
  void acquire(std::span<const PageId> pages, OwnerTag owner);
  /// free -> reserved.
  void reserve(PageRun run);
  /// reserved -> free.
  void forfeit(PageRun run);

  /// One more table or node names each page. Throws PageError (not_live) and changes nothing.
  void retain(std::span<const PageId> pages);

  /// Drops one reference per entry; a page may stand as often as it has references. Pages whose
  /// last reference went become free and are appended to `freed` in the order of `pages`.
  /// @param expected_owner  when set, a page whose tag differs is `foreign`.
  /// Throws PageError naming the first bad entry; then nothing has changed, `freed` included.
  void release(std::span<const PageId> pages, std::vector<PageId>& freed,
               std::optional<OwnerTag> expected_owner = std::nullopt);

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
  // A page's state is its reference count when that is positive, else one of these marks.
  static constexpr std::int32_t kFree = 0;
  static constexpr std::int32_t kReserved = -1;
  static constexpr std::int32_t kRetired = -2;
  struct Record {
    std::int32_t references{kFree};
    OwnerTag owner{0};
  };
  static_assert(sizeof(Record) == 8, "8 bytes a page is what the header promises");
  struct RetiredBatch {
    Epoch epoch;
    std::vector<PageId> pages;
  };

  [[nodiscard]] Record& record(PageId page) {
    return records_[static_cast<std::size_t>(index_of(page))];
  }
  [[nodiscard]] const Record& record(PageId page) const {
    return records_[static_cast<std::size_t>(index_of(page))];
  }
  void require_in_pool(PageId page, const char* verb) const;
  void require_live(PageId page, const char* verb) const {
    // An id below 0 becomes a large number; page 0 has a mark, and so no reference.
    const auto at = static_cast<std::uint32_t>(index_of(page));
    if (at >= records_.size() || records_[at].references < 1) refuse_not_live(page, verb);
  }
  [[noreturn]] void refuse_not_live(PageId page, const char* verb) const;

  std::vector<Record> records_;
  PageCount free_{0};
  PageCount reserved_{0};
  PageCount live_{0};
  PageCount retired_{0};
  std::deque<RetiredBatch> retired_batches_;
  std::unordered_map<PageId, std::int32_t> pins_;  // looked up, never iterated for a decision
};

}  // namespace packstone
