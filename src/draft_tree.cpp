// SPDX-License-Identifier: Apache-2.0
#include <packstone/draft_tree.hpp>

#include <algorithm>
#include <limits>
#include <string>

namespace packstone {

namespace {

// Whether following parents from `node` comes back to it; every node before `node` is known to be
// sound, so the walk ends there.
bool is_own_ancestor(std::span<const std::int32_t> parents, std::int64_t node) {
  const auto nodes = static_cast<std::int64_t>(parents.size());
  std::int64_t at = parents[static_cast<std::size_t>(node)];
  for (std::int64_t steps = 0; steps < nodes && at >= 0 && at < nodes; ++steps) {
    if (at == node) return true;
    at = parents[static_cast<std::size_t>(at)];
  }
  return false;
}

void require_parent(std::span<const std::int32_t> parents, std::int64_t node) {
  const std::int32_t parent = parents[static_cast<std::size_t>(node)];
  const std::string what =
      "node " + std::to_string(node) + " with parent " + std::to_string(parent);
  if (parent == -1) {
    if (node == 0) return;
    throw TreeError(node, what + " is a second root");
  }
  if (parent < 0 || parent >= static_cast<std::int64_t>(parents.size())) {
    throw TreeError(node, what + " of " + std::to_string(parents.size()) + " nodes");
  }
  if (is_own_ancestor(parents, node)) throw TreeError(node, what + " is its own ancestor");
  if (parent >= node) throw TreeError(node, what + " stands before its parent");
}

}  // namespace

DraftTree::DraftTree(std::span<const std::int32_t> parents) {
  if (parents.size() > kNodesMax) {
    throw TreeError(kNodesMax, "a tree of " + std::to_string(parents.size()) + " nodes, at most " +
                                   std::to_string(kNodesMax) + " are allowed");
  }
  parents_.assign(parents.begin(), parents.end());
  depths_.reserve(parents_.size());
  for (std::int64_t node = 0; node < nodes(); ++node) {
    require_parent(parents_, node);
    const std::int32_t parent = parents_[static_cast<std::size_t>(node)];
    depths_.push_back(parent < 0 ? 0 : depths_[static_cast<std::size_t>(parent)] + 1);
  }
}

DraftTree DraftTree::chain(std::int64_t nodes) {
  if (nodes < 0) throw InvalidArgument("a chain of " + std::to_string(nodes) + " nodes");
  std::vector<std::int32_t> parents;
  for (std::int64_t i = 0; i < std::min(nodes, kNodesMax + 1); ++i) {
    parents.push_back(static_cast<std::int32_t>(i) - 1);
  }
  return DraftTree(parents);
}

void DraftTree::require_node(std::int64_t node) const {
  if (node >= 0 && node < nodes()) return;
  throw TreeError(
      node, "node " + std::to_string(node) + " of a tree of " + std::to_string(nodes()) + " nodes");
}

std::int32_t DraftTree::depth(std::int64_t node) const {
  require_node(node);
  return depths_[static_cast<std::size_t>(node)];
}

void DraftTree::positions(TokenCount prefix, std::span<TokenCount> out) const {
  if (prefix < 0 || prefix > std::numeric_limits<TokenCount>::max() - kNodesMax ||
      static_cast<std::int64_t>(out.size()) != nodes()) {
    throw InvalidArgument("positions behind " + std::to_string(prefix) + " tokens of " +
                          std::to_string(nodes()) + " nodes into " + std::to_string(out.size()));
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = prefix + depths_[i];
}

void DraftTree::ancestor_mask(std::span<std::uint64_t> rows, std::int64_t stride) const {
  if (stride < mask_words() ||
      static_cast<std::int64_t>(rows.size()) / std::max<std::int64_t>(stride, 1) < nodes()) {
    throw InvalidArgument("mask of " + std::to_string(nodes()) + " nodes into " +
                          std::to_string(rows.size()) + " words with stride " +
                          std::to_string(stride));
  }
  const auto step = static_cast<std::size_t>(stride);
  for (std::size_t i = 0; i < parents_.size(); ++i) {
    const auto row = rows.subspan(i * step, step);
    std::ranges::fill(row, std::uint64_t{0});
    if (parents_[i] >= 0) {
      const auto parent = rows.subspan(static_cast<std::size_t>(parents_[i]) * step, step);
      std::ranges::copy(parent, row.begin());
    }
    row[i / 64] |= std::uint64_t{1} << (i % 64);
  }
}

std::vector<std::int32_t> DraftTree::path_to(std::int64_t node) const {
  require_node(node);
  std::vector<std::int32_t> path;
  for (auto at = static_cast<std::int32_t>(node); at >= 0;
       at = parents_[static_cast<std::size_t>(at)]) {
    path.push_back(at);
  }
  std::ranges::reverse(path);
  return path;
}

void DraftTree::require_path(std::span<const std::int32_t> path) const {
  std::int32_t previous = -1;
  for (const std::int32_t node : path) {
    require_node(node);
    if (parents_[static_cast<std::size_t>(node)] != previous) {
      throw TreeError(node, "node " + std::to_string(node) + " does not continue the path at " +
                                std::to_string(previous));
    }
    previous = node;
  }
}

}  // namespace packstone
