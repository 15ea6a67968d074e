// SPDX-License-Identifier: Apache-2.0
// The whole host half under one stream of random commands: manager, drafts, prefix cache, planner.
// Every token has a value in a pool that copies, moves and commits are carried out on; a sequence
// is compared with what it should read when it ends, and all of them at the end.
//
// PACKSTONE_RANDOM_COMMANDS sets how many (100000000 for a night), PACKSTONE_SEED where they begin;
// the seed is the first line of output.
#include "sim/prng.hpp"

#include <packstone/move_plan.hpp>
#include <packstone/prefix_cache.hpp>
#include <packstone/speculation.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace packstone {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Printed before the first test: the line to copy when one fails.
const std::uint64_t kSeed = [] {
  const std::uint64_t seed = from_environment("PACKSTONE_SEED", 20260811);
  std::printf("PACKSTONE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}();

class World {
 public:
  using Ids = std::vector<std::int64_t>;

  World(std::int64_t page_size, const std::string& policy, SpeculationMode mode)
      : manager_({.pages = kPages, .page_size = page_size, .policy = policy}),
        cache_(manager_.allocator(), {.page_size = page_size}),
        drafts_(manager_, {.mode = mode}),
        pool_(static_cast<std::size_t>(kPages * page_size), -1) {}

  [[nodiscard]] std::uint64_t digest() const { return manager_.digest(); }

  void run(std::uint64_t bits) {
    const auto a = static_cast<std::size_t>(bits >> 8U & 0xffU);
    const auto b = static_cast<std::size_t>(bits >> 16U & 0xffU);
    const std::uint64_t op = bits & 0xffU;
    if (running_.empty() || op < 40) {
      create(a, b);
    } else if (op < 110) {
      append(running_[a % running_.size()], b % 12);
    } else if (op < 190) {
      speculate(running_[a % running_.size()], bits >> 16U);
    } else if (op < 205) {
      fork(running_[a % running_.size()], b);
    } else if (op < 240) {
      finish(a % running_.size());
    } else if (op < 252) {
      cache_.evict({.pages = static_cast<PageCount>(b % 8),
                    .candidates = 1 + static_cast<std::int64_t>(bits >> 24U & 3U)});
    } else if (op < 254 || (b & 15U) != 0) {
      manager_.reclaim(epoch_);
    } else {
      defrag(bits);
    }
  }

  void check() const {
    cache_.check();
    manager_.check(cache_.held());
  }

  void compare_all() const {
    for (const Running& each : running_) compare(each);
  }

  void finish_all() {
    while (!running_.empty()) finish(0);
    manager_.reclaim(epoch_);
    cache_.clear();
    require(manager_.available_pages() == kPages - 1, "a page leaked");
    check();
  }

 private:
  static constexpr PageCount kPages = 257;
  struct Running {
    SeqId seq;
    Ids ids;
    PrefixLock lock{};
  };

  static void require(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  std::int64_t& value(SlotId slot) { return pool_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] std::int64_t value(SlotId slot) const {
    return pool_[static_cast<std::size_t>(slot)];
  }
  void compare(const Running& each) const {
    require(manager_.length(each.seq) == std::ssize(each.ids), "length");
    const std::int64_t page_size = manager_.page_size();
    const auto pages = manager_.pages(each.seq);
    for (std::size_t i = 0; i < each.ids.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const SlotId slot =
          slot_of(pages[static_cast<std::size_t>(at / page_size)], page_size, at % page_size);
      require(value(slot) == each.ids[i], "a token reads another's value");
    }
  }
  void copy_on_write() {
    for (const PageCopy& copy : manager_.take_copies()) {
      for (TokenCount i = 0; i < copy.tokens; ++i) {
        value(slot_of(copy.to, manager_.page_size(), i)) =
            value(slot_of(copy.from, manager_.page_size(), i));
      }
    }
  }

  void create(std::size_t a, std::size_t b) {
    Running next;
    // Prompts from a small set, of any length: they share beginnings.
    for (std::size_t i = 0; i < a % 40; ++i) {
      next.ids.push_back(static_cast<std::int64_t>((b % 4 + 1) * 100 + (i > 20 ? b : i)));
    }
    if (running_.size() >= 24) finish(a % running_.size());
    const PrefixKey key{.ids = next.ids};
    const PrefixMatch match = cache_.match(key);
    for (TokenCount i = 0; i < match.tokens; ++i) {
      const auto at = static_cast<std::size_t>(i / manager_.page_size());
      require(value(slot_of(match.pages[at], manager_.page_size(), i % manager_.page_size())) ==
                  next.ids[static_cast<std::size_t>(i)],
              "a cached page holds another prefix");
    }
    require(manager_.create({.prefix = match.pages}, next.seq) == Status::ok, "create");
    const auto left = std::ssize(next.ids) - match.tokens;
    if (!grow([&] { return manager_.append(next.seq, left); })) {
      manager_.finish(next.seq);
      cache_.unlock(match.lock);
      return;
    }
    for (TokenCount i = match.tokens; i < std::ssize(next.ids); ++i) {
      value(manager_.slot(next.seq, i)) = next.ids[static_cast<std::size_t>(i)];
    }
    cache_.unlock(match.lock);
    next.lock = cache_.insert(key, manager_.pages(next.seq), static_cast<std::int32_t>(b % 2)).lock;
    running_.push_back(std::move(next));
  }

  // Twice, with an eviction between: what a server does when it runs short.
  template <typename Call>
  bool grow(const Call& call) {
    if (call() == Status::ok) return true;
    cache_.evict({.pages = 24});
    return call() == Status::ok;
  }

  void append(Running& each, std::size_t tokens) {
    if (each.ids.size() > 60) return;
    const auto more = static_cast<TokenCount>(tokens);
    if (!grow([&] { return manager_.append(each.seq, more); })) return;
    copy_on_write();
    for (std::size_t i = 0; i < tokens; ++i) {
      const auto at = std::ssize(each.ids);
      each.ids.push_back(next_value_++);
      value(manager_.slot(each.seq, at)) = each.ids.back();
    }
  }

  void speculate(Running& each, std::uint64_t bits) {
    if (each.ids.size() > 60) return;
    std::vector<std::int32_t> parents{-1};
    for (std::uint64_t i = 1; i < 1 + bits % 9; ++i) {
      parents.push_back(static_cast<std::int32_t>((bits >> i) % parents.size()));
    }
    const DraftTree tree(parents);
    if (!grow([&] { return drafts_.reserve(each.seq, tree.nodes()); })) return;
    copy_on_write();
    for (std::int64_t node = 0; node < tree.nodes(); ++node) {
      value(drafts_.slot(each.seq, node)) = next_value_ + node;
    }
    std::vector<std::int32_t> path =
        tree.path_to(static_cast<std::int64_t>((bits >> 8U) % parents.size()));
    path.resize((bits >> 20U) % (path.size() + 1));
    for (const std::int32_t node : path) each.ids.push_back(next_value_ + node);
    next_value_ += tree.nodes();
    const DraftCommit commit = drafts_.commit(each.seq, tree, path);
    for (const SlotMove& move : commit.moves) value(move.to) = value(move.from);
  }

  void fork(Running& each, std::size_t b) {
    if (running_.size() >= 24) return;
    Running next;
    const std::size_t tokens = b % (each.ids.size() + 1);
    require(manager_.fork(each.seq, static_cast<TokenCount>(tokens), next.seq) == Status::ok,
            "fork");
    next.ids.assign(each.ids.begin(), each.ids.begin() + static_cast<std::ptrdiff_t>(tokens));
    running_.push_back(std::move(next));
  }

  void finish(std::size_t which) {
    compare(running_[which]);
    manager_.finish(running_[which].seq);
    if (running_[which].lock != PrefixLock{}) cache_.unlock(running_[which].lock);
    running_[which] = std::move(running_.back());
    running_.pop_back();
  }

  void defrag(std::uint64_t bits) {
    constexpr PlanObjective kObjectives[] = {PlanObjective::frontier, PlanObjective::straighten,
                                             PlanObjective::granules};
    const PlanOptions options{.objective = kObjectives[(bits >> 32U) % 3],
                              .moves_max = static_cast<PageCount>(bits >> 40U & 63U),
                              .run_target = 2 + static_cast<PageCount>(bits >> 48U & 31U),
                              .granule_bytes = 800,
                              .granule_page_bytes = 100};
    const MovePlan plan = plan_moves(manager_.snapshot(), options);
    manager_.apply(plan.moves, plan.patches, ++epoch_);
    cache_.remap(plan.moves);
    for (const PageMove& move : plan.moves) {
      for (std::int64_t i = 0; i < manager_.page_size(); ++i) {
        value(slot_of(move.to, manager_.page_size(), i)) =
            value(slot_of(move.from, manager_.page_size(), i));
      }
    }
  }

  KvManager manager_;
  PrefixCache cache_;
  Speculation drafts_;
  std::vector<std::int64_t> pool_;
  std::vector<Running> running_;
  std::int64_t next_value_{100000};
  Epoch epoch_{1};
};

TEST(RandomCommands, TheModelHoldsAndEqualStreamsHaveEqualDigests) {
  const std::uint64_t commands = from_environment("PACKSTONE_RANDOM_COMMANDS", 300000);
  const char* policies[] = {"fifo", "run", "sorted", "lowest", "lifo"};
  const std::int64_t page_sizes[] = {1, 4, 3};
  const SpeculationMode modes[] = {SpeculationMode::rollback, SpeculationMode::reserve_tail,
                                   SpeculationMode::tree_front};
  const std::uint64_t runs = 15;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const auto page_size = page_sizes[run % 3];
    const std::string policy = policies[run % 5];
    const SpeculationMode mode = modes[(run / 3) % 3];
    World world(page_size, policy, mode);
    World twin(page_size, policy, mode);
    World other(page_size, policy, mode);
    sim::Prng random(kSeed + run);
    for (std::uint64_t i = 0; i < commands / runs; ++i) {
      const std::uint64_t bits = random.next();
      try {
        world.run(bits);
        if (i % 5003 == 0) world.check();
        // The twin follows for the first part of a run: it is there for the digest.
        if (i < 20000) {
          twin.run(bits);
          other.run(i == 100 ? 0x0505U : bits);
        }
        if (i == 19999 || (i < 20000 && i + 1 == commands / runs)) {
          ASSERT_EQ(world.digest(), twin.digest());
          ASSERT_NE(world.digest(), other.digest());
        }
      } catch (const std::exception& error) {
        FAIL() << error.what() << ": seed " << kSeed << ", run " << run << ", command " << i;
      }
    }
    ASSERT_NO_THROW(world.compare_all()) << "run " << run;
    ASSERT_NO_THROW(world.finish_all()) << "run " << run;
  }
}

}  // namespace
}  // namespace packstone
