// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Draft slots of the sequences of a KvManager: reserve, write, commit the accepted path, and give
/// back the rest.
///
/// One step: `reserve` makes room for the nodes of a tree behind the tokens of a sequence; the
/// model writes node i to `slot(seq, i)`, verifies, and `commit` tells which path was accepted. The
/// sequence grows by that path; its tokens come to stand in order.
///
/// Three modes, the caller's choice:
///
/// - **rollback**: what was not accepted is given back every step. At page size 1 the accepted
///   pages stay where they are and the table names them in order: no row is copied, and the
///   sequence is scattered over what the drafts left.
/// - **reserve_tail**: accepted rows move to the front of the drafts; nothing is given back, and
/// the
///   capacity left over serves the next step. `release_tail` or `finish` ends it.
/// - **tree_front**: accepted rows move to the front of the drafts; the rest is given back.
///
/// The row moves of one commit are in an order in which they may be carried out one after the
/// other: no move reads what an earlier one has overwritten. In parallel they need staging. They
/// come before any later write to the sequence and before any use of the released pages, which is
/// given when all of it runs in one stream.
///
/// Allocated and committed lengths have one owner, the KvManager: capacity is whole pages, and
/// nothing is recorded here, so there is nothing to fall out of step.

#include <packstone/draft_tree.hpp>
#include <packstone/kv_manager.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace packstone {

enum class SpeculationMode : std::uint8_t { rollback, reserve_tail, tree_front };
const char* to_string(SpeculationMode mode);

struct SpeculationOptions {
  SpeculationMode mode{SpeculationMode::tree_front};
  /// Width of the caller's table rows in pages, and longest context in tokens: drafts past either
  /// are refused before anything is taken. >= 0.
  std::int64_t row_pages_max{std::numeric_limits<std::int32_t>::max()};
  TokenCount tokens_max{std::numeric_limits<TokenCount>::max()};
};

/// A sequence and how many draft nodes it is to have room for.
struct DraftRequest {
  SeqId seq;
  std::int64_t nodes{0};
};

/// A sequence, the tree that it drafted, and the nodes accepted, from the root on; empty for none.
struct DraftAcceptance {
  SeqId seq;
  const DraftTree* tree{nullptr};  ///< not null
  std::span<const std::int32_t> path;
};

struct DraftCommit {
  std::vector<SlotMove> moves;   ///< rows to copy, in this order
  std::vector<PageId> released;  ///< pages that left the table, each whole
  TokenCount length{0};          ///< of the sequence now
  SlotId tail{-1};               ///< slot of its last token; -1 when it has none
};

class Speculation {
 public:
  /// `manager` must outlive this object.
  Speculation(KvManager& manager, const SpeculationOptions& options);

  [[nodiscard]] const SpeculationOptions& options() const { return options_; }

  /// Room for the drafts of every sequence, or of none: out_of_pages consumed nothing. A shared
  /// partial last page is copied first, see KvManager::take_copies. Throws InvalidArgument for
  /// nodes outside 0 .. DraftTree::kNodesMax, a sequence that stands twice, or drafts past a limit.
  Status reserve(std::span<const DraftRequest> batch);
  Status reserve(SeqId seq, std::int64_t nodes);

  /// Where node `node` of the sequence's drafts is written: the slot of token length + node.
  [[nodiscard]] SlotId slot(SeqId seq, std::int64_t node) const;

  /// Commits every acceptance of the batch, or throws and changes nothing: TreeError for a path
  /// that is none, InvalidArgument for a tree that is larger than the room reserved, a sequence
  /// that stands twice, or one whose tail was shared (forked) since its `reserve`.
  [[nodiscard]] std::vector<DraftCommit> commit(std::span<const DraftAcceptance> batch);
  [[nodiscard]] DraftCommit commit(SeqId seq, const DraftTree& tree,
                                   std::span<const std::int32_t> path);

  /// Gives back the drafts without a commit, or what reserve_tail has kept. Returns how many pages
  /// left the table.
  PageCount release_tail(SeqId seq) { return manager_.trim(seq); }

 private:
  [[nodiscard]] TokenCount wanted(const DraftRequest& request) const;
  [[nodiscard]] PageCount pages_needed(std::span<const DraftRequest> batch,
                                       std::span<const TokenCount> drafts) const;
  [[nodiscard]] std::int64_t tail_references(PageId page) const;
  void require_commit(const DraftAcceptance& acceptance) const;
  [[nodiscard]] DraftCommit commit_one(const DraftAcceptance& acceptance);

  KvManager& manager_;
  SpeculationOptions options_;
};

}  // namespace packstone
