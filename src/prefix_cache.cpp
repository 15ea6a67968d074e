// SPDX-License-Identifier: Apache-2.0
#include <packstone/prefix_cache.hpp>

#include <algorithm>
#include <bit>
#include <string>

namespace packstone {

namespace {

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

std::uint64_t combine(std::uint64_t hash, std::uint64_t value) {
  return mix(std::rotl(hash, 23) + 0x9e3779b97f4a7c15ULL + mix(value + 0x9e3779b97f4a7c15ULL));
}

std::string name_of(PageId page) {
  return "page " + std::to_string(index_of(page));
}

// Most ids that a page overlaps.
std::size_t ids_per_page(const PrefixCacheOptions& options) {
  if (options.id_tokens % options.page_size == 0) return 1;
  const std::int64_t whole = options.page_size / options.id_tokens;
  return static_cast<std::size_t>(options.page_size % options.id_tokens == 0 ? whole : whole + 2);
}

}  // namespace

PrefixCache::PrefixCache(PageAllocator& allocator, const PrefixCacheOptions& options)
    : allocator_(allocator), options_(options), stride_(0) {
  if (options.page_size < 1 || options.id_tokens < 1 || options.ghosts_max < 0) {
    throw InvalidArgument("prefix cache with page_size = " + std::to_string(options.page_size) +
                          ", id_tokens = " + std::to_string(options.id_tokens) +
                          ", ghosts_max = " + std::to_string(options.ghosts_max));
  }
  stride_ = ids_per_page(options);
  node_of_page_.assign(static_cast<std::size_t>(allocator.set().pages()), kNone);
}

// ---- keys ----

TokenCount PrefixCache::tokens_of(const PrefixKey& key) const {
  const auto ids = static_cast<std::int64_t>(key.ids.size());
  if (ids > std::numeric_limits<TokenCount>::max() / options_.id_tokens) {
    throw InvalidArgument("a key of " + std::to_string(ids) + " ids passes 64 bits of tokens");
  }
  const TokenCount all = ids * options_.id_tokens;
  if (key.tokens < -1 || key.tokens > all) {
    throw InvalidArgument("a key of " + std::to_string(key.tokens) + " tokens with " +
                          std::to_string(ids) + " ids of " + std::to_string(options_.id_tokens));
  }
  return key.tokens < 0 ? all : key.tokens;
}

std::size_t PrefixCache::ids_at(std::int64_t depth) const {
  const std::int64_t first = depth * options_.page_size / options_.id_tokens;
  const std::int64_t last = ((depth + 1) * options_.page_size - 1) / options_.id_tokens;
  return static_cast<std::size_t>(last - first + 1);
}

std::span<const std::int64_t> PrefixCache::ids_of_page(const PrefixKey& key,
                                                       std::int64_t page) const {
  const auto first = static_cast<std::size_t>(page * options_.page_size / options_.id_tokens);
  return key.ids.subspan(first, ids_at(page));
}

std::span<const std::int64_t> PrefixCache::ids_of(NodeIndex node) const {
  return std::span(ids_).subspan(static_cast<std::size_t>(node) * stride_, ids_at(at(node).depth));
}

std::uint64_t PrefixCache::chain(std::uint64_t hash, std::span<const std::int64_t> ids) const {
  if (options_.hash_is_constant) return 0;
  for (const std::int64_t id : ids) hash = combine(hash, static_cast<std::uint64_t>(id));
  return hash;
}

PrefixCache::Cursor PrefixCache::root(const PrefixKey& key) const {
  const auto found = namespaces_.find({key.adapter, key.salt});
  return {.node = found == namespaces_.end() ? kNone : found->second.root,
          .hash = options_.hash_is_constant
                      ? 0
                      : combine(combine(mix(options_.seed), key.adapter), key.salt)};
}

PrefixCache::NodeIndex PrefixCache::find(const Cursor& parent, std::uint64_t hash,
                                         std::int64_t depth, std::span<const std::int64_t> ids,
                                         std::int64_t* collisions) const {
  const auto bucket = by_hash_.find(hash);
  if (bucket == by_hash_.end()) return kNone;
  for (NodeIndex node = bucket->second; node != kNone; node = at(node).next) {
    if (at(node).parent == parent.node && at(node).depth == depth &&
        std::ranges::equal(ids_of(node), ids)) {
      return node;
    }
    if (collisions != nullptr) *collisions += 1;
  }
  return kNone;
}

// ---- look up ----

PrefixMatch PrefixCache::match(const PrefixKey& key, TokenCount tokens_left) {
  const TokenCount tokens = tokens_of(key);
  if (tokens_left < 0) throw InvalidArgument("tokens_left = " + std::to_string(tokens_left));
  const std::int64_t limit = std::max<TokenCount>(tokens - tokens_left, 0) / options_.page_size;
  now_ += 1;
  PrefixMatch result;
  Cursor cursor = root(key);
  NodeIndex last = kNone;
  for (std::int64_t page = 0; page < limit; ++page) {
    const auto ids = ids_of_page(key, page);
    const std::uint64_t hash = chain(cursor.hash, ids);
    const NodeIndex node =
        cursor.node == kNone ? kNone : find(cursor, hash, page, ids, &counters_.collisions);
    if (node == kNone) {
      // All of what follows was lost with the first page that is not there.
      for (std::uint64_t at_hash = hash; !ghosts_.empty(); ++page) {
        if (ghosts_.erase(at_hash) == 0) break;
        counters_.hits_lost_to_addresses += 1;
        if (page + 1 >= limit) break;
        at_hash = chain(at_hash, ids_of_page(key, page + 1));
      }
      break;
    }
    touch(node, at(node).priority);
    result.pages.push_back(at(node).page);
    last = node;
    cursor = {.node = node, .hash = hash};
  }
  result.tokens = static_cast<TokenCount>(result.pages.size()) * options_.page_size;
  result.lock = lock(last);
  counters_.lookups += 1;
  counters_.lookups_hit += result.pages.empty() ? 0 : 1;
  counters_.pages_asked += tokens / options_.page_size;
  counters_.pages_hit += static_cast<std::int64_t>(result.pages.size());
  counters_.tokens_asked += tokens;
  counters_.tokens_hit += result.tokens;
  return result;
}

PrefixEstimate PrefixCache::estimate(const PrefixKey& key, TokenCount tokens_left) const {
  const TokenCount tokens = tokens_of(key);
  if (tokens_left < 0) throw InvalidArgument("tokens_left = " + std::to_string(tokens_left));
  const std::int64_t limit = std::max<TokenCount>(tokens - tokens_left, 0) / options_.page_size;
  PrefixEstimate result;
  Cursor cursor = root(key);
  while (result.pages_reused < limit && cursor.node != kNone) {
    const auto ids = ids_of_page(key, result.pages_reused);
    const std::uint64_t hash = chain(cursor.hash, ids);
    const NodeIndex node = find(cursor, hash, result.pages_reused, ids, nullptr);
    if (node == kNone) break;
    result.pages_reused += 1;
    cursor = {.node = node, .hash = hash};
  }
  result.tokens_reused = result.pages_reused * options_.page_size;
  result.tokens_to_compute = tokens - result.tokens_reused;
  result.pages_needed = pages_for(tokens, options_.page_size) - result.pages_reused;
  return result;
}

// ---- store ----

void PrefixCache::require_insertable(const PrefixKey& key, std::span<const PageId> pages) const {
  Cursor cursor = root(key);
  std::vector<PageId> fresh;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto depth = static_cast<std::int64_t>(i);
    const auto ids = ids_of_page(key, depth);
    const std::uint64_t hash = chain(cursor.hash, ids);
    const NodeIndex node = cursor.node == kNone ? kNone : find(cursor, hash, depth, ids, nullptr);
    cursor = {.node = node, .hash = hash};
    if (node != kNone) continue;
    const FreeSet& set = allocator_.set();
    if (set.state(pages[i]) != PageState::live || index_of(pages[i]) == 0) {
      throw PageError(
          PageError::Kind::not_live, pages[i], set.owner(pages[i]),
          "insert of " + name_of(pages[i]) + ", which is " + to_string(set.state(pages[i])));
    }
    if (node_of_page_[static_cast<std::size_t>(index_of(pages[i]))] != kNone) {
      throw PageError(PageError::Kind::duplicate, pages[i], set.owner(pages[i]),
                      "insert of " + name_of(pages[i]) + ", which holds another prefix");
    }
    fresh.push_back(pages[i]);
  }
  std::ranges::sort(fresh);
  if (const auto twice = std::ranges::adjacent_find(fresh); twice != fresh.end()) {
    throw PageError(PageError::Kind::duplicate, *twice, allocator_.set().owner(*twice),
                    "insert of " + name_of(*twice) + " twice");
  }
}

PrefixInsertion PrefixCache::insert(const PrefixKey& key, std::span<const PageId> pages,
                                    std::int32_t priority) {
  const auto full = static_cast<std::size_t>(tokens_of(key) / options_.page_size);
  if (pages.size() < full) {
    throw InvalidArgument("insert of " + std::to_string(full) + " full pages from a table of " +
                          std::to_string(pages.size()));
  }
  pages = pages.first(full);
  require_insertable(key, pages);
  now_ += 1;
  PrefixInsertion result;
  Cursor cursor = root(key);
  if (cursor.node == kNone && full > 0) {
    cursor.node = next_root_--;
    namespaces_[{key.adapter, key.salt}] = {.root = cursor.node, .nodes = 0};
    roots_[cursor.node] = {key.adapter, key.salt};
  }
  NodeIndex last = kNone;
  for (std::size_t i = 0; i < full; ++i) {
    const auto depth = static_cast<std::int64_t>(i);
    const auto ids = ids_of_page(key, depth);
    const std::uint64_t hash = chain(cursor.hash, ids);
    NodeIndex node = find(cursor, hash, depth, ids, &counters_.collisions);
    if (node == kNone) {
      node = add(cursor, hash, depth, ids, pages[i], priority);
      result.stored += 1;
    } else {
      result.present += 1;
      touch(node, std::max(priority, at(node).priority));
    }
    last = node;
    cursor = {.node = node, .hash = hash};
  }
  result.lock = lock(last);
  counters_.pages_stored += result.stored;
  return result;
}

PrefixCache::NodeIndex PrefixCache::add(const Cursor& parent, std::uint64_t hash,
                                        std::int64_t depth, std::span<const std::int64_t> ids,
                                        PageId page, std::int32_t priority) {
  allocator_.retain({&page, 1});
  if (free_nodes_.empty()) {
    free_nodes_.push_back(static_cast<NodeIndex>(nodes_.size()));
    nodes_.emplace_back();
    ids_.resize(nodes_.size() * stride_);
  }
  const NodeIndex node = free_nodes_.back();
  free_nodes_.pop_back();
  const auto [bucket, is_new] = by_hash_.try_emplace(hash, node);
  at(node) = {.page = page,
              .parent = parent.node,
              .next = is_new ? kNone : bucket->second,
              .depth = static_cast<std::int32_t>(depth),
              .priority = priority,
              .locks = 0,
              .children = 0,
              .hash = hash,
              .parent_hash = parent.hash,
              .used = now_,
              .serial = ++serial_};
  bucket->second = node;
  std::ranges::copy(
      ids, ids_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(node) * stride_));
  node_of_page_[static_cast<std::size_t>(index_of(page))] = node;
  pages_ += 1;
  if (parent.node >= 0) {
    unlist(parent.node);
    at(parent.node).children += 1;
  } else {
    namespaces_[roots_[parent.node]].nodes += 1;
  }
  list(node);
  tell(KvEventKind::stored, node);
  return node;
}

// ---- locks and age ----

PrefixCache::Age PrefixCache::age(NodeIndex node) const {
  return {at(node).priority, at(node).used, at(node).serial, node};
}

void PrefixCache::list(NodeIndex node) {
  if (at(node).children == 0 && at(node).locks == 0) evictable_.insert(age(node));
}

void PrefixCache::unlist(NodeIndex node) {
  if (at(node).children == 0 && at(node).locks == 0) evictable_.erase(age(node));
}

void PrefixCache::touch(NodeIndex node, std::int32_t priority) {
  unlist(node);
  at(node).used = now_;
  at(node).priority = priority;
  list(node);
}

PrefixLock PrefixCache::lock(NodeIndex node) {
  const std::uint64_t id = next_lock_++;
  locks_[id] = node;
  for (; node >= 0; node = at(node).parent) {
    unlist(node);
    if (++at(node).locks > 1) break;  // the nodes above know already
    locked_ += 1;
  }
  return PrefixLock{id};
}

void PrefixCache::unlock(PrefixLock lock) {
  const auto found = locks_.find(static_cast<std::uint64_t>(lock));
  if (found == locks_.end()) {
    throw InvalidArgument("unlock of lock " + std::to_string(static_cast<std::uint64_t>(lock)) +
                          ", which is not held");
  }
  NodeIndex node = found->second;
  locks_.erase(found);
  for (; node >= 0; node = at(node).parent) {
    PACKSTONE_ASSERT(at(node).locks > 0);
    if (--at(node).locks > 0) break;
    locked_ -= 1;
    list(node);
  }
}

std::int64_t PrefixCache::locks(PageId page) const {
  const auto index = static_cast<std::size_t>(index_of(page));
  if (index >= node_of_page_.size() || node_of_page_[index] == kNone) return 0;
  return at(node_of_page_[index]).locks;
}

void PrefixCache::tell(KvEventKind kind, NodeIndex node, PageId to) const {
  if (options_.sink == nullptr) return;
  options_.sink->on_event({.kind = kind,
                           .page = at(node).page,
                           .to = to,
                           .hash = at(node).hash,
                           .parent_hash = at(node).parent_hash,
                           .ids = ids_of(node)});
}

}  // namespace packstone
