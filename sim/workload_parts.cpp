// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/workload_parts.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace packstone::sim {
namespace {

constexpr double kWindowSeconds = 600.0;

// ln G(x) for x >= 1: Stirling's series after stepping up to x >= 10, where its sixth term is below
// 1e-13.
double log_gamma(double x) {
  double shift = 0.0;
  while (x < 10.0) {
    shift -= fixed_log(x);
    x += 1.0;
  }
  const double inverse = 1.0 / (x * x);
  const double series =
      (1.0 / 12 - inverse * (1.0 / 360 - inverse * (1.0 / 1260 - inverse * (1.0 / 1680)))) / x;
  constexpr double kHalfLogTwoPi = 0.91893853320467274178;
  return shift + (x - 0.5) * fixed_log(x) - x + kHalfLogTwoPi + series;
}

double weibull_cv(double shape) {
  const double log_ratio = log_gamma(1.0 + 2.0 / shape) - 2.0 * log_gamma(1.0 + 1.0 / shape);
  return std::sqrt(std::max(0.0, fixed_exp(log_ratio) - 1.0));
}

// Times of one client in [0, until) seconds.
void append_client(const ClientProfile& client, std::int32_t number, double rate, double until,
                   std::uint64_t seed, std::vector<ClientArrival>& out) {
  Prng prng = Prng::stream(seed, fmt::format("client-{}", number));
  const WeibullShape weibull = weibull_for_cv(client.cv);
  const double mean_gap = 1.0 / rate;
  // From a random phase before 0, so that clients do not all begin with a burst at 0.
  double now = -std::min(kWindowSeconds, 0.5 * until) * prng.uniform();
  double window_end = now;
  bool use_gamma = true;
  while (now < until) {
    if (now >= window_end) {
      use_gamma = prng.chance(client.gamma_share);
      window_end = now + kWindowSeconds;
    }
    const double gap =
        use_gamma ? gamma_gap(prng, client.cv) : prng.weibull(weibull.shape, weibull.scale);
    now += gap * mean_gap;
    if (now >= 0.0 && now < until) out.push_back({nanos_of(now), number});
  }
}

}  // namespace

void check_block_ids(std::size_t count) {
  constexpr std::size_t kBlockIdsMax = std::size_t{1} << 28U;
  if (count > kBlockIdsMax) {
    throw InvalidArgument(
        fmt::format("the workload needs more than {} block ids: ask for fewer requests, or for a "
                    "larger block",
                    kBlockIdsMax));
  }
}

std::int64_t nanos_of(double seconds) {
  constexpr double kSecondsMax = 4e9;
  if (!(seconds <= kSecondsMax)) {
    throw InvalidArgument(
        "the workload lasts over 126 years: ask for a higher rate or fewer requests");
  }
  return static_cast<std::int64_t>(seconds * static_cast<double>(kNanosPerSecond));
}

QuantileTable::QuantileTable(std::span<const std::int32_t> values) : values_(values) {
  PACKSTONE_ASSERT(values.size() == kQuantilePoints);
}

std::int64_t QuantileTable::at(double u) const {
  // Percent positions: 0..99 by ones, then 99.5, 99.9 and 100.
  const double percent = u * 100.0;
  std::size_t left = static_cast<std::size_t>(percent);
  double from = static_cast<double>(left);
  double to = from + 1.0;
  if (percent >= 99.9) {
    left = 101;
    from = 99.9;
    to = 100.0;
  } else if (percent >= 99.5) {
    left = 100;
    from = 99.5;
    to = 99.9;
  } else if (percent >= 99.0) {
    to = 99.5;
  }
  const double low = values_[left];
  const double high = values_[left + 1];
  return std::llround(low + (high - low) * (percent - from) / (to - from));
}

LengthHistogram::LengthHistogram(const std::vector<Bucket>& buckets) {
  double sum = 0.0;
  for (const Bucket& bucket : buckets) {
    PACKSTONE_ASSERT(bucket.low >= 0.0 && bucket.low < bucket.high && bucket.weight >= 0.0);
    sum += bucket.weight;
    auto low = static_cast<std::int64_t>(std::ceil(bucket.low));
    auto high = static_cast<std::int64_t>(std::ceil(bucket.high)) - 1;
    // A bucket narrower than a token that holds no whole number stands for the nearest one.
    if (high < low) low = high = std::llround(0.5 * (bucket.low + bucket.high));
    steps_.push_back({sum, std::max<std::int64_t>(low, 1), std::max<std::int64_t>(high, 1)});
  }
  PACKSTONE_ASSERT(sum > 0.0);
  for (Step& step : steps_) step.cumulative /= sum;
  steps_.back().cumulative = 1.0;
}

std::int64_t LengthHistogram::draw(Prng& prng) const {
  const double u = prng.uniform();
  const auto step = std::upper_bound(steps_.begin(), steps_.end() - 1, u,
                                     [](double x, const Step& s) { return x < s.cumulative; });
  return prng.between(step->low, step->high);
}

WeibullShape weibull_for_cv(double cv) {
  double low = 0.1;
  double high = 60.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    // The CV falls with the shape.
    (weibull_cv(middle) > cv ? low : high) = middle;
  }
  return {low, fixed_exp(-log_gamma(1.0 + 1.0 / low))};
}

std::vector<std::int64_t> drifting_arrivals(const DriftingArrivals& process, std::int64_t count,
                                            Prng& prng) {
  // Fails now rather than after the work, when the whole would last too long.
  (void)nanos_of(static_cast<double>(count) / process.rate);
  // The level of the drift is held for a step; at rates under one a step, for a mean gap.
  const double step_s = std::max(10.0, 1.0 / process.rate);
  const double keep = fixed_exp(-step_s / process.drift_s);
  const double fresh = std::sqrt(1.0 - keep * keep);
  std::vector<std::int64_t> times;
  times.reserve(static_cast<std::size_t>(count));
  double level = prng.normal();
  double step_end = step_s;
  double now = 0.0;
  const auto mean_gap = [&] {
    // The mean of a lognormal factor is e^(s^2/2); dividing it out keeps the mean rate.
    return fixed_exp(0.5 * process.drift * process.drift - process.drift * level) / process.rate;
  };
  double gap = mean_gap();
  while (static_cast<std::int64_t>(times.size()) < count) {
    times.push_back(nanos_of(now));
    now += gamma_gap(prng, process.cv) * gap;
    while (now >= step_end) {
      level = keep * level + fresh * prng.normal();
      step_end += step_s;
      gap = mean_gap();
    }
  }
  stretch_to_rate(times, process.rate);
  return times;
}

void stretch_to_rate(std::vector<std::int64_t>& times, double rate) {
  if (times.size() < 2 || times.back() == 0) return;
  const std::int64_t wanted = nanos_of(static_cast<double>(times.size() - 1) / rate);
  const double factor = static_cast<double>(wanted) / static_cast<double>(times.back());
  for (std::int64_t& time : times) {
    time = static_cast<std::int64_t>(static_cast<double>(time) * factor);
  }
}

std::vector<ClientArrival> client_arrivals(std::span<const ClientProfile> clients, double rate,
                                           std::int64_t count, std::uint64_t seed) {
  double shares = 0.0;
  for (const ClientProfile& client : clients) shares += client.share;
  double until = 1.1 * static_cast<double>(count + 1) / rate;
  std::vector<ClientArrival> arrivals;
  // Bursty clients may fall short of their mean; the same streams over a longer time only add to
  // the end.
  for (bool enough = false; !enough; until *= 2.0) {
    arrivals.clear();
    std::int32_t number = 0;
    for (const ClientProfile& client : clients) {
      if (client.share > 0.0) {
        append_client(client, number, rate * client.share / shares, until, seed, arrivals);
      }
      ++number;
    }
    enough = static_cast<std::int64_t>(arrivals.size()) >= count;
  }
  std::stable_sort(
      arrivals.begin(), arrivals.end(),
      [](const ClientArrival& a, const ClientArrival& b) { return a.at_ns < b.at_ns; });
  arrivals.resize(static_cast<std::size_t>(count));
  return arrivals;
}

}  // namespace packstone::sim
