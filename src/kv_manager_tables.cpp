// SPDX-License-Identifier: Apache-2.0
// Operations of KvManager that take pages out of the middle or the front of a table, and the
// question what growing takes.
#include "kv_operations.hpp"

#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <string>

namespace packstone {

PageCount KvManager::pages_needed(std::span<const Growth> batch) const {
  PageCount pages = 0;
  std::vector<PageId> shared;
  for (const Growth& growth : batch) {
    const Sequence& sequence = at(growth.seq);
    if (growth.length < sequence.length) {
      throw InvalidArgument("growth of sequence " + std::to_string(growth.seq.index) + " from " +
                            std::to_string(sequence.length) + " to " +
                            std::to_string(growth.length) + " tokens");
    }
    const Need wanted = need(sequence, growth.length);
    if (wanted.copy) shared.push_back(last_written(sequence));
    if (__builtin_add_overflow(pages, wanted.pages, &pages)) {
      return std::numeric_limits<PageCount>::max();
    }
  }
  return pages - spared_copies(shared);
}

PageCount KvManager::keep(SeqId seq, std::span<const std::int64_t> kept) {
  Sequence& sequence = at(seq);
  const std::int64_t first = pages_for(sequence.length, page_size_);
  const auto size = static_cast<std::int64_t>(sequence.pages.size());
  std::vector<std::int64_t> sorted(kept.begin(), kept.end());
  std::ranges::sort(sorted);
  if (!sorted.empty() && (sorted.front() < first || sorted.back() >= size)) {
    throw InvalidArgument("keep of page " +
                          std::to_string(sorted.front() < first ? sorted.front() : sorted.back()) +
                          " of sequence " + std::to_string(seq.index) + ", whose drafts are " +
                          std::to_string(first) + " .. " + std::to_string(size - 1));
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw InvalidArgument("keep of page " + std::to_string(*twice) + " twice");
  }
  std::vector<PageId> table;
  for (const std::int64_t index : kept) {
    table.push_back(sequence.pages[static_cast<std::size_t>(index)]);
  }
  std::vector<PageId> dropped;
  for (std::int64_t index = first; index < size; ++index) {
    if (std::ranges::binary_search(sorted, index)) continue;
    dropped.push_back(sequence.pages[static_cast<std::size_t>(index)]);
  }
  counters_.pages_released += allocator_.release(dropped);
  sequence.pages.resize(static_cast<std::size_t>(std::min(first, size)));
  sequence.pages.insert(sequence.pages.end(), table.begin(), table.end());
  note(detail::kKeep, seq.index, static_cast<std::uint64_t>(kept.size()));
  for (const std::int64_t index : kept) {
    note(detail::kRange, seq.index, static_cast<std::uint64_t>(index));
  }
  return static_cast<PageCount>(dropped.size());
}

PageCount KvManager::drop_front(SeqId seq, std::int64_t pages) {
  Sequence& sequence = at(seq);
  if (pages < 0 || pages > sequence.length / page_size_) {
    throw InvalidArgument("drop_front of " + std::to_string(pages) + " pages of sequence " +
                          std::to_string(seq.index) + ", which has written " +
                          std::to_string(sequence.length / page_size_));
  }
  const auto end = sequence.pages.begin() + static_cast<std::ptrdiff_t>(pages);
  const PageCount freed = allocator_.release(std::span(sequence.pages.begin(), end));
  counters_.pages_released += freed;
  sequence.pages.erase(sequence.pages.begin(), end);
  sequence.length -= pages * page_size_;
  if (sequence.expected >= 0) {
    sequence.expected = std::max<TokenCount>(sequence.expected - pages * page_size_, 0);
  }
  note(detail::kDropFront, seq.index, static_cast<std::uint64_t>(pages));
  return freed;
}

}  // namespace packstone
