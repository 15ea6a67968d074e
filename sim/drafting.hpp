// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A model of speculative decoding that drives the real Speculation: what is drafted, and how much
/// of it is accepted.
///
/// Every step each sequence drafts a tree of k nodes, numbered level by level, two children a node.
/// Node 0 is the token that is certain; after it a further position is accepted with probability q
/// each time (geometric), up to a bound and to the depth of the tree, along children drawn at
/// random. So what is accepted lies scattered among the drafts, as in a real tree.

#include <packstone/draft_tree.hpp>
#include <packstone/kv_manager.hpp>
#include <packstone/speculation.hpp>

#include <sim/prng.hpp>
#include <sim/workload.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace packstone::sim {

struct DraftingOptions {
  SpeculationMode mode{SpeculationMode::none};
  std::int32_t nodes{64};        ///< k, 1 .. DraftTree::kNodesMax
  double acceptance{0.53};       ///< q, in [0, 1]; 0.53 fits EAGLE-3's published acceptance
  std::int32_t accepted_max{8};  ///< most positions accepted after node 0
  std::uint64_t seed{0};
};

struct DraftingCounters {
  std::int64_t drafted{0};    ///< nodes
  std::int64_t accepted{0};   ///< of these, tokens that stayed
  std::int64_t row_moves{0};  ///< token rows copied to bring accepted ones into order
};

class Drafting {
 public:
  /// `kv` must outlive this object. Throws InvalidArgument for options outside their range, or mode
  /// none.
  Drafting(KvManager& kv, const DraftingOptions& options);

  [[nodiscard]] std::int32_t nodes() const { return options_.nodes; }
  /// Room for the drafts of all, or of none.
  [[nodiscard]] Status reserve(std::span<const SeqId> batch);
  /// Draws what is accepted and commits it.
  /// @param left   [batch], tokens that the request may still make, >= 1
  /// @param grown  [batch], set to how many tokens each grew by, 1 .. left
  void commit(std::span<const SeqId> batch, std::span<const TokenCount> left,
              std::vector<TokenCount>& grown);
  [[nodiscard]] const DraftingCounters& counters() const { return counters_; }

 private:
  DraftingOptions options_;
  DraftTree tree_;
  Speculation speculation_;
  Prng random_;
  DraftingCounters counters_;
  std::vector<DraftRequest> requests_;
  std::vector<std::vector<std::int32_t>> paths_;
};

}  // namespace packstone::sim
