// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An ordered set of small integers as a tree of 64-bit words: bit i of a word above says whether
/// word i below has any bit set. Insert, erase and successor are O(log64 n), five levels at most
/// for 2^30 members, 1/63 more bits than the plain bitmap. A van Emde Boas-like "bitmap summary
/// tree", as in the allocators of file systems.

#include <packstone/error.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace packstone {

class BitTree {
 public:
  static constexpr std::int64_t kNone = -1;

  BitTree() = default;
  /// The empty set of integers 0 .. size - 1.
  explicit BitTree(std::int64_t size) : size_(size) {
    std::int64_t words = size;
    do {
      words = (words + 63) / 64;
      levels_.emplace_back(static_cast<std::size_t>(words), 0);
    } while (words > 1);
  }

  /// Integers that could be members; 0 for a default-constructed tree.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool contains(std::int64_t i) const {
    return (levels_[0][word(i)] >> bit(i) & 1U) != 0;
  }

  /// Requires that i is not in the set.
  void insert(std::int64_t i) {
    PACKSTONE_ASSERT_SLOW(!contains(i));
    count_ += 1;
    for (auto& level : levels_) {
      std::uint64_t& w = level[word(i)];
      const bool was_empty = w == 0;
      w |= std::uint64_t{1} << bit(i);
      if (!was_empty) return;
      i /= 64;
    }
  }

  /// Requires that i is in the set.
  void erase(std::int64_t i) {
    PACKSTONE_ASSERT_SLOW(contains(i));
    count_ -= 1;
    for (auto& level : levels_) {
      std::uint64_t& w = level[word(i)];
      w &= ~(std::uint64_t{1} << bit(i));
      if (w != 0) return;
      i /= 64;
    }
  }

  /// Smallest member >= from, or kNone.
  [[nodiscard]] std::int64_t next(std::int64_t from) const {
    std::size_t level = 0;
    std::int64_t i = from;
    for (; level < levels_.size(); ++level) {
      if (word(i) >= levels_[level].size()) return kNone;
      const std::uint64_t above = levels_[level][word(i)] >> bit(i);
      if (above != 0) {
        i += std::countr_zero(above);
        break;
      }
      i = i / 64 + 1;
    }
    if (level == levels_.size()) return kNone;
    while (level > 0) {
      level -= 1;
      i = i * 64 + std::countr_zero(levels_[level][static_cast<std::size_t>(i)]);
    }
    return i;
  }

  /// Largest member <= from, or kNone.
  [[nodiscard]] std::int64_t previous(std::int64_t from) const {
    std::size_t level = 0;
    std::int64_t i = from;
    for (; level < levels_.size(); ++level) {
      if (i < 0) return kNone;
      const std::uint64_t below = levels_[level][word(i)] << (63U - bit(i));
      if (below != 0) {
        i -= std::countl_zero(below);
        break;
      }
      i = i / 64 - 1;
    }
    if (level == levels_.size()) return kNone;
    while (level > 0) {
      level -= 1;
      i = i * 64 + 63 - std::countl_zero(levels_[level][static_cast<std::size_t>(i)]);
    }
    return i;
  }

 private:
  static std::size_t word(std::int64_t i) { return static_cast<std::size_t>(i) / 64; }
  static unsigned bit(std::int64_t i) { return static_cast<unsigned>(i & 63); }

  std::vector<std::vector<std::uint64_t>> levels_;
  std::int64_t size_{0};
  std::int64_t count_{0};
};

}  // namespace packstone
