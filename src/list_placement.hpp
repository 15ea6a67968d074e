// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `fifo` and `lifo`: a doubly linked list of the free pages through an array, 8 bytes a page, so
/// that a move can take its destination out of the middle.

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
  struct Link {
    std::int32_t previous;
    std::int32_t next;
  };
  // Page 0 is never free, so its link serves as the head and tail of the ring.
  [[nodiscard]] Link& link(std::int32_t page) { return links_[static_cast<std::size_t>(page)]; }
  void insert_between(std::int32_t previous, std::int32_t page, std::int32_t next);

  std::string_view name_;
  Giving giving_;
  std::vector<Link> links_;
  std::vector<PageId> sorted_;  // scratch
};

}  // namespace packstone
