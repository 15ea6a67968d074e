// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The pieces that workloads are made of: lengths from quantile tables or histograms, and arrival
/// processes.

#include <sim/prng.hpp>
#include <sim/request.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace packstone::sim {

/// Lengths by their inverse distribution: values at 0, 1, ..., 99, 99.5, 99.9 and 100 %, linear in
/// between. The two extra points keep a single longest request from stretching the whole last
/// percent.
inline constexpr int kQuantilePoints = 103;

class QuantileTable {
 public:
  /// `values` holds kQuantilePoints ascending lengths and outlives the table.
  explicit QuantileTable(std::span<const std::int32_t> values);
  /// The length at `u` of [0, 1), rounded.
  [[nodiscard]] std::int64_t at(double u) const;
  std::int64_t draw(Prng& prng) const { return at(prng.uniform()); }

 private:
  std::span<const std::int32_t> values_;
};

/// Lengths by buckets [low, high) with weights; equally likely within a bucket.
class LengthHistogram {
 public:
  struct Bucket {
    double low;
    double high;
    double weight;
  };
  /// Requires 0 <= low < high <= kRequestTokensMax, weights >= 0 and finite, and a positive sum.
  explicit LengthHistogram(const std::vector<Bucket>& buckets);
  std::int64_t draw(Prng& prng) const;

 private:
  struct Step {
    double cumulative;
    std::int64_t low;
    std::int64_t high;  ///< included
  };
  std::vector<Step> steps_;
};

/// Throws InvalidArgument when a workload would hold more block ids than fit (2^28, as for traces).
void check_block_ids(std::size_t count);

/// Seconds as whole nanoseconds. Throws InvalidArgument when they do not fit (126 years), which a
/// low rate and many requests can come to.
[[nodiscard]] std::int64_t nanos_of(double seconds);

/// Shape of the Weibull distribution whose coefficient of variation is `cv`; its scale for mean 1
/// comes with it.
struct WeibullShape {
  double shape;
  double scale;
};
/// Bisection on CV^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1. Requires 0.05 <= cv <= 400.
[[nodiscard]] WeibullShape weibull_for_cv(double cv);

/// A gap with mean 1 and the given CV: gamma with shape 1 / cv^2, as Vidur and ServeGen have it.
[[nodiscard]] inline double gamma_gap(Prng& prng, double cv) {
  const double shape = 1.0 / (cv * cv);
  return prng.gamma(shape, 1.0 / shape);
}

/// Renewal arrivals with gamma gaps, whose rate drifts: ln of the rate is a first-order
/// autoregression with the given standard deviation and correlation time. Drift is what makes
/// counts over a minute vary more than gaps do.
struct DriftingArrivals {
  double rate;            ///< mean a second
  double cv;              ///< of the gaps, at constant rate
  double drift{0.0};      ///< standard deviation of ln rate
  double drift_s{300.0};  ///< correlation time
};
[[nodiscard]] std::vector<std::int64_t> drifting_arrivals(const DriftingArrivals& process,
                                                          std::int64_t count, Prng& prng);

/// Stretches ascending times from 0 so that their mean gap is 1 / rate: a bursty process misses its
/// mean rate by tens of percent over one run, and the load of a run should not depend on its seed.
void stretch_to_rate(std::vector<std::int64_t>& times, double rate);

/// A client of a mixed workload.
struct ClientProfile {
  double share;        ///< of all requests; shares need not add up to 1
  double cv;           ///< of its gaps
  double gamma_share;  ///< share of 600 s windows with gamma gaps; the others have Weibull gaps
};
struct ClientArrival {
  std::int64_t at_ns;
  std::int32_t client;
};
/// The first `count` arrivals of all clients together, in order; `rate` is their sum a second. Each
/// client has its own random stream (ServeGen's per-client composition).
[[nodiscard]] std::vector<ClientArrival> client_arrivals(std::span<const ClientProfile> clients,
                                                         double rate, std::int64_t count,
                                                         std::uint64_t seed);

}  // namespace packstone::sim
