// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Several pools that serve the same sequences: full attention, a sliding window, the keys of an
/// indexer, a draft model, recurrent states. Each has a KvManager of its own; every operation here
/// is done in all of them or in none.
///
/// - **full**: every token of the sequence.
/// - **window**: every token, until `release_out_of_window` drops whole pages that the window of
///   the next token no longer reaches. It goes by the *committed* length: drafts that may yet be
///   rejected move no boundary. `table` shows dropped pages as the reserved page 0.
/// - **state**: one page a sequence, however long it is (recurrent layers). A fork gets a copy.
///
/// Shortage in any pool is the Status of the whole and consumed nothing in any. Errors as in
/// KvManager; a handle is a SeqId of the group, not of a pool. Moves are planned and applied for
/// each pool by itself, through `pool(i)`.

#include <packstone/kv_manager.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace packstone {

enum class GroupKind : std::uint8_t { full, window, state };

struct GroupPool {
  std::string name;          ///< for errors and metrics
  KvManagerOptions manager;  ///< state pools: page_size 1, a page is a state
  GroupKind kind{GroupKind::full};
  TokenCount window{0};  ///< window pools: tokens that a query sees beside itself, >= 1
};

class KvGroup {
 public:
  /// Throws InvalidArgument for no pools, a window below 1, or a state pool of another page size.
  explicit KvGroup(std::span<const GroupPool> pools);

  [[nodiscard]] std::size_t pools() const { return pools_.size(); }
  [[nodiscard]] const std::string& name(std::size_t pool) const { return pools_.at(pool).name; }
  [[nodiscard]] const KvManager& pool(std::size_t pool) const { return *managers_.at(pool); }
  /// For plans, pins and reclaiming; sequences must be changed through the group only.
  [[nodiscard]] KvManager& pool(std::size_t pool) { return *managers_.at(pool); }

  Status create(SeqId& out, TokenCount expected_tokens = -1);
  /// Grows each sequence to a length, in every pool or in none. A sequence may stand once.
  Status extend(std::span<const Growth> batch);
  Status append(SeqId seq, TokenCount tokens);
  /// Room for drafts in every pool that has a row for each token.
  Status reserve(SeqId seq, TokenCount tokens);
  void commit(SeqId seq, TokenCount tokens);
  /// Gives back what is reserved past the committed length. Returns how many pages left tables.
  PageCount trim(SeqId seq);
  /// Throws InvalidArgument when a window pool has dropped what the shorter sequence would see.
  void truncate(SeqId seq, TokenCount length);
  /// As KvManager::fork, with a state copied (see take_copies). The same limit as truncate.
  Status fork(SeqId parent, TokenCount tokens, SeqId& out);
  void finish(SeqId seq);

  /// Drops whole pages of window pools that hold only tokens before `length - window`. Returns how
  /// many became free.
  PageCount release_out_of_window(SeqId seq);

  [[nodiscard]] bool alive(SeqId seq) const;
  [[nodiscard]] TokenCount length(SeqId seq) const { return at(seq).length; }
  [[nodiscard]] std::int64_t sequences() const { return live_; }
  /// The sequence of this pool's manager that is behind the group's.
  [[nodiscard]] SeqId in_pool(SeqId seq, std::size_t pool) const;
  /// Pages dropped from the front in this pool.
  [[nodiscard]] std::int64_t dropped(SeqId seq, std::size_t pool) const;
  /// The table by position: page 0 for each page dropped, then the pages there are.
  [[nodiscard]] std::vector<PageId> table(SeqId seq, std::size_t pool) const;
  /// Slot of token `position` in this pool (of the state for a state pool). Throws InvalidArgument
  /// outside the capacity and for a token that has left the window.
  [[nodiscard]] SlotId slot(SeqId seq, std::size_t pool, TokenCount position) const;

  /// Copies of this pool that must be made before its next write, in order.
  [[nodiscard]] std::vector<PageCopy> take_copies(std::size_t pool);
  /// Hash of the pools' digests: equal on ranks that saw the same calls.
  [[nodiscard]] std::uint64_t digest() const;
  /// O(pools): every invariant of the pools and of the group. Throws InvariantError.
  void check() const;

 private:
  struct Sequence {
    std::vector<SeqId> seqs;            // by pool
    std::vector<std::int64_t> dropped;  // by pool, pages
    TokenCount length{0};
    std::uint32_t generation{0};
    bool alive{false};
  };
  [[nodiscard]] const Sequence& at(SeqId seq) const;
  [[nodiscard]] Sequence& at(SeqId seq);
  /// Length in the pool of a sequence of so many tokens.
  [[nodiscard]] TokenCount pool_length(const Sequence& sequence, std::size_t pool,
                                       TokenCount length) const;
  void require_window(const Sequence& sequence, TokenCount length, const char* verb) const;
  [[nodiscard]] SeqId new_place(Sequence&& sequence);
  void finish_pools(std::span<const SeqId> seqs);

  std::vector<GroupPool> pools_;
  std::vector<std::unique_ptr<KvManager>> managers_;
  std::vector<std::vector<PageCopy>> state_copies_;  // by pool
  std::vector<Sequence> sequences_;
  std::vector<std::uint32_t> free_places_;
  std::uint32_t generation_{0};
  std::int64_t live_{0};
};

}  // namespace packstone
