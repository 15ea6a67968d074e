// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `fifo` and `lifo`: the free pages in a ring, 4 bytes a page, taken at its head and given to its
/// tail or its head.
///
/// A ring rather than a linked list, because the next page to take is then known before the last
/// one has been read: the cache misses of an allocation overlap instead of following each other.
/// A page that a move takes out of the middle leaves its entry behind as *stale*; stale entries are
/// skipped when they come to the head, and swept out, O(pool), once there is one for each 64 pages.

#include <packstone/placement.hpp>

#include <unordered_map>
#include <vector>

namespace packstone {

class ListPlacement final : public Placement {
 public:
  enum class Giving : std::uint8_t {
    append,                 // fifo, page size 1
    prepend_sorted_unique,  // fifo, larger pages
    push_each,              // lifo
  };
  ListPlacement(FreeSet& set, std::string_view name, Giving giving);

  [[nodiscard]] std::string_view name() const override { return name_; }
  void take(const TakeRequest& request, std::span<PageId> out) override;
  void take_exact(PageId page) override;
  void give(std::span<const PageId> pages) override;
  void rebuild() override;
  void check() const override;

 private:
  /// Entries of one page of which some are stale. Given pages go to one end only, so the entry that
  /// counts, if any, is the farthest from the head when appending and the nearest when prepending.
  struct Stale {
    std::int32_t count{0};
    bool listed{false};  // one more entry counts
  };

  [[nodiscard]] std::size_t wrapped(std::size_t at) const {
    return at < ring_.size() ? at : at - ring_.size();
  }
  [[nodiscard]] PageId pop();
  [[nodiscard]] bool skip(PageId page);
  void push_back(PageId page);
  void push_front(PageId page);
  void sweep();

  std::string_view name_;
  Giving giving_;
  std::int64_t stale_max_;
  std::vector<PageId> ring_;
  std::size_t head_{0};
  std::size_t size_{0};  // entries, the stale ones included
  std::int64_t stale_entries_{0};
  std::unordered_map<PageId, Stale> stale_;  // looked up, never iterated for a decision
  std::vector<PageId> sorted_;               // scratch
};

}  // namespace packstone
