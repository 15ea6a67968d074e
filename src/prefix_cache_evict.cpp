// SPDX-License-Identifier: Apache-2.0
// What takes pages out of a PrefixCache, moves them, or looks at all of them.
#include <packstone/prefix_cache.hpp>

#include <algorithm>
#include <string>

namespace packstone {

void PrefixCache::drop(NodeIndex node, KvEventKind kind) {
  tell(kind, node);
  unlist(node);
  const Node gone = at(node);
  const auto bucket = by_hash_.find(gone.hash);
  PACKSTONE_ASSERT(bucket != by_hash_.end());
  if (bucket->second == node && gone.next == kNone) {
    by_hash_.erase(bucket);
  } else if (bucket->second == node) {
    bucket->second = gone.next;
  } else {
    NodeIndex before = bucket->second;
    while (at(before).next != node) before = at(before).next;
    at(before).next = gone.next;
  }
  node_of_page_[static_cast<std::size_t>(index_of(gone.page))] = kNone;
  at(node) = {};
  free_nodes_.push_back(node);
  pages_ -= 1;
  if (gone.parent >= 0) {
    at(gone.parent).children -= 1;
    list(gone.parent);
  } else {
    const auto found = roots_.find(gone.parent);
    Namespace& home = namespaces_[found->second];
    if (--home.nodes == 0) {
      namespaces_.erase(found->second);
      roots_.erase(found);
    }
  }
  allocator_.release({&gone.page, 1});
}

std::int64_t PrefixCache::free_run_around(PageId page, std::int64_t scan) const {
  const FreeSet& set = allocator_.set();
  std::int64_t run = 1;
  for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{1}}) {
    std::int64_t at_page = index_of(page) + step;
    for (std::int64_t i = 0; i < scan && at_page > 0 && at_page < set.pages(); ++i) {
      if (set.state(PageId{static_cast<std::int32_t>(at_page)}) != PageState::free) break;
      run += 1;
      at_page += step;
    }
  }
  return run;
}

void PrefixCache::remember_ghost(std::uint64_t hash) {
  if (options_.ghosts_max == 0) return;
  const std::pair<std::uint64_t, std::uint64_t> entry{hash, ++serial_};
  if (static_cast<std::int64_t>(ghost_ring_.size()) < options_.ghosts_max) {
    ghost_ring_.push_back(entry);
  } else {
    auto& oldest = ghost_ring_[ghost_next_];
    const auto found = ghosts_.find(oldest.first);
    if (found != ghosts_.end() && found->second == oldest.second) ghosts_.erase(found);
    oldest = entry;
    ghost_next_ = (ghost_next_ + 1) % ghost_ring_.size();
  }
  ghosts_[hash] = entry.second;
}

Eviction PrefixCache::evict(const EvictOptions& options) {
  if (options.pages < 0 || options.candidates < 1 || options.run_scan < 1) {
    throw InvalidArgument("evict of " + std::to_string(options.pages) + " pages among " +
                          std::to_string(options.candidates) + " candidates, scan " +
                          std::to_string(options.run_scan));
  }
  Eviction result;
  std::vector<Age> in_use;  // others reference the page: dropping it would free nothing
  while (static_cast<PageCount>(result.freed.size()) < options.pages) {
    auto best = evictable_.end();
    std::int64_t best_run = 0;
    std::int64_t looked = 0;
    bool first = true;
    bool early = false;
    for (auto it = evictable_.begin(); it != evictable_.end() && looked < options.candidates;) {
      const PageId page = at(it->node).page;
      if (allocator_.set().references(page) > 1) {
        in_use.push_back(*it);
        it = evictable_.erase(it);
        continue;
      }
      // A lower priority is not spared for the sake of an address.
      if (best != evictable_.end() && it->priority != evictable_.begin()->priority) break;
      const std::int64_t run =
          options.candidates == 1 ? 1 : free_run_around(page, options.run_scan);
      if (run > best_run) {
        early = !first;
        best = it;
        best_run = run;
      }
      first = false;
      looked += 1;
      ++it;
    }
    if (best == evictable_.end()) break;
    const NodeIndex node = best->node;
    result.freed.push_back(at(node).page);
    if (early) {
      result.before_their_turn += 1;
      remember_ghost(at(node).hash);
    }
    drop(node, KvEventKind::evicted);
  }
  evictable_.insert(in_use.begin(), in_use.end());
  counters_.pages_evicted += static_cast<std::int64_t>(result.freed.size());
  counters_.pages_evicted_early += result.before_their_turn;
  return result;
}

PageCount PrefixCache::clear() {
  PageCount dropped = 0;
  while (!evictable_.empty()) {
    drop(evictable_.begin()->node, KvEventKind::removed);
    dropped += 1;
  }
  return dropped;
}

void PrefixCache::remap(std::span<const PageMove> moves) {
  for (const PageMove& move : moves) {
    for (const PageId page : {move.from, move.to}) {
      if (index_of(page) < 0 || index_of(page) >= static_cast<std::int64_t>(node_of_page_.size())) {
        throw PageError(PageError::Kind::out_of_range, page, 0,
                        "remap of page " + std::to_string(index_of(page)));
      }
    }
    if (node_of_page_[static_cast<std::size_t>(index_of(move.to))] != kNone) {
      throw PageError(
          PageError::Kind::duplicate, move.to, allocator_.set().owner(move.to),
          "remap to page " + std::to_string(index_of(move.to)) + ", which holds another prefix");
    }
  }
  for (const PageMove& move : moves) {
    NodeIndex& from = node_of_page_[static_cast<std::size_t>(index_of(move.from))];
    if (from == kNone) continue;
    tell(KvEventKind::moved, from, move.to);
    at(from).page = move.to;
    node_of_page_[static_cast<std::size_t>(index_of(move.to))] = from;
    from = kNone;
  }
}

std::vector<PageId> PrefixCache::held() const {
  std::vector<PageId> result;
  for (std::size_t i = 0; i < node_of_page_.size(); ++i) {
    if (node_of_page_[i] != kNone) result.push_back(PageId{static_cast<std::int32_t>(i)});
  }
  return result;
}

void PrefixCache::check() const {
  const auto require = [](bool holds, const std::string& what) {
    if (!holds) throw InvariantError("prefix cache: " + what);
  };
  std::vector<std::int64_t> children(nodes_.size(), 0);
  std::vector<std::int64_t> locks(nodes_.size(), 0);
  for (const auto& [id, node] : locks_) {  // sums only, so their order does not matter
    if (node >= 0) locks[static_cast<std::size_t>(node)] += 1;
  }
  PageCount pages = 0;
  PageCount locked = 0;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.page == kNoPage) continue;
    pages += 1;
    locked += node.locks > 0 ? 1 : 0;
    require(allocator_.set().references(node.page) >= 1,
            "page " + std::to_string(index_of(node.page)) + " is not live");
    require(
        node_of_page_[static_cast<std::size_t>(index_of(node.page))] == static_cast<NodeIndex>(i),
        "page " + std::to_string(index_of(node.page)) + " names another node");
    if (node.parent >= 0) {
      require(at(node.parent).page != kNoPage && at(node.parent).depth + 1 == node.depth,
              "a node without its parent");
      children[static_cast<std::size_t>(node.parent)] += 1;
      if (node.locks > 0) locks[static_cast<std::size_t>(node.parent)] += 1;
    }
    const bool evictable = node.children == 0 && node.locks == 0;
    listed += evictable ? 1 : 0;
    require(evictable_.contains(age(static_cast<NodeIndex>(i))) == evictable,
            "page " + std::to_string(index_of(node.page)) + " is wrongly listed");
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    require(nodes_[i].children == children[i] && nodes_[i].locks == locks[i],
            "children or locks of a node do not add up");
  }
  require(pages == pages_ && locked == locked_ && listed == evictable_.size(),
          "pages, locked or evictable do not add up");
}

}  // namespace packstone
