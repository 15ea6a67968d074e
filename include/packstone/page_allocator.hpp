// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Pages for whoever keeps its own tables: a FreeSet under a placement policy.
///
/// A KvManager stands on this; a server that has tables of its own can use it alone. Shortage is a
/// status and consumes nothing: neither a page nor a place in the free order.

#include <packstone/free_set.hpp>
#include <packstone/placement.hpp>

#include <memory>
#include <span>
#include <vector>

namespace packstone {

struct PageAllocatorOptions {
  PageCount pages{0};  ///< of the pool, page 0 included; 1 .. kPagesMax
  PlacementOptions placement{};
};

class PageAllocator {
 public:
  explicit PageAllocator(const PageAllocatorOptions& options);
  PageAllocator(const PageAllocator&) = delete;  // the policy refers to the set beside it
  PageAllocator& operator=(const PageAllocator&) = delete;

  [[nodiscard]] const FreeSet& set() const { return set_; }
  [[nodiscard]] const Placement& placement() const { return *placement_; }
  /// Pages that can be had now: free and room, less those held by `hold`.
  [[nodiscard]] PageCount available() const { return placement_->available() - held_; }

  /// Keeps `pages` pages out of `available()`, so that a later allocate with `from_hold` cannot run
  /// short. Throws InvalidArgument for a negative count.
  Status hold(PageCount pages);
  /// Gives up `pages` of what is held. Throws InvalidArgument for more than that.
  void forfeit(PageCount pages);
  [[nodiscard]] PageCount held() const { return held_; }

  struct Request {
    TakeRequest take{};
    OwnerTag owner{0};
    bool from_hold{false};  ///< draw on what `hold` has set aside
  };
  /// Fills `out` with live pages of one reference each, or returns out_of_pages and leaves
  /// everything as it was. Throws PageError for a page `take.after` outside the pool.
  Status allocate(const Request& request, std::span<PageId> out);
  /// Tells the policy of the batch that follows; see Placement::prepare.
  void prepare(const BatchDemand& demand) { placement_->prepare(demand); }

  /// See FreeSet::retain.
  void retain(std::span<const PageId> pages) { set_.retain(pages); }
  /// Drops one reference per entry; see FreeSet::release. Returns how many pages became free.
  PageCount release(std::span<const PageId> pages);
  PageCount release(std::span<const PageId> pages, OwnerTag expected_owner);
  /// The stream is over: its room goes back.
  void end_stream(StreamIndex stream) { placement_->end(stream); }

  void pin(PageId page) { set_.pin(page); }
  void unpin(PageId page);

  /// Makes `move.to` (free) live in the place of `move.from` (live, not pinned), which is retired
  /// until `epoch`. Throws PageError and changes nothing when a page is not so, InvalidArgument
  /// when `require_movable(1, epoch)` does.
  void move(PageMove move, Epoch epoch);
  /// Throws InvalidArgument when `pages` moves would take pages that `hold` has set aside, or when
  /// `epoch` is older than that of a page retired before.
  void require_movable(PageCount pages, Epoch epoch) const;
  /// Frees what was retired at or before `reached`; returns how many pages that were.
  PageCount reclaim(Epoch reached);

  /// Everything free again, in ascending order.
  void clear();
  /// Restores the given reference counts and owners (page id ascending, none twice, none of page
  /// 0); every other page is free, in ascending order, and no pin, room or hold is left. Throws
  /// before changing anything.
  struct Living {
    PageId page;
    std::int32_t references;
    OwnerTag owner;
  };
  void restore(std::span<const Living> living);

  /// O(pool): every invariant of the set, the policy and the holds. Throws InvariantError.
  void check() const;

 private:
  PageCount release_several(std::span<const PageId> pages);
  /// Hands `freed_` to the policy; returns how many pages that are.
  PageCount give_freed();

  FreeSet set_;
  PlacementOptions placement_options_;
  std::unique_ptr<Placement> placement_;
  PageCount held_{0};
  std::vector<PageId> freed_;  // scratch of release and reclaim, kept to save allocations
};

}  // namespace packstone
