// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sim/prng.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace packstone::sim {
namespace {

// The published test values of splitmix64 for the seed 1234567.
TEST(Prng, SplitMixGivesThePublishedValues) {
  SplitMix64 mixer(1234567);
  EXPECT_EQ(mixer.next(), 6457827717110365317U);
  EXPECT_EQ(mixer.next(), 3203168211198807973U);
  EXPECT_EQ(mixer.next(), 9817491932198370423U);
}

// xoshiro256** written a second time, as its authors describe it.
class PlainXoshiro {
 public:
  explicit PlainXoshiro(std::uint64_t seed) {
    SplitMix64 mixer(seed);
    for (auto& word : s_) word = mixer.next();
  }
  std::uint64_t next() {
    const std::uint64_t five = s_[1] * 5;
    const std::uint64_t result = ((five << 7U) | (five >> 57U)) * 9;
    const std::uint64_t t = s_[1] << 17U;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = (s_[3] << 45U) | (s_[3] >> 19U);
    return result;
  }

 private:
  std::uint64_t s_[4];
};

TEST(Prng, AgreesWithASecondImplementation) {
  for (const std::uint64_t seed : {0ULL, 1ULL, 42ULL, ~0ULL}) {
    Prng prng(seed);
    PlainXoshiro plain(seed);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(prng.next(), plain.next()) << "seed " << seed;
  }
}

TEST(Prng, StreamsOfOneSeedDiffer) {
  std::set<std::uint64_t> firsts;
  for (const char* name : {"arrivals", "lengths", "aborts", "prefixes", "sessions", "client-1"}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) firsts.insert(Prng::stream(seed, name).next());
  }
  EXPECT_EQ(firsts.size(), 300U);
}

TEST(Prng, LogAndExpAreExactToAFewUlp) {
  Prng prng(7);
  for (int i = 0; i < 200'000; ++i) {
    const double x = std::ldexp(prng.uniform_open(), static_cast<int>(prng.between(-300, 300)));
    const double log_x = std::log(x);
    ASSERT_NEAR(fixed_log(x), log_x, 4e-16 * std::max(1.0, std::abs(log_x))) << x;
    const double y = 1400.0 * prng.uniform() - 700.0;
    ASSERT_NEAR(fixed_exp(y) / std::exp(y), 1.0, 2e-15) << y;
  }
  EXPECT_EQ(fixed_log(1.0), 0.0);
  EXPECT_EQ(fixed_exp(0.0), 1.0);
  EXPECT_EQ(fixed_exp(-1e300), 0.0);
  EXPECT_EQ(fixed_exp(1e300), std::numeric_limits<double>::infinity());
}

TEST(Prng, BelowIsEvenAndInRange) {
  Prng prng(11);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) ++counts[prng.below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(prng.below(1), 0U);
}

TEST(Prng, BetweenTakesItsWholeRange) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  Prng prng(3);
  bool negative = false;
  bool positive = false;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t draw = prng.between(kLow, kHigh);
    negative |= draw < 0;
    positive |= draw > 0;
    ASSERT_EQ(prng.between(-5, -5), -5);
    const std::int64_t small = prng.between(-2, 2);
    ASSERT_TRUE(small >= -2 && small <= 2);
  }
  EXPECT_TRUE(negative && positive);
}

struct Moments {
  double mean{0.0};
  double variance{0.0};
};

template <typename Draw>
Moments moments_of(Draw&& draw) {
  constexpr int kDraws = 400'000;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws;
  return {mean, squares / kDraws - mean * mean};
}

TEST(Prng, DistributionsHaveTheirMeanAndVariance) {
  Prng prng(5);
  const Moments uniform = moments_of([&] { return prng.uniform(); });
  EXPECT_NEAR(uniform.mean, 0.5, 0.003);
  EXPECT_NEAR(uniform.variance, 1.0 / 12, 0.001);
  const Moments normal = moments_of([&] { return prng.normal(); });
  EXPECT_NEAR(normal.mean, 0.0, 0.01);
  EXPECT_NEAR(normal.variance, 1.0, 0.01);
  const Moments exponential = moments_of([&] { return prng.exponential(3.0); });
  EXPECT_NEAR(exponential.mean, 3.0, 0.03);
  EXPECT_NEAR(exponential.variance, 9.0, 0.2);
  for (const double shape : {0.2, 0.9, 1.0, 4.5}) {
    const Moments gamma = moments_of([&] { return prng.gamma(shape, 2.0); });
    EXPECT_NEAR(gamma.mean, shape * 2.0, 0.02 * shape * 2.0) << shape;
    EXPECT_NEAR(gamma.variance, shape * 4.0, 0.05 * shape * 4.0) << shape;
  }
  const Moments weibull = moments_of([&] { return prng.weibull(1.0, 2.0); });
  EXPECT_NEAR(weibull.mean, 2.0, 0.02);
  EXPECT_NEAR(weibull.variance, 4.0, 0.1);
  // E(min(geometric(1/2), 2)) = 0 * 1/2 + 1 * 1/4 + 2 * 1/4.
  const Moments geometric = moments_of([&] { return static_cast<double>(prng.geometric(0.5, 2)); });
  EXPECT_NEAR(geometric.mean, 0.75, 0.01);
}

// The bytes themselves: whoever changes a distribution changes every seeded result, and shall know
// it.
TEST(Prng, DrawsAreTheSameOnEveryMachine) {
  Prng prng = Prng::stream(1, "pinned");
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto mix = [&hash](double x) {
    hash = (hash ^ std::bit_cast<std::uint64_t>(x)) * 0x100000001B3U;
  };
  for (int i = 0; i < 10'000; ++i) {
    mix(prng.normal());
    mix(prng.gamma(0.3, 1.0));
    mix(prng.gamma(3.0, 1.0));
    mix(prng.weibull(0.7, 1.0));
    mix(prng.lognormal(1.0, 2.0));
    mix(prng.exponential(1.0));
    mix(static_cast<double>(prng.below(1000)));
  }
  EXPECT_EQ(hash, 1216439570567118896U);
}

}  // namespace
}  // namespace packstone::sim
