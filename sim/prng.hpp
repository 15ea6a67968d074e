// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Random numbers with fixed bytes: the same seed gives the same draws with every compiler,
/// standard library and processor. The standard's distributions are not specified to the bit, and
/// the last bit of a C library's `log` differs between machines, so both are written out here. One
/// stream a subsystem (arrivals, lengths, aborts, ...): drawing more in one does not shift another.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace packstone::sim {

/// Natural logarithm of a positive finite normal number, within 2 ulp; built of IEEE basic
/// operations only.
[[nodiscard]] inline double fixed_log(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2.0;
    --exponent;
  }
  // ln m = 2 artanh s; |s| < 0.172, so eleven terms reach 1e-17.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double series = 0.0;
  for (int k = 21; k >= 3; k -= 2) series = (series + 1.0 / k) * square;
  const double e = exponent;
  return e * kLn2High + (2.0 * s + (2.0 * s * series + e * kLn2Low));
}

/// e^x for any finite x; 0 below -745, infinity above 709.7. Basic operations only.
[[nodiscard]] inline double fixed_exp(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  if (x < -745.0) return 0.0;
  if (x > 709.78) return HUGE_VAL;
  const double k = std::floor(x * 1.44269504088896338700 + 0.5);
  const double rest = (x - k * kLn2High) - k * kLn2Low;
  double series = 1.0;
  for (int n = 16; n >= 1; --n) series = 1.0 + series * rest / n;
  return std::ldexp(series, static_cast<int>(k));
}

/// splitmix64 of Steele, Lea and Flood (OOPSLA 2014): turns a seed into well-mixed words.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }

 private:
  std::uint64_t state_;
};

/// xoshiro256** 1.0 of Blackman and Vigna (2018), seeded through splitmix64.
class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) {
    SplitMix64 mixer(seed);
    for (std::uint64_t& word : state_) word = mixer.next();
  }

  /// The stream `name` of `seed`: FNV-1a of the name, mixed into the seed.
  [[nodiscard]] static constexpr Prng stream(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const char c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
    }
    return Prng(SplitMix64(seed).next() ^ hash);
  }

  constexpr std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5U, 7) * 9U;
    const std::uint64_t shifted = state_[1] << 17U;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// In [0, 1): 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  /// In (0, 1): never 0, for logarithms.
  constexpr double uniform_open() { return (static_cast<double>(next() >> 12U) + 0.5) * 0x1.0p-52; }

  /// In [0, bound), unbiased (Lemire 2019, with rejection). Requires bound >= 1.
  constexpr std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t limit = (0U - bound) % bound;
    while (true) {
      const std::uint64_t draw = next();
      if (draw >= limit) return draw % bound;
    }
  }
  /// In [low, high], both included. Requires low <= high.
  constexpr std::int64_t between(std::int64_t low, std::int64_t high) {
    const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    if (span == ~std::uint64_t{0}) return static_cast<std::int64_t>(next());
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + below(span + 1U));
  }
  constexpr bool chance(double probability) { return uniform() < probability; }

  double exponential(double mean) { return -mean * fixed_log(uniform_open()); }

  /// Standard normal, by the polar method of Marsaglia; the second of each pair is dropped, to keep
  /// no state.
  double normal() {
    while (true) {
      const double u = 2.0 * uniform() - 1.0;
      const double v = 2.0 * uniform() - 1.0;
      const double s = u * u + v * v;
      if (s > 0.0 && s < 1.0) return u * std::sqrt(-2.0 * fixed_log(s) / s);
    }
  }
  double lognormal(double mu, double sigma) { return fixed_exp(mu + sigma * normal()); }

  /// Gamma with mean shape * scale (Marsaglia and Tsang 2000; below shape 1 by their power of a
  /// uniform). Requires shape > 0.
  double gamma(double shape, double scale) {
    if (shape < 1.0) {
      const double boost = fixed_exp(fixed_log(uniform_open()) / shape);
      return gamma(shape + 1.0, scale) * boost;
    }
    const double d = shape - 1.0 / 3.0;
    const double c = 1.0 / std::sqrt(9.0 * d);
    while (true) {
      const double x = normal();
      const double t = 1.0 + c * x;
      if (t <= 0.0) continue;
      const double v = t * t * t;
      if (fixed_log(uniform_open()) < 0.5 * x * x + d - d * v + d * fixed_log(v)) {
        return d * v * scale;
      }
    }
  }

  /// Weibull with scale and shape: scale * (-ln u)^(1 / shape).
  double weibull(double shape, double scale) {
    const double e = exponential(1.0);
    return scale * fixed_exp(fixed_log(e) / shape);
  }

  /// Successes before the first failure, at most `most`: P(n) ~ q^n.
  constexpr std::int64_t geometric(double q, std::int64_t most) {
    std::int64_t n = 0;
    while (n < most && uniform() < q) ++n;
    return n;
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace packstone::sim
