// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `fifo` and `lifo`: the free pages as a double-ended queue in a ring, and the place of each page
/// in it, 8 bytes a page. A linked list would cost the same and take its pages one cache miss after
/// the other.
///
/// A move takes its destination out of the middle: the page at the back of the queue fills the gap.
/// So moves, and nothing else, disturb the order.

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
  void push_back(PageId page);
  void push_front(PageId page);
  void put(std::size_t place, PageId page);
  /// Place in the ring of the entry `distance` behind `place`, distance <= size of the ring.
  [[nodiscard]] std::size_t behind(std::size_t place, std::size_t distance) const;

  std::string_view name_;
  Giving giving_;
  std::vector<PageId> ring_;  // [pages]: entries head_ .. head_ + count_ - 1, round the end
  std::vector<std::uint32_t> places_;  // [pages]: index into ring_, valid for free pages
  std::size_t head_{0};
  std::size_t count_{0};
  std::vector<PageId> sorted_;  // scratch
};

}  // namespace packstone
