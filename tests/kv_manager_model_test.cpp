// SPDX-License-Identifier: Apache-2.0
// Random command streams against the oracle of model.hpp. Each run switches some operations off
// (swarm testing, Groce et al. 2012): what an operation always undoes shows only in its absence.
#include "model.hpp"

#include <packstone/placement.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace packstone::test {
namespace {

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("PACKSTONE_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "PACKSTONE_SEED=" << chosen << std::endl;
    return chosen;
  }();
  return value;
}

/// Prints the seed before the first test: the line to copy when one fails.
const std::uint64_t kSeed = seed();

class Swarm {
 public:
  explicit Swarm(std::mt19937_64& random) : random_(random) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] = draw(3) == 0 ? 0 : 1 + draw(10);
    }
    weights_[static_cast<std::size_t>(Op::create)] += 2;
    weights_[static_cast<std::size_t>(Op::append)] += 4;
  }

  Command next() {
    std::uint32_t total = 0;
    for (const std::uint32_t weight : weights_) total += weight;
    std::uint32_t at = draw(total);
    std::uint32_t op = 0;
    while (at >= weights_[op]) at -= weights_[op++];
    return {static_cast<Op>(op), draw(1U << 20U), draw(1U << 20U), draw(1U << 20U)};
  }

 private:
  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }

  std::mt19937_64& random_;
  std::array<std::uint32_t, kOps> weights_{};
};

std::string describe(const Command& command) {
  return "op " + std::to_string(static_cast<int>(command.op)) + " (" + std::to_string(command.a) +
         ", " + std::to_string(command.b) + ", " + std::to_string(command.c) + ")";
}

void run(const KvManagerOptions& options, std::uint64_t seed, int steps, int check_every) {
  std::mt19937_64 random(seed);
  Swarm swarm(random);
  Driver driver(options);
  Driver twin(options);
  for (int i = 0; i < steps; ++i) {
    const Command command = swarm.next();
    try {
      driver.step(command);
      twin.step(command);
      if (i % check_every == 0) driver.check();
      require(driver.manager().digest() == twin.manager().digest(), "the digests differ");
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n  at step " << i << ", " << describe(command) << ", policy "
             << options.policy << ", page size " << options.page_size << ", pages " << options.pages
             << ", run seed " << seed;
    }
  }
  driver.check();
  EXPECT_EQ(driver.fingerprint(), twin.fingerprint());
}

TEST(KvManagerModel, SmallPoolsAreCheckedAfterEveryOperation) {
  std::uint64_t run_seed = kSeed;
  for (const std::string_view policy : placement_names()) {
    for (const std::int64_t page_size : {1, 2, 3, 16}) {
      for (const PageCount pages : {2, 5, 13, 40}) {
        for (int repeat = 0; repeat < 6 && !HasFailure(); ++repeat) {
          run({.pages = pages, .page_size = page_size, .policy = std::string(policy)}, run_seed++,
              300, 1);
        }
      }
    }
  }
}

TEST(KvManagerModel, LargePoolsAreCheckedNowAndThen) {
  std::uint64_t run_seed = kSeed ^ 0x5eedU;
  for (const std::string_view policy : placement_names()) {
    for (const std::int64_t page_size : {1, 16, 64}) {
      if (HasFailure()) return;
      run({.pages = 2000, .page_size = page_size, .policy = std::string(policy)}, run_seed++, 2000,
          151);
    }
  }
}

}  // namespace
}  // namespace packstone::test
