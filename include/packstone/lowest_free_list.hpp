// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A free list whose order needs no history: the lowest free ids are handed out first.
///
/// This is the host twin of `cuda::DeviceFreeList`. Both follow one rule, so that for one stream of
/// commands they give the same ids whatever ran where: an allocation serves its requests in order,
/// each with the lowest ids still free, ascending, and takes nothing at all when the sum of the
/// requests exceeds what is free; a release takes effect as a whole or not at all; page 0 is never
/// free. Not thread-safe.

#include <packstone/error.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone {

class LowestFreeList {
 public:
  /// @param pages  of the pool, the reserved page 0 included, 1 .. kPagesMax. All but it are free.
  explicit LowestFreeList(PageCount pages);

  [[nodiscard]] PageCount pages() const { return pages_; }
  [[nodiscard]] PageCount free() const { return free_; }
  [[nodiscard]] bool is_free(PageId page) const;
  /// [ceil(pages / 64)] bit p % 64 of word p / 64: page p is free.
  [[nodiscard]] std::span<const std::uint64_t> bits() const { return bits_; }

  /// Appends counts[0] + counts[1] + ... pages to `out`, in request order. Negative counts throw
  /// InvalidArgument; a shortage leaves list and `out` as they were.
  Status allocate(std::span<const std::int32_t> counts, std::vector<PageId>& out);
  /// Throws PageError naming the first page that is reserved, out of range, free already or named
  /// twice; then nothing has changed.
  void release(std::span<const PageId> pages);
  /// Takes over a state, as copied from the device. Throws InvalidArgument for a wrong size, a set
  /// bit past the pool or a free page 0.
  void assign(std::span<const std::uint64_t> bits);

 private:
  PageCount pages_;
  PageCount free_{0};
  std::vector<std::uint64_t> bits_;
  std::size_t lowest_{0};  // no word before this one has a free page
};

}  // namespace packstone
