// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A naive oracle of PrefixCache and a driver that holds the two side by side: prefixes are
/// compared whole, ages looked through one by one. The same driver serves the random test and the
/// fuzzer.

#include <packstone/prefix_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace packstone::test {

struct PrefixCommand {
  std::uint8_t op;
  std::uint8_t a;
  std::uint8_t b;
  std::uint8_t c;
};

class PrefixDriver {
 public:
  explicit PrefixDriver(bool hash_is_constant, std::int64_t candidates = 1)
      : manager_({.pages = kPages, .page_size = kPageSize, .policy = "run"}),
        cache_(manager_.allocator(),
               {.page_size = kPageSize, .hash_is_constant = hash_is_constant}),
        candidates_(candidates) {}

  void run(const PrefixCommand& command) {
    switch (command.op % 8) {
      case 0:
      case 1:
      case 2:
        serve(command);
        break;
      case 3:
        finish(command.a);
        break;
      case 4:
        evict(command.a % 6);
        break;
      case 5:
        unlock_something(command);
        break;
      case 6:
        defrag(command);
        break;
      case 7:
        if (command.a == 7) clear();
        mistake(command);
        break;
    }
  }

  void check() const {
    cache_.check();
    manager_.check(cache_.held());
    require(cache_.pages() == static_cast<PageCount>(entries_.size()), "pages");
    PageCount locked = 0;
    for (const Entry& entry : entries_) locked += is_locked(entry) ? 1 : 0;
    require(cache_.evictable_pages() == cache_.pages() - locked, "evictable pages");
  }

  /// Everything back: every page must be free.
  void finish_all() {
    while (!running_.empty()) finish(0);
    cache_.clear();
    entries_.clear();
    require(manager_.available_pages() == kPages - 1, "a page leaked");
  }

 private:
  static constexpr PageCount kPages = 40;
  static constexpr std::int64_t kPageSize = 2;
  using Ids = std::vector<std::int64_t>;
  struct Entry {
    std::uint64_t salt;
    Ids prefix;  // all of it, from the first token to the end of this page
    PageId page;
    std::uint64_t used;
    std::uint64_t serial;
    std::int32_t priority;
  };
  struct Running {
    SeqId seq;
    std::uint64_t salt;
    Ids locked;  // prefix that the locks of this request cover
    Ids matched;
    PrefixLock match_lock;
    PrefixLock insert_lock;
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  // Few distinct tokens, so that prefixes meet and part.
  static Ids prompt(const PrefixCommand& command) {
    Ids ids;
    const auto length = static_cast<std::size_t>(command.a % 14);
    std::uint32_t bits = command.b;
    for (std::size_t i = 0; i < length; ++i) {
      ids.push_back((bits >> (i / 2 % 8)) & 1U);
    }
    return ids;
  }
  Entry* find(std::uint64_t salt, const Ids& prefix) {
    for (Entry& entry : entries_) {
      if (entry.salt == salt && entry.prefix == prefix) return &entry;
    }
    return nullptr;
  }
  static bool begins_with(const Ids& whole, const Ids& start) {
    return whole.size() >= start.size() && std::equal(start.begin(), start.end(), whole.begin());
  }
  bool is_locked(const Entry& entry) const {
    return std::ranges::any_of(running_, [&](const Running& each) {
      return each.salt == entry.salt &&
             (begins_with(each.locked, entry.prefix) || begins_with(each.matched, entry.prefix));
    });
  }

  void serve(const PrefixCommand& command) {
    const Ids ids = prompt(command);
    const std::uint64_t salt = command.c % 2;
    const PrefixKey key{.ids = ids, .salt = salt};
    const PrefixEstimate estimate = cache_.estimate(key);
    PrefixMatch match = cache_.match(key);
    now_ += 1;
    std::vector<PageId> expected;
    const std::int64_t limit = std::max<std::int64_t>(std::ssize(ids) - 1, 0) / kPageSize;
    for (std::int64_t i = 1; i <= limit; ++i) {
      Entry* entry = find(salt, Ids(ids.begin(), ids.begin() + i * kPageSize));
      if (entry == nullptr) break;
      entry->used = now_;
      expected.push_back(entry->page);
    }
    require(match.pages == expected, "match");
    require(estimate.pages_reused == std::ssize(expected), "estimate");
    Running next{.seq = {},
                 .salt = salt,
                 .locked = {},
                 .matched = Ids(ids.begin(), ids.begin() + match.tokens),
                 .match_lock = match.lock,
                 .insert_lock = {}};
    const PageCount before = manager_.available_pages();
    if (running_.size() >= 6 || estimate.pages_needed > before ||
        manager_.create({.prefix = match.pages}, next.seq) != Status::ok) {
      cache_.unlock(match.lock);
      return;
    }
    require(manager_.append(next.seq, std::ssize(ids) - match.tokens) == Status::ok, "append");
    require(before - manager_.available_pages() == estimate.pages_needed, "pages needed");
    const auto priority = static_cast<std::int32_t>(command.c / 2 % 2);
    const PrefixInsertion insertion = cache_.insert(key, manager_.pages(next.seq), priority);
    now_ += 1;
    PageCount stored = 0;
    const std::int64_t full = std::ssize(ids) / kPageSize;
    for (std::int64_t i = 1; i <= full; ++i) {
      const Ids prefix(ids.begin(), ids.begin() + i * kPageSize);
      if (Entry* entry = find(salt, prefix); entry != nullptr) {
        entry->used = now_;
        entry->priority = std::max(entry->priority, priority);
        continue;
      }
      stored += 1;
      entries_.push_back({.salt = salt,
                          .prefix = prefix,
                          .page = manager_.pages(next.seq)[static_cast<std::size_t>(i - 1)],
                          .used = now_,
                          .serial = ++serial_,
                          .priority = priority});
    }
    require(insertion.stored == stored && insertion.present == full - stored, "insertion");
    next.locked = Ids(ids.begin(), ids.begin() + full * kPageSize);
    next.insert_lock = insertion.lock;
    running_.push_back(next);
  }

  void finish(std::size_t which) {
    if (running_.empty()) return;
    which %= running_.size();
    const Running done = running_[which];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(which));
    if (done.insert_lock != PrefixLock{}) cache_.unlock(done.insert_lock);
    cache_.unlock(done.match_lock);
    manager_.finish(done.seq);
  }

  // Gives the lock of the insertion back before the sequence ends: its pages stay alive with it.
  void unlock_something(const PrefixCommand& command) {
    if (running_.empty()) return;
    Running& each = running_[command.a % running_.size()];
    if (each.insert_lock == PrefixLock{}) return;
    cache_.unlock(each.insert_lock);
    each.insert_lock = PrefixLock{};
    each.locked.clear();
  }

  void evict(PageCount pages) {
    const Eviction result = cache_.evict({.pages = pages, .candidates = candidates_});
    for (const PageId page : result.freed) {
      // The victim is a leaf that nobody locks or uses, and the oldest of those when ages decide.
      const Entry* oldest = nullptr;
      const Entry* victim = nullptr;
      for (const Entry& entry : entries_) {
        const bool leaf = std::ranges::none_of(entries_, [&](const Entry& other) {
          return other.salt == entry.salt && other.prefix.size() > entry.prefix.size() &&
                 begins_with(other.prefix, entry.prefix);
        });
        const bool used = std::ranges::any_of(running_, [&](const Running& each) {
          const auto table = manager_.pages(each.seq);
          return std::ranges::find(table, entry.page) != table.end();
        });
        if (!leaf || used || is_locked(entry)) continue;
        if (entry.page == page) victim = &entry;
        const auto key = [](const Entry& e) { return std::tuple(e.priority, e.used, e.serial); };
        if (oldest == nullptr || key(entry) < key(*oldest)) oldest = &entry;
      }
      require(victim != nullptr, "victim in use");
      require(candidates_ > 1 || victim == oldest, "victim not the oldest");
      require(victim->priority == oldest->priority, "priority spared for an address");
      entries_.erase(entries_.begin() + (victim - entries_.data()));
    }
    if (std::ssize(result.freed) == pages) return;
    for (const PageId page : cache_.held()) {
      require(cache_.locks(page) > 0 || manager_.allocator().set().references(page) > 1 ||
                  has_busy_child(page),
              "evict stopped early");
    }
  }
  // A node whose child cannot go is no leaf.
  bool has_busy_child(PageId page) const {
    const auto entry = std::ranges::find(entries_, page, &Entry::page);
    return std::ranges::any_of(entries_, [&](const Entry& other) {
      return other.salt == entry->salt && other.prefix.size() > entry->prefix.size() &&
             begins_with(other.prefix, entry->prefix);
    });
  }

  void clear() {
    cache_.clear();
    std::erase_if(entries_, [&](const Entry& entry) { return !is_locked(entry); });
  }

  // Moves one page that the cache holds, with every table that names it.
  void defrag(const PrefixCommand& command) {
    if (entries_.empty()) return;
    Entry& entry = entries_[command.a % entries_.size()];
    const FreeSet& set = manager_.allocator().set();
    for (std::int32_t i = 0; i < kPages; ++i) {
      const PageId to{(i + command.b) % static_cast<std::int32_t>(kPages)};
      if (index_of(to) == 0 || set.state(to) != PageState::free) continue;
      const PageMove move{.from = entry.page, .to = to};
      std::vector<TablePatch> patches;
      for (const SeqId seq : manager_.live_sequences()) {
        const auto table = manager_.pages(seq);
        for (std::size_t k = 0; k < table.size(); ++k) {
          if (table[k] != move.from) continue;
          patches.push_back({.seq = seq, .index = static_cast<std::int64_t>(k), .move = move});
        }
      }
      manager_.apply({&move, 1}, patches, ++epoch_);
      cache_.remap({&move, 1});
      manager_.reclaim(epoch_);
      entry.page = to;
      return;
    }
  }

  void mistake(const PrefixCommand& command) {
    const PageCount before = cache_.pages();
    bool thrown = false;
    try {
      const Ids ids(4, 99);
      const PageId nobody[] = {PageId{command.b % 2 == 0 ? 0 : 41}, PageId{1}};
      if (command.a % 2 == 0) {
        cache_.unlock(PrefixLock{0});
      } else {
        (void)cache_.insert({.ids = ids}, nobody);
      }
    } catch (const Error&) {
      thrown = true;
    }
    require(thrown && cache_.pages() == before, "a mistake was not refused");
  }

  KvManager manager_;
  PrefixCache cache_;
  std::int64_t candidates_;
  std::vector<Entry> entries_;
  std::vector<Running> running_;
  std::uint64_t now_{0};
  std::uint64_t serial_{0};
  Epoch epoch_{0};
};

}  // namespace packstone::test
