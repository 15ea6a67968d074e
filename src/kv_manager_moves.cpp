// SPDX-License-Identifier: Apache-2.0
// Readers, moves, checkpoints and the check of KvManager: what looks at the whole instead of one
// sequence.
#include "kv_operations.hpp"

#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <string>
#include <tuple>

namespace packstone {

namespace {

std::string describe(PageMove move) {
  return "move of page " + std::to_string(index_of(move.from)) + " to " +
         std::to_string(index_of(move.to));
}

void require_range(std::int64_t first, std::int64_t count, std::size_t size) {
  const auto pages = static_cast<std::int64_t>(size);
  if (first < 0 || count < 0 || first > pages || count > pages - first) {
    throw InvalidArgument("pages " + std::to_string(first) + " + " + std::to_string(count) +
                          " of a table of " + std::to_string(pages));
  }
}

// Sorted by source, so that a patch finds its move.
std::vector<PageMove> checked_moves(std::span<const PageMove> moves, const FreeSet& set) {
  for (const PageMove& move : moves) {
    if (index_of(move.from) == 0 || index_of(move.to) == 0) {
      throw PageError(PageError::Kind::reserved_page, kReservedPage, 0, describe(move));
    }
    if (set.state(move.from) != PageState::live) {
      throw PageError(PageError::Kind::not_live, move.from, set.owner(move.from),
                      describe(move) + ": the source is " + to_string(set.state(move.from)));
    }
    if (set.pinned(move.from)) {
      throw PageError(PageError::Kind::pinned, move.from, set.owner(move.from),
                      describe(move) + ": the source is pinned");
    }
    if (set.state(move.to) != PageState::free) {
      throw PageError(PageError::Kind::not_live, move.to, set.owner(move.to),
                      describe(move) + ": the destination is " + to_string(set.state(move.to)));
    }
  }
  std::vector<PageMove> sorted(moves.begin(), moves.end());
  const auto require_distinct = [&](PageId PageMove::*which) {
    std::ranges::sort(sorted, {}, which);
    const auto twice = std::ranges::adjacent_find(sorted, {}, which);
    if (twice != sorted.end()) {
      throw PageError(PageError::Kind::duplicate, (*twice).*which, set.owner((*twice).*which),
                      describe(*twice) + ": the page stands twice in the plan");
    }
  };
  require_distinct(&PageMove::to);
  require_distinct(&PageMove::from);
  return sorted;
}

}  // namespace

void KvManager::pin(SeqId seq, std::int64_t first, std::int64_t count) {
  const Sequence& sequence = at(seq);
  require_range(first, count, sequence.pages.size());
  for (std::int64_t i = 0; i < count; ++i) {
    allocator_.pin(sequence.pages[static_cast<std::size_t>(first + i)]);
  }
  note(detail::kPin, seq.index, static_cast<std::uint64_t>(first));
  note(detail::kRange, seq.index, static_cast<std::uint64_t>(count));
}

void KvManager::unpin(SeqId seq, std::int64_t first, std::int64_t count) {
  const Sequence& sequence = at(seq);
  require_range(first, count, sequence.pages.size());
  const auto pages = std::span(sequence.pages)
                         .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  for (const PageId page : pages) {
    if (!allocator_.set().pinned(page)) {
      throw PageError(PageError::Kind::not_live, page, sequence.owner,
                      "unpin of page " + std::to_string(index_of(page)) + ": it is not pinned");
    }
  }
  for (const PageId page : pages) allocator_.unpin(page);
  note(detail::kUnpin, seq.index, static_cast<std::uint64_t>(first));
  note(detail::kRange, seq.index, static_cast<std::uint64_t>(count));
}

PoolSnapshot KvManager::snapshot() const {
  const FreeSet& set = allocator_.set();
  PoolSnapshot result;
  result.page_size = page_size_;
  result.states.reserve(static_cast<std::size_t>(set.pages()));
  result.references.reserve(static_cast<std::size_t>(set.pages()));
  for (std::int32_t i = 0; i < set.pages(); ++i) {
    result.states.push_back(set.state(PageId{i}));
    result.references.push_back(set.references(PageId{i}));
  }
  result.pinned = set.pinned_list();
  for (const SeqId seq : live_sequences()) {
    const Sequence& sequence = sequences_[seq.index];
    result.tables.push_back({.seq = seq, .length = sequence.length, .pages = sequence.pages});
  }
  return result;
}

void KvManager::require_no_waiting_copy(std::span<const PageMove> moves) const {
  if (copies_.empty()) return;
  std::vector<PageId> waiting;
  for (const PageCopy& copy : copies_) {
    waiting.push_back(copy.from);
    waiting.push_back(copy.to);
  }
  std::ranges::sort(waiting);
  for (const PageMove& move : moves) {
    if (!std::ranges::binary_search(waiting, move.to)) continue;
    throw PageError(PageError::Kind::pinned, move.to, allocator_.set().owner(move.to),
                    describe(move) + ": a copy on write of the destination waits to be made");
  }
}

void KvManager::require_all_patched(std::span<const PageMove> sorted,
                                    std::span<const std::int32_t> patched) const {
  bool outside = false;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    outside = outside || patched[i] != allocator_.set().references(sorted[i].from);
  }
  if (!outside) return;
  // Some references are no table's of the plan: a prefix cache may have them, or a table that is
  // younger than the plan. Only a look at every table tells.
  std::vector<std::int32_t> named(sorted.size(), 0);
  for (const Sequence& sequence : sequences_) {
    for (const PageId page : sequence.pages) {
      const auto move = std::ranges::lower_bound(sorted, page, {}, &PageMove::from);
      if (move != sorted.end() && move->from == page) {
        named[static_cast<std::size_t>(move - sorted.begin())] += 1;
      }
    }
  }
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (named[i] == patched[i]) continue;
    throw PageError(PageError::Kind::foreign, sorted[i].from,
                    allocator_.set().owner(sorted[i].from),
                    describe(sorted[i]) + ": " + std::to_string(named[i]) + " tables name it, " +
                        std::to_string(patched[i]) + " are patched");
  }
}

void KvManager::apply(std::span<const PageMove> moves, std::span<const TablePatch> patches,
                      Epoch epoch) {
  const std::vector<PageMove> sorted = checked_moves(moves, allocator_.set());
  std::vector<std::tuple<std::uint32_t, std::int64_t>> entries;
  entries.reserve(patches.size());
  std::vector<std::int32_t> patched(sorted.size(), 0);
  for (const TablePatch& patch : patches) {
    const Sequence& sequence = at(patch.seq);
    require_range(patch.index, 1, sequence.pages.size());
    const auto move = std::ranges::lower_bound(sorted, patch.move.from, {}, &PageMove::from);
    if (move == sorted.end() || *move != patch.move ||
        sequence.pages[static_cast<std::size_t>(patch.index)] != patch.move.from) {
      throw PageError(
          PageError::Kind::foreign, patch.move.from, allocator_.set().owner(patch.move.from),
          describe(patch.move) + ": it is not in the plan, or page " + std::to_string(patch.index) +
              " of sequence " + std::to_string(patch.seq.index) + " is another one");
    }
    entries.emplace_back(patch.seq.index, patch.index);
    patched[static_cast<std::size_t>(move - sorted.begin())] += 1;
  }
  std::ranges::sort(entries);
  if (std::ranges::adjacent_find(entries) != entries.end()) {
    throw InvalidArgument("a table entry stands twice in the patches");
  }
  require_all_patched(sorted, patched);
  require_no_waiting_copy(moves);
  if (!moves.empty()) allocator_.require_movable(static_cast<PageCount>(moves.size()), epoch);

  for (const PageMove& move : moves) {
    allocator_.move(move, epoch);
    note(detail::kMove, static_cast<std::uint64_t>(index_of(move.from)),
         static_cast<std::uint64_t>(index_of(move.to)));
  }
  for (const TablePatch& patch : patches) {
    sequences_[patch.seq.index].pages[static_cast<std::size_t>(patch.index)] = patch.move.to;
  }
  // A copy that has not been made yet must find the rows where they now are.
  for (PageCopy& copy : copies_) {
    for (PageId* page : {&copy.from, &copy.to}) {
      const auto move = std::ranges::lower_bound(sorted, *page, {}, &PageMove::from);
      if (move != sorted.end() && move->from == *page) *page = move->to;
    }
  }
  counters_.pages_moved += static_cast<std::int64_t>(moves.size());
}

PageCount KvManager::reclaim(Epoch reached) {
  const PageCount freed = allocator_.reclaim(reached);
  if (freed > 0) note(detail::kReclaim, static_cast<std::uint64_t>(freed), 0);
  return freed;
}

KvManager::Checkpoint KvManager::checkpoint() const {
  const FreeSet& set = allocator_.set();
  if (set.pinned_pages() > 0 || set.count(PageState::retired) > 0 || allocator_.held() > 0) {
    throw InvalidArgument("checkpoint with " + std::to_string(set.pinned_pages()) + " pinned, " +
                          std::to_string(set.count(PageState::retired)) + " retired and " +
                          std::to_string(allocator_.held()) + " held pages");
  }
  if (!copies_.empty()) {
    throw InvalidArgument("checkpoint with " + std::to_string(copies_.size()) +
                          " copies on write not taken");
  }
  Checkpoint result;
  result.digest = digest_;
  std::int64_t named = 0;
  for (const Sequence& sequence : sequences_) {
    named += static_cast<std::int64_t>(sequence.pages.size());
    result.sequences.push_back({.alive = sequence.alive,
                                .generation = sequence.generation,
                                .owner = sequence.owner,
                                .length = sequence.length,
                                .expected = sequence.expected,
                                .pages = sequence.pages});
  }
  std::int64_t references = 0;
  for (std::int32_t i = 1; i < set.pages(); ++i) {
    const PageId page{i};
    if (set.state(page) != PageState::live) continue;
    references += set.references(page);
    result.living.push_back(
        {.page = page, .references = set.references(page), .owner = set.owner(page)});
  }
  if (references != named) {
    throw InvalidArgument("checkpoint with " + std::to_string(references - named) +
                          " page references held outside the tables");
  }
  return result;
}

void KvManager::require_sound(const Checkpoint& checkpoint) const {
  std::int64_t alive = 0;
  std::vector<PageId> named;
  std::vector<PageId> table;
  for (std::size_t i = 0; i < checkpoint.sequences.size(); ++i) {
    const Checkpoint::Sequence& sequence = checkpoint.sequences[i];
    const auto capacity = static_cast<TokenCount>(sequence.pages.size()) * page_size_;
    table = sequence.pages;
    std::ranges::sort(table);
    if (sequence.length < 0 || sequence.length > capacity || sequence.expected < -1 ||
        (!sequence.alive && !table.empty()) || std::ranges::adjacent_find(table) != table.end()) {
      throw InvalidArgument("restore of sequence " + std::to_string(i) + " with " +
                            std::to_string(table.size()) + " pages and length " +
                            std::to_string(sequence.length));
    }
    alive += sequence.alive ? 1 : 0;
    named.insert(named.end(), table.begin(), table.end());
  }
  if (alive > sequences_max_) {
    throw InvalidArgument("restore of " + std::to_string(alive) + " sequences, at most " +
                          std::to_string(sequences_max_) + " may live");
  }
  std::ranges::sort(named);
  std::size_t next = 0;
  for (const PageAllocator::Living& each : checkpoint.living) {
    std::int32_t references = 0;
    for (; next < named.size() && named[next] == each.page; ++next) references += 1;
    if (references != each.references) {
      throw InvalidArgument("restore of page " + std::to_string(index_of(each.page)) + " with " +
                            std::to_string(each.references) + " references, " +
                            std::to_string(references) + " tables name it");
    }
  }
  if (next != named.size()) {
    throw InvalidArgument("restore of a table that names page " +
                          std::to_string(index_of(named[next])) + ", which is not live");
  }
}

void KvManager::restore(const Checkpoint& checkpoint) {
  require_sound(checkpoint);
  allocator_.restore(checkpoint.living);
  sequences_.resize(std::max(sequences_.size(), checkpoint.sequences.size()));
  free_places_.clear();
  live_ = 0;
  for (std::size_t i = sequences_.size(); i-- > 0;) {
    const Checkpoint::Sequence saved =
        i < checkpoint.sequences.size() ? checkpoint.sequences[i] : Checkpoint::Sequence{};
    Sequence& sequence = sequences_[i];
    sequence = {.pages = saved.pages,
                .length = saved.length,
                .expected = saved.expected,
                .owner = saved.owner,
                .generation = saved.generation,
                .alive = saved.alive};
    generation_ = std::max(generation_, saved.generation);
    if (saved.alive) {
      live_ += 1;
    } else {
      free_places_.push_back(static_cast<std::uint32_t>(i));
    }
  }
  copies_.clear();
  digest_ = checkpoint.digest;
}

void KvManager::check(std::span<const PageId> held_outside) const {
  allocator_.check();
  const FreeSet& set = allocator_.set();
  std::vector<std::int32_t> named(static_cast<std::size_t>(set.pages()), 0);
  for (const PageId page : held_outside) {
    (void)set.state(page);  // throws when it is outside the pool
    named[static_cast<std::size_t>(index_of(page))] += 1;
  }
  std::int64_t alive = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    const std::string name = "sequence " + std::to_string(i);
    alive += sequence.alive ? 1 : 0;
    if (!sequence.alive && !sequence.pages.empty()) {
      throw InvariantError(name + " has finished but still names pages");
    }
    if (sequence.length > static_cast<TokenCount>(sequence.pages.size()) * page_size_) {
      throw InvariantError(name + " is longer than its capacity");
    }
    for (const PageId page : sequence.pages) {
      if (set.state(page) != PageState::live || index_of(page) == 0) {
        throw InvariantError(name + " names page " + std::to_string(index_of(page)) +
                             ", which is " + to_string(set.state(page)));
      }
      named[static_cast<std::size_t>(index_of(page))] += 1;
    }
    std::vector<PageId> sorted = sequence.pages;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) {
      throw InvariantError(name + " names a page twice");
    }
  }
  for (std::int32_t i = 1; i < set.pages(); ++i) {
    const std::int32_t expected = named[static_cast<std::size_t>(i)] + set.pins(PageId{i});
    if (set.references(PageId{i}) != expected) {
      throw InvariantError("page " + std::to_string(i) + " has " +
                           std::to_string(set.references(PageId{i})) + " references, " +
                           std::to_string(expected) + " name it, owner tag " +
                           std::to_string(set.owner(PageId{i})));
    }
  }
  if (alive != live_ || alive + static_cast<std::int64_t>(free_places_.size()) !=
                            static_cast<std::int64_t>(sequences_.size())) {
    throw InvariantError("live sequences and free places do not add up");
  }
}

}  // namespace packstone
