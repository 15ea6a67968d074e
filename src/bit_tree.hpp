// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An ordered set of small integers as a tree of 64-bit words: bit i of a word above says whether
/// word i below has any bit set. Insert, erase and successor are O(log64 n), five levels at most
/// for 2^30 members, 1/63 more bits than the plain bitmap. A van Emde Boas-like "bitmap summary
/// tree", as in the allocators of file systems; and as in van Emde Boas's tree the smallest member
/// stands outside, so that a set that goes between empty and one member never walks the levels.

#include <packstone/error.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
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
      begins_[levels_ + 1] = begins_[levels_] + static_cast<std::size_t>(words);
      levels_ += 1;
    } while (words > 1);
    words_.resize(begins_[levels_]);
  }

  /// Integers that could be members; 0 for a default-constructed tree.
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  /// Smallest member, or kNone.
  [[nodiscard]] std::int64_t lowest() const { return lowest_; }
  [[nodiscard]] bool contains(std::int64_t i) const {
    return i == lowest_ || (words_[word(i)] >> bit(i) & 1U) != 0;
  }

  /// Requires that i is not in the set.
  void insert(std::int64_t i) {
    PACKSTONE_ASSERT_SLOW(!contains(i));
    count_ += 1;
    if (count_ == 1) {
      lowest_ = i;
      return;
    }
    if (i < lowest_) std::swap(i, lowest_);
    for (std::size_t level = 0; level < levels_; ++level) {
      std::uint64_t& w = words_[begins_[level] + word(i)];
      const bool was_empty = w == 0;
      w |= std::uint64_t{1} << bit(i);
      if (!was_empty) return;
      i >>= 6;
    }
  }

  /// Requires that i is in the set.
  void erase(std::int64_t i) {
    PACKSTONE_ASSERT_SLOW(contains(i));
    count_ -= 1;
    if (i == lowest_) {
      lowest_ = count_ == 0 ? kNone : next_listed(i + 1);
      if (count_ == 0) return;
      i = lowest_;
    }
    for (std::size_t level = 0; level < levels_; ++level) {
      std::uint64_t& w = words_[begins_[level] + word(i)];
      w &= ~(std::uint64_t{1} << bit(i));
      if (w != 0) return;
      i >>= 6;
    }
  }

  /// Smallest member >= from, or kNone.
  [[nodiscard]] std::int64_t next(std::int64_t from) const {
    if (from <= lowest_) return lowest_;
    return count_ < 2 ? kNone : next_listed(from);
  }

  /// Largest member <= from, or kNone.
  [[nodiscard]] std::int64_t previous(std::int64_t from) const {
    if (from < lowest_ || count_ == 0) return kNone;
    std::size_t level = 0;
    std::int64_t i = from;
    for (; level < levels_; ++level) {
      if (i < 0) return lowest_;
      const std::uint64_t below = words_[begins_[level] + word(i)] << (63U - bit(i));
      if (below != 0) {
        i -= std::countl_zero(below);
        break;
      }
      i = i / 64 - 1;
    }
    if (level == levels_) return lowest_;
    while (level > 0) {
      level -= 1;
      i = i * 64 + 63 - std::countl_zero(words_[begins_[level] + static_cast<std::size_t>(i)]);
    }
    return i;
  }

 private:
  /// Smallest member >= from of those in the words.
  [[nodiscard]] std::int64_t next_listed(std::int64_t from) const {
    std::size_t level = 0;
    std::int64_t i = from;
    for (; level < levels_; ++level) {
      if (begins_[level] + word(i) >= begins_[level + 1]) return kNone;
      const std::uint64_t above = words_[begins_[level] + word(i)] >> bit(i);
      if (above != 0) {
        i += std::countr_zero(above);
        break;
      }
      i = i / 64 + 1;
    }
    if (level == levels_) return kNone;
    while (level > 0) {
      level -= 1;
      i = i * 64 + std::countr_zero(words_[begins_[level] + static_cast<std::size_t>(i)]);
    }
    return i;
  }

  static std::size_t word(std::int64_t i) { return static_cast<std::size_t>(i) / 64; }
  static unsigned bit(std::int64_t i) { return static_cast<unsigned>(i & 63); }

  static constexpr std::size_t kLevelsMax = 11;  // 64^11 > 2^63

  std::vector<std::uint64_t> words_;                  // level after level, the members' own first
  std::array<std::size_t, kLevelsMax + 1> begins_{};  // [level], of its words
  std::size_t levels_{0};
  std::int64_t size_{0};
  std::int64_t count_{0};
  std::int64_t lowest_{kNone};  // member that is in no word
};

}  // namespace packstone
