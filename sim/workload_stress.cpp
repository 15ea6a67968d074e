// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/workload_generators.hpp>
#include <sim/workload_parts.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace packstone::sim {
namespace {

SpeculationMode mode_from(const std::string& word) {
  if (word == "rollback") return SpeculationMode::rollback;
  if (word == "reserve-tail") return SpeculationMode::reserve_tail;
  PACKSTONE_ASSERT(word == "tree-front");
  return SpeculationMode::tree_front;
}

std::int32_t concurrency_of(double requests) {
  constexpr double kMax = 1e6;
  return static_cast<std::int32_t>(std::clamp(std::floor(requests), 1.0, kMax));
}

// Even within mean * (1 +- spread), at least 1.
std::int64_t even_length(Prng& prng, std::int64_t mean, double spread) {
  const auto reach = static_cast<std::int64_t>(static_cast<double>(mean) * spread);
  return std::max<std::int64_t>(1, prng.between(mean - reach, mean + reach));
}

}  // namespace

Workload spec_tree(const Parameters& parameters, std::uint64_t seed) {
  Workload workload = make_workload(
      fmt::format("{}:requests={}", parameters.word("base"), parameters.whole("requests")), seed);
  workload.hints.speculation = {
      .mode = mode_from(parameters.word("mode")),
      .draft_tokens = static_cast<std::int32_t>(parameters.whole("draft")),
      .acceptance = parameters.number("accept"),
      .accepted_max = static_cast<std::int32_t>(parameters.whole("cap"))};
  return workload;
}

Workload abort_storm(const Parameters& parameters, std::uint64_t seed) {
  Workload workload =
      make_workload(fmt::format("chat-azure:requests={},rate={}", parameters.whole("requests"),
                                parameters.number("rate")),
                    seed);
  Prng aborts = Prng::stream(seed, "aborts");
  Prng storm = Prng::stream(seed, "storm");
  auto& requests = workload.list.requests;
  const double span = static_cast<double>(requests.back().arrival_ns);
  const auto storm_ns = static_cast<std::int64_t>(span * parameters.number("storm_at"));
  for (Request& request : requests) {
    // Every draw is made whatever the outcome, so that one parameter does not shift the other's
    // draws.
    const std::int64_t after = aborts.between(0, request.output_tokens - 1);
    if (aborts.chance(parameters.number("abort"))) request.abort_after_tokens = after;
    const bool struck = storm.chance(parameters.number("storm"));
    if (struck && request.arrival_ns <= storm_ns) request.abort_at_ns = storm_ns;
  }
  return workload;
}

Workload steady_fill(const Parameters& parameters, std::uint64_t seed) {
  Prng lengths = Prng::stream(seed, "lengths");
  const std::int64_t input = parameters.whole("input");
  const std::int64_t output = parameters.whole("output");
  const double spread = parameters.number("spread");
  Workload workload;
  for (std::int64_t i = 0; i < parameters.whole("requests"); ++i) {
    Request request;
    request.prompt_tokens = even_length(lengths, input, spread);
    request.output_tokens = even_length(lengths, output, spread);
    workload.list.requests.push_back(request);
  }
  // A running request holds its prompt and, over its life, half of its output on average.
  const double held = static_cast<double>(input) + 0.5 * static_cast<double>(output);
  const std::int64_t pool = parameters.whole("pool_tokens");
  const double live = parameters.number("occupancy") * static_cast<double>(pool);
  workload.hints.pool_tokens = pool;
  workload.hints.concurrency = concurrency_of(live / held);
  return workload;
}

Workload adversary(const Parameters& parameters, std::uint64_t /*seed*/) {
  const std::int64_t pool = parameters.whole("pool_tokens");
  const std::int64_t unit = parameters.whole("unit");
  const std::int64_t hold = parameters.whole("hold");
  const std::int64_t phases =
      parameters.word("shape") == "doubling" ? parameters.whole("phases") : 1;
  const std::int64_t wanted = parameters.whole("requests");
  Workload workload;
  auto& requests = workload.list.requests;
  std::int64_t phase = 0;
  while (static_cast<std::int64_t>(requests.size()) < wanted) {
    // One phase asks for as much as the pool holds; no request may be larger than a quarter of it.
    const std::int64_t size =
        std::clamp<std::int64_t>(unit << phase, 1, std::max<std::int64_t>(pool / 4, 1));
    const std::int64_t count = std::max<std::int64_t>(pool / size, 2);
    for (std::int64_t i = 0; i < count && static_cast<std::int64_t>(requests.size()) < wanted;
         ++i) {
      Request request;
      request.prompt_tokens = std::min(size, kRequestTokensMax);
      request.output_tokens = i % 2 == 0 ? 1 : hold;
      requests.push_back(request);
    }
    phase = (phase + 1) % phases;
  }
  workload.hints.pool_tokens = pool;
  workload.hints.concurrency =
      concurrency_of(static_cast<double>(pool) / static_cast<double>(unit));
  return workload;
}

}  // namespace packstone::sim
