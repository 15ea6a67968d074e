// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The quantities of the library and the few conversions between them.
///
/// A *page* is `page_size` consecutive *slots*; a slot is one token's place in every buffer of the
/// pool. Page ids are 32 bits, at most 2^31 - 1 of them; a slot is 64 bits outside the library,
/// because `page * page_size` passes 2^31 on today's cards. Page 0 is reserved: padded rows of a
/// batch write there.

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace packstone {

/// A page of the pool. A scoped enumeration, so that it never mixes with a count, a slot or an
/// index by accident; layout-compatible with `std::int32_t`, which is what kernels and page tables
/// store.
enum class PageId : std::int32_t {};

/// The reserved page, the target of padded rows.
inline constexpr PageId kReservedPage{0};
/// No page: what "the page after which to grow" is when there is none.
inline constexpr PageId kNoPage{-1};

constexpr std::int32_t index_of(PageId page) {
  return static_cast<std::int32_t>(page);
}
constexpr PageId page_after(PageId page, std::int32_t distance = 1) {
  return static_cast<PageId>(index_of(page) + distance);
}

using PageCount = std::int64_t;   ///< number of pages
using TokenCount = std::int64_t;  ///< number of tokens, or a position in a sequence
using SlotId = std::int64_t;      ///< page * page_size + offset
using Bytes = std::int64_t;       ///< number of bytes
using OwnerTag = std::uint32_t;   ///< who a page was given to, for leak reports; 0 is "nobody"

/// Most pages a pool may have: ids are 32-bit signed and non-negative.
inline constexpr PageCount kPagesMax = std::numeric_limits<std::int32_t>::max();

/// Whole pages that hold `tokens` tokens: ceil(tokens / page_size).
/// Requires tokens >= 0 and page_size >= 1; does not overflow for any such pair.
constexpr PageCount pages_for(TokenCount tokens, std::int64_t page_size) {
  return tokens / page_size + (tokens % page_size != 0 ? 1 : 0);
}

constexpr SlotId slot_of(PageId page, std::int64_t page_size, std::int64_t offset) {
  return std::int64_t{index_of(page)} * page_size + offset;
}

/// `count` consecutive pages from `first`.
struct PageRun {
  PageId first{kNoPage};
  std::int32_t count{0};
  friend bool operator==(const PageRun&, const PageRun&) = default;
};

/// One page copy of a defragmentation or copy-on-write: every buffer of every layer of `from` goes
/// to `to`.
struct PageMove {
  PageId from;
  PageId to;
  friend bool operator==(const PageMove&, const PageMove&) = default;
};

/// One token row copy of a draft-tree commit.
struct SlotMove {
  SlotId from;
  SlotId to;
  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

/// A sequence of a KvManager: a place and the generation of that place, so that a handle kept after
/// `finish` is told from the sequence that took the place over.
struct SeqId {
  std::uint32_t index{std::numeric_limits<std::uint32_t>::max()};
  std::uint32_t generation{0};
  friend auto operator<=>(const SeqId&, const SeqId&) = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace packstone

template <>
struct std::hash<packstone::SeqId> {
  std::size_t operator()(const packstone::SeqId& id) const noexcept {
    return std::hash<std::uint64_t>{}((std::uint64_t{id.generation} << 32U) | id.index);
  }
};
