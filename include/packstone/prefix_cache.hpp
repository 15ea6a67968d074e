// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which pages hold which prefixes, so that requests that begin alike share them.
///
/// A tree in which one node is one full page, found by a hash chained from the first page on and
/// then *checked* against the stored ids: a collision costs a comparison, never a wrong page. Since
/// a node is one page nothing is ever split, and a lock outlives any insertion beside it.
///
/// The cache holds one reference of each of its pages (PageAllocator::retain) and drops it when the
/// page is evicted; a page whose sequence still uses it then stays alive with that sequence.
///
/// A node is *locked* while a lock is on it or on a node below it. Evicted are only leaves that are
/// not locked and whose page nobody else references: lowest priority first, among equals least
/// recently used first. Evicting k of n pages costs O(k log n).
///
/// **Keys.** The ids of a prefix are tokens (`id_tokens` = 1), or blocks of a trace of `id_tokens`
/// tokens each. A page is known by all ids that it overlaps, so the page size need not divide the
/// block, nor the block the page; a page shared by two blocks is found when both agree. Only pages
/// full of tokens are kept. `adapter` and `salt` are compared as well: equal tokens under another
/// adapter or salt are another prefix.
///
/// Deterministic: time is the number of calls, ties go by age. Not thread-safe.

#include <packstone/events.hpp>
#include <packstone/kv_manager.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace packstone {

struct PrefixCacheOptions {
  std::int64_t page_size{1};  ///< of the pool, >= 1
  std::int64_t id_tokens{1};  ///< tokens that one id stands for, >= 1
  std::uint64_t seed{0};      ///< of the hash
  /// Most pages, evicted before their turn, that are remembered to count what that cost; >= 0.
  std::int64_t ghosts_max{1 << 16};
  KvEventSink* sink{nullptr};    ///< may be nullptr; outlives the cache
  bool hash_is_constant{false};  ///< for tests: every prefix collides with every other
};

struct PrefixKey {
  std::span<const std::int64_t> ids;
  TokenCount tokens{-1};  ///< of the prefix, at most ids x id_tokens; -1: all of them
  std::uint64_t adapter{0};
  std::uint64_t salt{0};
};

/// A lock handed out by `match` or `insert`; never used twice.
enum class PrefixLock : std::uint64_t {};

struct PrefixMatch {
  std::vector<PageId> pages;  ///< in order; what KvManager::create takes as its prefix
  TokenCount tokens{0};       ///< pages x page_size
  PrefixLock lock{};          ///< on the last of them; unlock it when the sequence has finished
};

/// What a request would take, see `estimate`.
struct PrefixEstimate {
  PageCount pages_reused{0};
  TokenCount tokens_reused{0};
  TokenCount tokens_to_compute{0};
  PageCount pages_needed{0};  ///< new pages for the whole prompt
};

struct PrefixInsertion {
  PageCount stored{0};   ///< pages that are new in the cache
  PageCount present{0};  ///< pages whose prefix was there; the caller's copy stays the caller's
  PrefixLock lock{};     ///< on the last page of the key
};

struct EvictOptions {
  PageCount pages{0};  ///< to free, >= 0
  /// Victims are chosen among so many of the oldest; 1: strictly by age. The one that joins the
  /// longest run of free pages goes first. >= 1.
  std::int64_t candidates{1};
  std::int64_t run_scan{64};  ///< free neighbours looked at on either side of a candidate, >= 1
};

struct Eviction {
  std::vector<PageId> freed;
  PageCount before_their_turn{0};  ///< of these, not the oldest at the time
};

struct PrefixCounters {
  std::int64_t lookups{0};
  std::int64_t lookups_hit{0};  ///< with at least one page
  std::int64_t pages_asked{0};  ///< full pages of the keys looked up
  std::int64_t pages_hit{0};
  std::int64_t tokens_asked{0};
  std::int64_t tokens_hit{0};
  std::int64_t pages_stored{0};
  std::int64_t pages_evicted{0};
  std::int64_t pages_evicted_early{0};  ///< by address, before their turn
  /// Pages asked for and not there because address-aware eviction took them before their turn: an
  /// upper bound of the hits that it cost, as some would have gone by age meanwhile.
  std::int64_t hits_lost_to_addresses{0};
  std::int64_t collisions{0};  ///< equal hash, other ids
};

class PrefixCache {
 public:
  /// `allocator` must outlive the cache.
  PrefixCache(PageAllocator& allocator, const PrefixCacheOptions& options);
  ~PrefixCache() = default;  ///< forgets; `clear` first to give the references back
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// The longest cached prefix of the key, locked. At least `tokens_left` tokens of it stay to be
  /// computed: a model needs one to go on from, also when everything is cached.
  [[nodiscard]] PrefixMatch match(const PrefixKey& key, TokenCount tokens_left = 1);
  /// What `match` and then growing to the key's length would take. Changes nothing.
  [[nodiscard]] PrefixEstimate estimate(const PrefixKey& key, TokenCount tokens_left = 1) const;

  /// Stores the full pages of the key that are not there yet, and locks the last one.
  /// @param pages     the table of the sequence; at least floor(tokens / page_size) live pages.
  /// @param priority  higher ones are evicted later; a page keeps the highest it was given.
  /// Throws PageError for a page that is not live, or that the cache holds for another prefix, and
  /// InvalidArgument for too few pages; then nothing has changed.
  PrefixInsertion insert(const PrefixKey& key, std::span<const PageId> pages,
                         std::int32_t priority = 0);
  /// Throws InvalidArgument for a lock that was never given out or has been given back.
  void unlock(PrefixLock lock);

  /// Frees up to `options.pages` pages; fewer when no more can be.
  Eviction evict(const EvictOptions& options);
  /// Drops every page that is not locked, also ones that others reference. Returns how many.
  PageCount clear();
  /// A plan was applied: pages that moved are named by their new place.
  void remap(std::span<const PageMove> moves);

  /// Every page of the cache, ascending: what KvManager::check takes.
  [[nodiscard]] std::vector<PageId> held() const;
  [[nodiscard]] PageCount pages() const { return pages_; }
  /// Pages that are not locked; not all of them can be freed while others reference them.
  [[nodiscard]] PageCount evictable_pages() const { return pages_ - locked_; }
  /// Locks on the node of this page, counting one for each child that is locked; 0 if not cached.
  [[nodiscard]] std::int64_t locks(PageId page) const;
  [[nodiscard]] const PrefixCounters& counters() const { return counters_; }
  /// O(cache): throws InvariantError naming the first thing that does not hold.
  void check() const;

 private:
  using NodeIndex = std::int32_t;
  static constexpr NodeIndex kNone = -1;
  struct Node {
    PageId page{kNoPage};
    NodeIndex parent{kNone};  // below kNone: the root of a namespace
    NodeIndex next{kNone};    // of the same hash
    std::int32_t depth{0};
    std::int32_t priority{0};
    std::int64_t locks{0};
    std::int64_t children{0};
    std::uint64_t hash{0};
    std::uint64_t parent_hash{0};
    std::uint64_t used{0};
    std::uint64_t serial{0};
  };
  /// Order of eviction.
  struct Age {
    std::int32_t priority;
    std::uint64_t used;
    std::uint64_t serial;
    NodeIndex node;
    friend auto operator<=>(const Age&, const Age&) = default;  // NOLINT(modernize-use-nullptr)
  };
  struct Namespace {
    NodeIndex root{kNone};
    std::int64_t nodes{0};
  };
  struct Cursor {
    NodeIndex node{kNone};
    std::uint64_t hash{0};
  };

  [[nodiscard]] Node& at(NodeIndex node) { return nodes_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] const Node& at(NodeIndex node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] TokenCount tokens_of(const PrefixKey& key) const;
  [[nodiscard]] std::span<const std::int64_t> ids_of_page(const PrefixKey& key,
                                                          std::int64_t page) const;
  [[nodiscard]] std::span<const std::int64_t> ids_of(NodeIndex node) const;
  [[nodiscard]] std::size_t ids_at(std::int64_t depth) const;
  [[nodiscard]] Cursor root(const PrefixKey& key) const;
  [[nodiscard]] std::uint64_t chain(std::uint64_t hash, std::span<const std::int64_t> ids) const;
  [[nodiscard]] NodeIndex find(const Cursor& parent, std::uint64_t hash, std::int64_t depth,
                               std::span<const std::int64_t> ids, std::int64_t* collisions) const;
  NodeIndex add(const Cursor& parent, std::uint64_t hash, std::int64_t depth,
                std::span<const std::int64_t> ids, PageId page, std::int32_t priority);
  void require_insertable(const PrefixKey& key, std::span<const PageId> pages) const;
  void touch(NodeIndex node, std::int32_t priority);
  [[nodiscard]] PrefixLock lock(NodeIndex node);
  void list(NodeIndex node);  // among the evictable, if it is
  void unlist(NodeIndex node);
  [[nodiscard]] Age age(NodeIndex node) const;
  void drop(NodeIndex node, KvEventKind kind);
  [[nodiscard]] std::int64_t free_run_around(PageId page, std::int64_t scan) const;
  void remember_ghost(std::uint64_t hash);
  void tell(KvEventKind kind, NodeIndex node, PageId to = kNoPage) const;

  PageAllocator& allocator_;
  PrefixCacheOptions options_;
  std::size_t stride_;  // ids stored per node
  std::vector<Node> nodes_;
  std::vector<std::int64_t> ids_;  // [nodes x stride]
  std::vector<NodeIndex> free_nodes_;
  std::vector<NodeIndex> node_of_page_;                   // [pages]
  std::unordered_map<std::uint64_t, NodeIndex> by_hash_;  // looked up, never iterated
  std::map<std::pair<std::uint64_t, std::uint64_t>, Namespace> namespaces_;
  std::map<NodeIndex, std::pair<std::uint64_t, std::uint64_t>> roots_;
  std::set<Age> evictable_;
  std::unordered_map<std::uint64_t, NodeIndex> locks_;
  std::unordered_map<std::uint64_t, std::uint64_t> ghosts_;  // hash to when it was remembered
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ghost_ring_;
  std::size_t ghost_next_{0};
  NodeIndex next_root_{kNone - 1};
  std::uint64_t now_{0};
  std::uint64_t serial_{0};
  std::uint64_t next_lock_{1};
  PageCount pages_{0};
  PageCount locked_{0};
  PrefixCounters counters_;
};

}  // namespace packstone
