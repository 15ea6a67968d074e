// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/prng.hpp>
#include <sim/request.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace packstone::sim {
namespace {

// Scaled times stay below this, so that sums of a few of them do not overflow.
constexpr double kScaledTimeMax = 4.0e18;

bool before(const Request& a, const Request& b) {
  return a.arrival_ns < b.arrival_ns;
}

bool blocks_in_order(const RequestList& list) {
  std::int64_t next = 0;
  for (const Request& request : list.requests) {
    if (request.first_block != next) return false;
    next += request.block_count;
  }
  return next == static_cast<std::int64_t>(list.block_ids.size());
}

void pack_blocks(RequestList& list) {
  std::vector<std::uint64_t> packed;
  packed.reserve(list.block_ids.size());
  for (Request& request : list.requests) {
    const auto blocks = list.blocks_of(request);
    request.first_block = static_cast<std::int64_t>(packed.size());
    packed.insert(packed.end(), blocks.begin(), blocks.end());
  }
  list.block_ids = std::move(packed);
}

}  // namespace

void normalize(RequestList& list) {
  auto& requests = list.requests;
  if (!std::is_sorted(requests.begin(), requests.end(), before)) {
    std::stable_sort(requests.begin(), requests.end(), before);
  }
  if (!blocks_in_order(list)) pack_blocks(list);
  if (list.block_ids.empty()) list.block_tokens = 0;
  const std::int64_t base = requests.empty() ? 0 : requests.front().arrival_ns;
  std::int64_t id = 0;
  for (Request& request : requests) {
    request.id = id++;
    request.arrival_ns -= base;
    if (request.abort_at_ns >= 0) {
      request.abort_at_ns = std::max<std::int64_t>(0, request.abort_at_ns - base);
    }
  }
}

void scale_time(RequestList& list, double speed) {
  if (!std::isfinite(speed) || speed <= 0.0) {
    throw InvalidArgument(fmt::format("speed is {}, but must be finite and above 0", speed));
  }
  if (speed == 1.0) return;
  const auto scaled = [speed](std::int64_t nanos) { return static_cast<double>(nanos) / speed; };
  for (const Request& request : list.requests) {
    const auto latest = std::max({request.arrival_ns, request.think_ns, request.abort_at_ns});
    if (scaled(latest) > kScaledTimeMax) {
      throw InvalidArgument(fmt::format("speed {} makes request {} arrive later than {} seconds",
                                        speed, request.id, kScaledTimeMax * 1e-9));
    }
  }
  for (Request& request : list.requests) {
    request.arrival_ns = std::llround(scaled(request.arrival_ns));
    if (request.abort_at_ns >= 0) request.abort_at_ns = std::llround(scaled(request.abort_at_ns));
    if (request.closed_loop()) request.think_ns = std::llround(scaled(request.think_ns));
  }
}

void jitter_arrivals(RequestList& list, std::int64_t tick_ns, std::uint64_t seed) {
  if (tick_ns < 0) {
    throw InvalidArgument(fmt::format("jitter of {} ns, but must not be negative", tick_ns));
  }
  if (tick_ns == 0) return;
  Prng prng = Prng::stream(seed, "jitter");
  // A closed-loop turn moves with the last open-loop turn of its session, so that it stays behind
  // it.
  std::unordered_map<std::int64_t, std::int64_t> shifts;
  for (Request& request : list.requests) {
    if (request.closed_loop()) {
      request.arrival_ns += shifts[request.session_id];
      continue;
    }
    const std::int64_t shift = prng.between(0, tick_ns - 1);
    request.arrival_ns += shift;
    if (request.session_id >= 0) shifts[request.session_id] = shift;
  }
  normalize(list);
}

std::int64_t arrival_tick_ns(const RequestList& list) {
  std::int64_t tick = 0;
  for (std::size_t i = 1; i < list.requests.size() && tick != 1; ++i) {
    tick = std::gcd(tick, list.requests[i].arrival_ns - list.requests[i - 1].arrival_ns);
  }
  return tick;
}

}  // namespace packstone::sim
