// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Prefix reuse in the replay: the block ids of a trace as keys of the real PrefixCache.
///
/// A prompt's pages are stored as soon as its chunk has been placed, so a request admitted later in
/// the same step finds them: with a pool that never evicts, every block that an earlier request of
/// the queue had is found, as in a cache without end.

#include <packstone/kv_manager.hpp>
#include <packstone/prefix_cache.hpp>

#include <sim/request.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace packstone::sim {

/// Counted once for each first admission of a request with ids.
struct ReuseCounters {
  std::int64_t blocks_asked{0};
  /// Blocks from the front whose full pages were all found, and that have one. (The last block of a
  /// prompt may be shorter than a page; it then counts as not found.)
  std::int64_t blocks_hit{0};
  std::int64_t tokens_asked{0};
  std::int64_t tokens_hit{0};
  std::int64_t evictions{0};  ///< pages
};

class PrefixReuse {
 public:
  /// Both must outlive this object.
  PrefixReuse(const RequestList& list, KvManager& kv);

  /// Pages that admitting a prompt of the request with `prefill` tokens would take anew.
  [[nodiscard]] PageCount pages_needed(const Request& request, TokenCount prefill) const;
  /// The longest cached prefix, locked.
  [[nodiscard]] PrefixMatch match(const Request& request, TokenCount prefill);
  /// Counts a match, before anything of the request has been stored.
  void count(const Request& request, TokenCount prefill, TokenCount matched);
  /// Stores the pages of the first `length` tokens; the lock moves to the last of them.
  void store(const Request& request, TokenCount length, std::span<const PageId> pages,
             std::optional<PrefixLock>& lock);
  void unlock(std::optional<PrefixLock>& lock);
  /// Frees pages until `wanted` are available, as far as can be. Returns how many it freed.
  PageCount make_room(PageCount wanted);
  /// Everything that could be evicted if nothing but the cache held it.
  [[nodiscard]] PageCount evictable() const { return cache_.evictable_pages(); }

  [[nodiscard]] PrefixCache& cache() { return cache_; }
  [[nodiscard]] const ReuseCounters& counters() const { return counters_; }

 private:
  [[nodiscard]] PrefixKey key(const Request& request, TokenCount length) const;

  const RequestList& list_;
  KvManager& kv_;
  std::int64_t block_tokens_;
  PrefixCache cache_;
  ReuseCounters counters_;
};

}  // namespace packstone::sim
