// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Sequences over a paged pool: tables, lengths, forks, pins and moves.
///
/// A sequence is a table of pages and a length. Its *capacity* is pages x page_size; tokens in
/// [length, capacity) are allocated but not written (drafts, or the tail of the last page).
///
/// All or nothing: every call tests what it needs before it changes anything. A shortage is a
/// Status; a bad argument throws InvalidArgument, a stale handle SequenceError, a bad page
/// PageError; in each case nothing has changed.
///
/// Invariants, verified by `check()`: references(page) == tables + pins + holders outside that name
/// it; no page is both free and named; length <= capacity; a table names no page twice; free +
/// reserved + live + retired == pages - 1.
///
/// Deterministic: two managers with the same options that saw the same calls hold the same pages in
/// the same order and have equal `digest()`s, on every platform. Not thread-safe.

#include <packstone/page_allocator.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace packstone {

struct KvManagerOptions {
  PageCount pages{0};         ///< of the pool, the reserved page 0 included; 1 .. kPagesMax
  std::int64_t page_size{1};  ///< slots a page, >= 1; pages x page_size must fit in 64 bits
  std::string policy{"run"};  ///< see placement_names()
  std::int64_t sequences_max{std::numeric_limits<std::int32_t>::max()};  ///< live at a time, >= 1
};

/// A partial page that became the writer's own: copy the first `tokens` slots of every buffer from
/// `from` to `to` before the next write to `to`. Work that reads or writes `from` until then is not
/// disturbed.
struct PageCopy {
  PageId from;
  PageId to;
  TokenCount tokens;
};

/// A sequence's growth to `length` tokens (not by).
struct Growth {
  SeqId seq;
  TokenCount length;
};

/// One entry of one table that a move rewrites.
struct TablePatch {
  SeqId seq;
  std::int64_t index;  ///< page of the sequence, 0 .. table size - 1
  PageMove move;
};

/// What a manager looks like to the planner: copied, so that planning needs no lock.
struct PoolSnapshot {
  std::int64_t page_size{1};
  std::vector<PageState> states;         ///< [pages]; entry 0 is the reserved page
  std::vector<std::int32_t> references;  ///< [pages]
  std::vector<PageId> pinned;            ///< ascending
  struct Table {
    SeqId seq;
    TokenCount length{0};
    std::vector<PageId> pages;
  };
  std::vector<Table> tables;  ///< ascending by seq.index
};

struct KvCounters {
  std::int64_t sequences_created{0};
  std::int64_t sequences_finished{0};
  std::int64_t forks{0};
  std::int64_t pages_allocated{0};
  std::int64_t pages_released{0};
  std::int64_t pages_moved{0};
  std::int64_t copies_on_write{0};
  std::int64_t shortages{0};  ///< calls that returned a status other than ok
};

class KvManager {
 public:
  explicit KvManager(const KvManagerOptions& options);

  [[nodiscard]] std::int64_t page_size() const { return page_size_; }
  [[nodiscard]] const PageAllocator& allocator() const { return allocator_; }
  /// For holders of references beside the tables (a prefix cache): retain, release, hold.
  [[nodiscard]] PageAllocator& allocator() { return allocator_; }
  [[nodiscard]] PageCount available_pages() const { return allocator_.available(); }
  [[nodiscard]] const KvCounters& counters() const { return counters_; }
  [[nodiscard]] std::int64_t sequences() const { return live_; }

  // ---- life of a sequence ----

  struct CreateOptions {
    OwnerTag owner{0};  ///< tag of its pages in errors and leak reports; 0: seq.index + 1
    TokenCount expected_tokens{
        -1};  ///< length it will come to, if known (a prompt's at least); -1: unknown
    /// Full pages that it starts with, shared with whoever holds them: one more reference each, in
    /// order, distinct. Length starts at prefix.size() x page_size.
    std::span<const PageId> prefix{};
  };
  Status create(const CreateOptions& options, SeqId& out);
  Status create(SeqId& out) { return create(CreateOptions{}, out); }

  /// Grows by `tokens` >= 0; allocates what is lacking, and copies a shared partial last page
  /// first.
  Status append(SeqId seq, TokenCount tokens);

  /// Grows each sequence to the given length, which is not below its present one, in batch order:
  /// first the rest of its last page, then new pages. A sequence may stand once.
  /// @param slots  nullptr, or [sum of growths], slot of each new token, concatenated in batch
  /// order (the result of
  ///               SGLang's alloc_extend).
  Status extend(std::span<const Growth> batch, std::vector<SlotId>* slots = nullptr);

  /// Grows each sequence by one token, in batch order (SGLang's alloc_decode). A sequence may stand
  /// once.
  /// @param slots  empty, or [batch], slot of the new token.
  Status decode(std::span<const SeqId> batch, std::span<SlotId> slots = {});

  /// Allocates capacity for `tokens` more than the length without changing the length (drafts,
  /// lookahead).
  Status reserve(SeqId seq, TokenCount tokens);
  /// New pages, copies on write included, that growing or reserving to these lengths together would
  /// take. A sequence may stand once; lengths below its present one throw InvalidArgument.
  [[nodiscard]] PageCount pages_needed(std::span<const Growth> batch) const;
  /// Marks `tokens` tokens of the reserved capacity as written. Throws InvalidArgument past the
  /// capacity, and when the first of them lies in a page that another table shares: `reserve` gives
  /// this sequence a page of its own.
  void commit(SeqId seq, TokenCount tokens);
  /// Releases the pages past the one that holds the last token. Returns how many entries left the
  /// table.
  PageCount trim(SeqId seq);
  /// Of the pages past the one that holds the last token keeps those at these indices of the table,
  /// in this order, and releases the others. Throws InvalidArgument for an index that is not past
  /// that page, or stands twice. Returns how many entries left the table.
  PageCount keep(SeqId seq, std::span<const std::int64_t> kept);
  /// Releases the first `pages` pages, all of whose tokens are written, from the front of the
  /// table: the length falls by pages x page_size, and positions count from what is first then.
  /// Throws InvalidArgument for fewer than 0 or more than length / page_size. Returns how many of
  /// them became free.
  PageCount drop_front(SeqId seq, std::int64_t pages);
  /// Shortens to `length` tokens, 0 .. present length, and releases the pages past it.
  void truncate(SeqId seq, TokenCount length);

  /// A new sequence that shares the first `tokens` tokens, 0 .. length: every page that holds one,
  /// the partial last one too, gains a reference; whoever writes into that one first gets a copy of
  /// it.
  Status fork(SeqId parent, TokenCount tokens, SeqId& out);
  /// Releases every page and ends the handle.
  void finish(SeqId seq);

  /// Copies on write since the last call, in the order in which they must be made. Moves applied
  /// before they are taken come before them: `apply` names the new places in them.
  [[nodiscard]] std::vector<PageCopy> take_copies();

  // ---- views ----

  [[nodiscard]] bool alive(SeqId seq) const;
  [[nodiscard]] TokenCount length(SeqId seq) const { return at(seq).length; }
  [[nodiscard]] TokenCount capacity(SeqId seq) const;
  /// Valid until the next call that changes this sequence.
  [[nodiscard]] std::span<const PageId> pages(SeqId seq) const { return at(seq).pages; }
  /// Slot of token `position`, 0 .. capacity - 1; throws InvalidArgument outside.
  [[nodiscard]] SlotId slot(SeqId seq, TokenCount position) const;
  [[nodiscard]] OwnerTag owner(SeqId seq) const { return at(seq).owner; }
  /// Live sequences, ascending by index.
  [[nodiscard]] std::vector<SeqId> live_sequences() const;

  // ---- readers and moves ----

  /// A reader outside the stream order (a transfer) holds pages [first, first + count) of the table
  /// in place.
  void pin(SeqId seq, std::int64_t first, std::int64_t count);
  void unpin(SeqId seq, std::int64_t first, std::int64_t count);

  [[nodiscard]] PoolSnapshot snapshot() const;

  /// Applies moves and the table entries they rewrite, which must be all entries that name a
  /// source. Sources are retired until `epoch`. References held outside (a prefix cache) move
  /// along; their holder learns of the moves from `moves` itself. Throws PageError, SequenceError
  /// or InvalidArgument and changes nothing when any move or patch does not fit the present state:
  /// a plan grown stale is refused, not half applied.
  void apply(std::span<const PageMove> moves, std::span<const TablePatch> patches, Epoch epoch);
  /// Frees the pages that were retired at or before `reached`. Returns how many.
  PageCount reclaim(Epoch reached);

  // ---- the whole ----

  /// Hash of every call of this class so far that changed something: equal on ranks that saw the
  /// same calls. Calls made on `allocator()` directly are not in it.
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

  /// Metadata of every sequence (no KV bytes). A restored manager hands out free pages in ascending
  /// order. Pages held outside the tables, pins, retired pages and copies not taken are not part of
  /// it: `checkpoint` throws InvalidArgument while there are any.
  struct Checkpoint {
    struct Sequence {
      bool alive{false};
      std::uint32_t generation{0};
      OwnerTag owner{0};
      TokenCount length{0};
      TokenCount expected{-1};
      std::vector<PageId> pages;
    };
    std::vector<Sequence> sequences;
    std::vector<PageAllocator::Living> living;
    std::uint64_t digest{0};
  };
  [[nodiscard]] Checkpoint checkpoint() const;
  /// Throws InvalidArgument and changes nothing when the checkpoint contradicts itself or does not
  /// fit this pool. Handles given out since the checkpoint are stale afterwards.
  void restore(const Checkpoint& checkpoint);

  /// O(pool + tables): verifies every invariant above; throws InvariantError naming the first that
  /// fails.
  /// @param held_outside  pages with a reference that no table or pin of this manager has, as often
  /// as held
  ///                      (prefix cache nodes).
  void check(std::span<const PageId> held_outside = {}) const;

 private:
  struct Sequence {
    std::vector<PageId> pages;
    TokenCount length{0};
    TokenCount expected{-1};
    OwnerTag owner{0};
    std::uint32_t generation{0};
    std::uint64_t batch{0};  // stamp of the batch that named it last, to find repeats
    bool alive{false};
  };
  /// What growing a sequence takes, found before anything changes.
  struct Need {
    PageCount pages{0};  // new pages, the copy's included
    bool copy{false};    // the partial last page is shared
  };

  [[nodiscard]] Sequence& at(SeqId seq);
  [[nodiscard]] const Sequence& at(SeqId seq) const;
  [[nodiscard]] Need need(const Sequence& sequence, TokenCount length) const;
  /// The page that holds the last token of a sequence whose last page is partial.
  [[nodiscard]] PageId last_written(const Sequence& sequence) const;
  /// Copies fewer than one per writer: when the writers of a batch are all who share a page, the
  /// last of them has it alone by its turn. `shared` has one entry per writer; it is sorted.
  [[nodiscard]] PageCount spared_copies(std::vector<PageId>& shared) const;
  /// Grows the table so that `length` tokens fit; the caller has tested the capacity of the pool.
  void grow(std::uint32_t index, TokenCount length, const Need& need);
  [[nodiscard]] Status shortage(Status status);
  /// The place for a new sequence, taken off the stack of free ones or added.
  [[nodiscard]] SeqId new_place(OwnerTag owner, TokenCount expected);
  /// Throws InvalidArgument when this batch has named the sequence before.
  void stamp(SeqId seq, Sequence& sequence);
  void release_from(Sequence& sequence, std::int64_t first_page);
  /// Throws InvalidArgument when tables and references of the checkpoint do not agree.
  void require_sound(const Checkpoint& checkpoint) const;
  /// Throws PageError when a move goes to a page that take_copies has yet to tell of: the copy
  /// would read or overwrite what was moved there.
  void require_no_waiting_copy(std::span<const PageMove> moves) const;
  /// Throws PageError when a table names the source of a move and is not patched. `sorted` by
  /// source; `patched` counts the patches of each.
  void require_all_patched(std::span<const PageMove> sorted,
                           std::span<const std::int32_t> patched) const;
  void note(std::uint64_t operation, std::uint64_t a, std::uint64_t b);

  std::int64_t page_size_;
  std::int64_t sequences_max_;
  PageAllocator allocator_;
  std::vector<Sequence> sequences_;
  std::vector<std::uint32_t> free_places_;  // stack of indices whose sequence has finished
  std::int64_t live_{0};
  std::uint64_t batch_{0};
  std::uint32_t generation_{0};
  std::vector<PageCopy> copies_;
  KvCounters counters_;
  std::uint64_t digest_{0x9e3779b97f4a7c15ULL};
};

}  // namespace packstone
