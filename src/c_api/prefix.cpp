// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"
#include "handles.hpp"

#include <packstone/prefix_cache.hpp>

using namespace packstone;
using namespace packstone::c_api;

struct packstone_prefix_cache {
  KvManager& manager;
  PrefixCache cache;
};

namespace {

PrefixKey key_of(const packstone_prefix_key& key) {
  return {.ids = array(key.ids, key.id_count, "key->ids"),
          .tokens = key.tokens != 0 ? key.tokens : -1,
          .adapter = key.adapter,
          .salt = key.salt};
}

}  // namespace

packstone_status packstone_prefix_cache_create(packstone_manager* manager,
                                               const packstone_prefix_options* options,
                                               packstone_prefix_cache** out) {
  return guarded([&] {
    KvManager& kv = required(manager, "manager").manager;
    PrefixCacheOptions made{.page_size = kv.page_size()};
    if (options != nullptr) {
      const packstone_prefix_options given = read_struct(options, "options");
      if (given.id_tokens != 0) made.id_tokens = given.id_tokens;
      made.seed = given.seed;
    }
    packstone_prefix_cache*& result = required(out, "out");
    result = new packstone_prefix_cache{kv, PrefixCache(kv.allocator(), made)};
    return PACKSTONE_OK;
  });
}

void packstone_prefix_cache_destroy(packstone_prefix_cache* cache) {
  if (cache == nullptr) return;
  // `clear` leaves locked pages, whose references are given back by hand.
  (void)guarded([&] {
    cache->cache.clear();
    cache->manager.allocator().release(cache->cache.held());
    return PACKSTONE_OK;
  });
  delete cache;
}

packstone_status packstone_prefix_cache_match(packstone_prefix_cache* cache,
                                              const packstone_prefix_key* key, int64_t tokens_left,
                                              int32_t* pages, size_t capacity, size_t* count,
                                              uint64_t* lock) {
  return guarded([&]() -> packstone_status {
    packstone_prefix_cache& c = required(cache, "cache");
    const PrefixKey made = key_of(read_struct(key, "key"));
    (void)required(count, "count");
    (void)required(lock, "lock");
    const PrefixEstimate estimate = c.cache.estimate(made, tokens_left);
    *count = static_cast<std::size_t>(estimate.pages_reused);
    if (*count > capacity) return fail(PACKSTONE_BUFFER_TOO_SMALL, "pages is too small");
    const std::span<int32_t> out = array(pages, *count, "pages");
    const PrefixMatch match = c.cache.match(made, tokens_left);
    PACKSTONE_ASSERT(match.pages.size() == out.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = index_of(match.pages[i]);
    *lock = static_cast<std::uint64_t>(match.lock);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_prefix_cache_insert(packstone_prefix_cache* cache,
                                               const packstone_prefix_key* key,
                                               const int32_t* pages, size_t count, int32_t priority,
                                               int64_t* stored, uint64_t* lock) {
  return guarded([&] {
    packstone_prefix_cache& c = required(cache, "cache");
    (void)required(lock, "lock");
    const PrefixInsertion inserted =
        c.cache.insert(key_of(read_struct(key, "key")), page_ids(pages, count, "pages"), priority);
    if (stored != nullptr) *stored = inserted.stored;
    *lock = static_cast<std::uint64_t>(inserted.lock);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_prefix_cache_unlock(packstone_prefix_cache* cache, uint64_t lock) {
  return guarded([&] {
    required(cache, "cache").cache.unlock(PrefixLock{lock});
    return PACKSTONE_OK;
  });
}

packstone_status packstone_prefix_cache_evict(packstone_prefix_cache* cache, int64_t pages,
                                              int64_t* freed) {
  return guarded([&] {
    const Eviction eviction = required(cache, "cache").cache.evict({.pages = pages});
    if (freed != nullptr) *freed = std::ssize(eviction.freed);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_prefix_cache_remap(packstone_prefix_cache* cache,
                                              const packstone_page_move* moves, size_t count) {
  return guarded([&] {
    required(cache, "cache").cache.remap(page_moves(moves, count, "moves"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_prefix_cache_held(const packstone_prefix_cache* cache, int32_t* pages,
                                             size_t capacity, size_t* count) {
  return guarded([&] {
    const std::vector<PageId> held = required(cache, "cache").cache.held();
    return give(
        held.size(), [&](std::size_t i) { return index_of(held[i]); }, pages, capacity, count);
  });
}

packstone_status packstone_prefix_cache_statistics(const packstone_prefix_cache* cache,
                                                   packstone_prefix_statistics* out) {
  return guarded([&] {
    const PrefixCache& c = required(cache, "cache").cache;
    const PrefixCounters& counters = c.counters();
    write_struct(packstone_prefix_statistics{.size = 0,
                                             .pages = c.pages(),
                                             .evictable = c.evictable_pages(),
                                             .lookups = counters.lookups,
                                             .lookups_hit = counters.lookups_hit,
                                             .tokens_asked = counters.tokens_asked,
                                             .tokens_hit = counters.tokens_hit,
                                             .pages_stored = counters.pages_stored,
                                             .pages_evicted = counters.pages_evicted},
                 out, "out");
    return PACKSTONE_OK;
  });
}
