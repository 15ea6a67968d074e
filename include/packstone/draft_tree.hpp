// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The tree of tokens that one speculative step drafts: its shape, positions, masks and paths.
///
/// Node i is the i-th drafted token. `parents[i]` is the node before it, or -1 for the root, which
/// continues the sequence itself. Parents stand before their children, so that node 0 is the root
/// and every path has ascending node numbers.

#include <packstone/error.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone {

class DraftTree {
 public:
  static constexpr std::int64_t kNodesMax = 256;

  /// @param parents  [nodes], 0 <= nodes <= kNodesMax.
  /// Throws TreeError naming the first node that is no tree's: too many nodes (the first past the
  /// limit), a second root, a parent outside 0 .. nodes - 1, a node that is its own ancestor, a
  /// parent that does not stand before it.
  explicit DraftTree(std::span<const std::int32_t> parents);
  /// A chain of so many nodes: the tree of top-1 drafting.
  [[nodiscard]] static DraftTree chain(std::int64_t nodes);

  [[nodiscard]] std::int64_t nodes() const { return static_cast<std::int64_t>(parents_.size()); }
  [[nodiscard]] std::span<const std::int32_t> parents() const { return parents_; }
  /// Steps from the root, 0 for the root. Throws TreeError for a node that is not in the tree.
  [[nodiscard]] std::int32_t depth(std::int64_t node) const;

  /// Position of each node's token when the tree continues `prefix` tokens: prefix + depth. Nodes
  /// of the same depth have the same position.
  /// @param out  [nodes]
  void positions(TokenCount prefix, std::span<TokenCount> out) const;

  /// 64-bit words that a row of the mask takes: ceil(nodes / 64).
  [[nodiscard]] std::int64_t mask_words() const { return (nodes() + 63) / 64; }
  /// Writes the ancestor mask: bit j % 64 of word j / 64 of row i is set when node j is node i or
  /// one of its ancestors.
  /// @param rows    row i begins at word i * stride and is written whole, zeros past the tree; at
  ///                least nodes x stride words. The layout of TreeMask::words.
  /// @param stride  words from row to row, >= mask_words(); of a buffer for larger trees, say.
  /// Throws InvalidArgument when stride or rows are too small.
  void ancestor_mask(std::span<std::uint64_t> rows, std::int64_t stride) const;

  /// Nodes from the root to `node`, both included.
  [[nodiscard]] std::vector<std::int32_t> path_to(std::int64_t node) const;
  /// Throws TreeError naming the first node that does not continue the path, which begins at the
  /// root. An empty path is one.
  void require_path(std::span<const std::int32_t> path) const;

 private:
  void require_node(std::int64_t node) const;
  std::vector<std::int32_t> parents_;
  std::vector<std::int32_t> depths_;
};

}  // namespace packstone
