// SPDX-License-Identifier: Apache-2.0
#include <packstone/units.hpp>

#include <sim/workload_generators.hpp>
#include <sim/workload_parts.hpp>
#include <sim/workload_tables.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace packstone::sim {
namespace {

Request request_at(std::int64_t arrival_ns, std::int64_t prompt, std::int64_t output) {
  Request request;
  request.arrival_ns = arrival_ns;
  request.prompt_tokens = std::max<std::int64_t>(prompt, 1);
  request.output_tokens = std::max<std::int64_t>(output, 1);
  return request;
}

// Mean of a table, as at() interpolates it.
double mean_of(const tables::Quantiles& values) {
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const double percent = i < 99 ? 1.0 : std::array{0.5, 0.4, 0.1}[i - 99];
    sum += 0.5 * (values[i] + values[i + 1]) * percent / 100.0;
  }
  return sum;
}

// Gaps whose distribution is a table and whose neighbours are alike: TES (Melamed 1991), a walk
// around the circle of quantiles, which keeps the distribution exact. With chance `renew` the walk
// starts anew.
std::vector<std::int64_t> clustered_arrivals(const tables::Quantiles& gaps_us, double rate,
                                             double renew, std::int64_t count, Prng& prng) {
  constexpr double kStep = 0.05;
  const QuantileTable table(gaps_us);
  const double seconds_per_unit = 1.0 / rate / mean_of(gaps_us);
  std::vector<std::int64_t> times;
  times.reserve(static_cast<std::size_t>(count));
  double place = prng.uniform();
  double now = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    times.push_back(nanos_of(now));
    if (prng.chance(renew)) {
      place = prng.uniform();
    } else {
      place += kStep * (prng.uniform() - 0.5);
      place -= place >= 1.0 ? 1.0 : 0.0;
      place += place < 0.0 ? 1.0 : 0.0;
    }
    now += static_cast<double>(table.at(std::min(place, 0x1.fffffffffffffp-1))) * seconds_per_unit;
  }
  stretch_to_rate(times, rate);
  return times;
}

Workload from_clients(std::span<const ClientProfile> clients, const tables::Quantiles& inputs,
                      const tables::Quantiles& outputs, const Parameters& parameters,
                      std::uint64_t seed) {
  const QuantileTable input(inputs);
  const QuantileTable output(outputs);
  Prng lengths = Prng::stream(seed, "lengths");
  Workload workload;
  const auto arrivals =
      client_arrivals(clients, parameters.number("rate"), parameters.whole("requests"), seed);
  for (const ClientArrival& arrival : arrivals) {
    const std::int64_t prompt = input.draw(lengths);
    workload.list.requests.push_back(request_at(arrival.at_ns, prompt, output.draw(lengths)));
    workload.list.requests.back().client = arrival.client;
  }
  return workload;
}

// New blocks of a turn that continues a chat, at 0, 1, 10, 25, 50, 75, 90, 95, 99, 100 % of the
// Mooncake trace.
std::int64_t draw_new_blocks(Prng& prng) {
  constexpr std::array kPercent{0.0, 1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0};
  constexpr std::array kBlocks{0.0, 1.0, 1.0, 2.0, 2.0, 7.0, 20.0, 29.0, 53.0, 150.0};
  const double percent = 100.0 * prng.uniform();
  std::size_t i = 0;
  while (percent >= kPercent[i + 1]) ++i;
  const double part = (percent - kPercent[i]) / (kPercent[i + 1] - kPercent[i]);
  return std::llround(kBlocks[i] + part * (kBlocks[i + 1] - kBlocks[i]));
}

// Gives the prompts of a chat workload their block ids: block 0 is common to all, and some prompts
// continue an earlier one. Lengths are drawn before, so that sharing does not change their
// distribution; the earlier prompt is chosen for its length among those near the wanted time.
class ChatPrefixes {
 public:
  ChatPrefixes(RequestList& list, std::int64_t block, double continued, double gap_s)
      : list_(list), block_(block), continued_(continued), log_gap_ns_(fixed_log(gap_s * 1e9)) {}

  void assign(Prng& prng) {
    std::int64_t total = 0;
    for (const Request& request : list_.requests) total += pages_for(request.prompt_tokens, block_);
    check_block_ids(static_cast<std::size_t>(total));
    list_.block_ids.reserve(static_cast<std::size_t>(total));
    for (std::size_t i = 0; i < list_.requests.size(); ++i) {
      Request& request = list_.requests[i];
      const std::int64_t blocks = pages_for(request.prompt_tokens, block_);
      std::int64_t parent = -1;
      std::int64_t shared = 0;
      const bool wants = prng.chance(continued_ * (blocks >= kLong ? kLongFactor : kShortFactor));
      const std::int64_t wanted = std::max<std::int64_t>(blocks - draw_new_blocks(prng), 1);
      if (wants && blocks >= 2) parent = choose(i, wanted, prng);
      if (parent >= 0) shared = std::min(kept_of(parent), blocks);
      append(request, blocks, parent, shared);
    }
  }

 private:
  // The standard deviation of ln gap. Mooncake's p90 of 483 s over its median of 123 s gives 1.07;
  // more is drawn, since a chain may have been used again in between, and a gap that reaches before
  // the start is none.
  static constexpr double kGapSigma = 1.25;
  static constexpr std::int64_t kNear = 256;
  // Long prompts are more often a continued chat (in Mooncake those mean 14.0 k tokens, all
  // prompts 12.0 k). The factors also make up for gaps that reach before the start, and for prompts
  // of one block, which cannot continue.
  static constexpr std::int64_t kLong = 14;
  static constexpr double kLongFactor = 1.23;
  static constexpr double kShortFactor = 0.95;

  // The last block of a prompt is partial, so the next turn does not have it.
  [[nodiscard]] std::int64_t kept_of(std::int64_t index) const {
    return list_.requests[static_cast<std::size_t>(index)].block_count - 1;
  }

  std::int64_t choose(std::size_t index, std::int64_t wanted, Prng& prng) const {
    const auto& requests = list_.requests;
    const std::int64_t now = requests[index].arrival_ns;
    const double gap = prng.lognormal(log_gap_ns_, kGapSigma);
    if (gap > static_cast<double>(now)) return -1;
    Request key;
    key.arrival_ns = now - static_cast<std::int64_t>(gap);
    const auto place = std::lower_bound(
        requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(index), key,
        [](const Request& a, const Request& b) { return a.arrival_ns < b.arrival_ns; });
    const std::int64_t middle = place - requests.begin();
    const std::int64_t first = std::max<std::int64_t>(0, middle - kNear);
    const std::int64_t last = std::min(static_cast<std::int64_t>(index), middle + kNear);
    std::int64_t best = -1;
    std::int64_t best_distance = 0;
    for (std::int64_t i = first; i < last; ++i) {
      if (kept_of(i) < 2) continue;
      const std::int64_t distance = std::abs(kept_of(i) - wanted);
      if (best < 0 || distance < best_distance) {
        best = i;
        best_distance = distance;
      }
    }
    return best;
  }

  void append(Request& request, std::int64_t blocks, std::int64_t parent, std::int64_t shared) {
    auto& ids = list_.block_ids;
    request.first_block = static_cast<std::int64_t>(ids.size());
    request.block_count = static_cast<std::int32_t>(blocks);
    for (std::int64_t k = 0; k < blocks; ++k) {
      std::uint64_t id = 0;
      if (k < shared) {
        const Request& old = list_.requests[static_cast<std::size_t>(parent)];
        id = ids[static_cast<std::size_t>(old.first_block + k)];
      } else if (k > 0) {
        id = ++last_id_;
      }
      ids.push_back(id);
    }
  }

  RequestList& list_;
  std::int64_t block_;
  double continued_;
  double log_gap_ns_;
  std::uint64_t last_id_{0};
};

}  // namespace

Workload chat_azure(const Parameters& parameters, std::uint64_t seed) {
  const QuantileTable input(tables::kConvInput);
  const QuantileTable output(tables::kConvOutput);
  Prng arrivals = Prng::stream(seed, "arrivals");
  Prng lengths = Prng::stream(seed, "lengths");
  const DriftingArrivals process{.rate = parameters.number("rate"),
                                 .cv = parameters.number("cv"),
                                 .drift = parameters.number("drift")};
  Workload workload;
  for (const std::int64_t at : drifting_arrivals(process, parameters.whole("requests"), arrivals)) {
    const std::int64_t prompt = input.draw(lengths);
    workload.list.requests.push_back(request_at(at, prompt, output.draw(lengths)));
  }
  return workload;
}

Workload code_azure(const Parameters& parameters, std::uint64_t seed) {
  const QuantileTable input(tables::kCodeInput);
  const QuantileTable output(tables::kCodeOutput);
  Prng arrivals = Prng::stream(seed, "arrivals");
  Prng lengths = Prng::stream(seed, "lengths");
  Workload workload;
  for (const std::int64_t at :
       clustered_arrivals(tables::kCodeGapMicros, parameters.number("rate"),
                          parameters.number("renew"), parameters.whole("requests"), arrivals)) {
    const std::int64_t prompt = input.draw(lengths);
    workload.list.requests.push_back(request_at(at, prompt, output.draw(lengths)));
  }
  return workload;
}

Workload longchat_mooncake(const Parameters& parameters, std::uint64_t seed) {
  const QuantileTable input(tables::kMooncakeInput);
  const QuantileTable output(tables::kMooncakeOutput);
  Prng arrivals = Prng::stream(seed, "arrivals");
  Prng lengths = Prng::stream(seed, "lengths");
  Prng prefixes = Prng::stream(seed, "prefixes");
  const DriftingArrivals process{
      .rate = parameters.number("rate"), .cv = parameters.number("cv"), .drift = 0.06};
  const double tick_ns = parameters.number("tick") * static_cast<double>(kNanosPerSecond);
  const std::int64_t tick = std::max<std::int64_t>(static_cast<std::int64_t>(tick_ns), 1);
  Workload workload;
  for (const std::int64_t at : drifting_arrivals(process, parameters.whole("requests"), arrivals)) {
    const std::int64_t prompt = input.draw(lengths);
    workload.list.requests.push_back(request_at(at - at % tick, prompt, output.draw(lengths)));
  }
  const std::int64_t block = parameters.whole("block");
  workload.list.block_tokens = static_cast<std::int32_t>(block);
  ChatPrefixes(workload.list, block, parameters.number("continue"), parameters.number("gap"))
      .assign(prefixes);
  return workload;
}

Workload reason_r1(const Parameters& parameters, std::uint64_t seed) {
  return from_clients(tables::kR1Clients, tables::kR1Input, tables::kR1Output, parameters, seed);
}

Workload batch_api(const Parameters& parameters, std::uint64_t seed) {
  return from_clients(tables::kLargeClients, tables::kLargeInput, tables::kLargeOutput, parameters,
                      seed);
}

}  // namespace packstone::sim
