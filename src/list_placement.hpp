// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `fifo` and `lifo`: the free pages as a double-ended queue in a ring, 4 bytes a page. A linked
/// list would cost the same and take its pages one cache miss after the other.
///
/// A move takes its destination out of the middle: the page at the back of the queue fills the gap.
/// So moves, and nothing else, disturb the order. They need the place of a page in the ring,
/// another 4 bytes a page, which are written only when a move comes: those of the pages that were
/// given since the last one. A page that is given costs one such write at most, and none where
/// nothing is moved.

#include <packstone/placement.hpp>

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
  void take_several(std::span<PageId> out);
  void give_several(std::span<const PageId> pages);
  void push_back(std::span<const PageId> pages);
  /// The last of `pages` comes to stand at the head of the list.
  void push_front_each(std::span<const PageId> pages);
  /// The first of `pages` comes to stand at the head of the list.
  void push_front(std::span<const PageId> pages);
  /// The list's `count` entries from its `first`-th on, which may lie round the end of the ring.
  struct Pieces {
    std::span<PageId> first;
    std::span<PageId> second;
  };
  [[nodiscard]] Pieces entries(std::size_t first, std::size_t count);
  /// Place in the ring of the entry `distance` behind `place`, distance <= size of the ring.
  [[nodiscard]] std::size_t behind(std::size_t place, std::size_t distance) const;
  /// Writes the places of all entries that have none yet.
  void find_places();

  std::string_view name_;
  Giving giving_;
  std::vector<PageId> ring_;  // [pages]: entries head_ .. head_ + count_ - 1, round the end
  std::vector<std::uint32_t> places_;  // [pages], made by the first move: index into ring_ of the
                                       // free pages that are not among those below
  std::size_t head_{0};
  std::size_t count_{0};
  std::size_t unplaced_front_{0};  // entries from the head on
  std::size_t unplaced_back_{0};   // entries up to the last; none is counted twice
  std::vector<PageId> sorted_;     // scratch
};

}  // namespace packstone
