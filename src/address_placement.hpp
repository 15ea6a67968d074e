// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `lowest` and `sorted`: the free pages in order of address. `lowest` puts freed pages back at
/// once, `sorted` sets them aside until an allocation would run short.

#include "bit_tree.hpp"

#include <packstone/placement.hpp>

namespace packstone {

class LowestPlacement final : public Placement {
 public:
  explicit LowestPlacement(FreeSet& set);

  [[nodiscard]] std::string_view name() const override { return "lowest"; }
  void take(const TakeRequest& request, std::span<PageId> out) override;
  void take_exact(PageId page) override { free_.erase(index_of(page)); }
  void give(std::span<const PageId> pages) override;
  void rebuild() override;
  void check() const override;

 private:
  BitTree free_;
};

class SortedPlacement final : public Placement {
 public:
  SortedPlacement(FreeSet& set, std::int64_t page_size);

  [[nodiscard]] std::string_view name() const override { return "sorted"; }
  /// Merges when the batch could outrun the sorted list, by the estimate of the allocator it is
  /// compared with: exact for page size 1; tokens / page_size + sequences + 1 pages for an extend;
  /// one page each for a decode.
  void prepare(const BatchDemand& demand) override;
  void take(const TakeRequest& request, std::span<PageId> out) override;
  void take_exact(PageId page) override;
  void give(std::span<const PageId> pages) override;
  void rebuild() override;
  void check() const override;

 private:
  void merge();

  std::int64_t page_size_;
  BitTree sorted_;
  BitTree released_;
};

}  // namespace packstone
