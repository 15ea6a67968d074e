// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the simulator replays: requests, and the list that owns them.
///
/// Times are whole nanoseconds in 64 bits, so that sorting, scaling and writing out are exact and
/// equal on every machine. Token counts are 64-bit and at most kRequestTokensMax, so that the sum
/// of a prompt and its output fits 32 bits.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace packstone::sim {

/// Most tokens of one prompt, and of one output; a trace row past it is a bad row.
inline constexpr std::int64_t kRequestTokensMax = std::int64_t{1} << 30;

inline constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

constexpr double seconds_of(std::int64_t nanos) {
  return static_cast<double>(nanos) * 1e-9;
}

/// One request. Trivially copyable; its prompt's block ids live in the RequestList that holds it.
struct Request {
  /// Position in the list, 0, 1, 2, ...: unique whatever the trace said. A trace that repeats an id
  /// is renamed so.
  std::int64_t id{0};
  /// When it reaches the server, >= 0; the earliest request of a list is at 0. For a closed-loop
  /// turn (think_ns >= 0) this is only its place in the order and its earliest possible time.
  std::int64_t arrival_ns{0};
  std::int64_t prompt_tokens{0};  ///< >= 1
  std::int64_t output_tokens{0};  ///< >= 0; 0 is a prefill-only request
  /// Turns of one session share a number and come in order; -1 when there is none.
  std::int64_t session_id{-1};
  /// Closed loop: the turn arrives this long after the previous turn of its session finished (or
  /// was aborted). Negative: open loop, it arrives at arrival_ns. The first turn of a session is
  /// always open loop.
  std::int64_t think_ns{-1};
  /// The client goes away once this many output tokens were made; 0 is during or right after
  /// prefill, -1 never.
  std::int64_t abort_after_tokens{-1};
  /// The client goes away at this time, wherever the request then is (queued, running; nothing when
  /// it has finished); -1 never.
  std::int64_t abort_at_ns{-1};
  /// The id that the trace gave, -1 when it gave none. Never used to tell requests apart.
  std::int64_t source_id{-1};
  /// block_ids[first_block, first_block + block_count) of the list are the ids of this prompt's
  /// blocks.
  std::int64_t first_block{0};
  std::int32_t block_count{0};
  /// Which client sent it, for workloads with clients; -1 otherwise.
  std::int32_t client{-1};

  [[nodiscard]] double arrival_s() const { return seconds_of(arrival_ns); }
  [[nodiscard]] double think_s() const { return think_ns < 0 ? -1.0 : seconds_of(think_ns); }
  [[nodiscard]] bool closed_loop() const { return think_ns >= 0; }
  friend bool operator==(const Request&, const Request&) = default;
};

/// Requests in arrival order (equal times in the order of the file), with the block ids of their
/// prompts.
///
/// Two prompts share their first n blocks exactly when their first n block ids are equal. Ids cover
/// the prompt only. Block k covers tokens [k * block_tokens, (k + 1) * block_tokens) of the prompt,
/// the last block may be partial. A prompt tail without an id (block_count * block_tokens <
/// prompt_tokens), or a whole prompt without ids, is shared with nobody.
struct RequestList {
  std::vector<Request> requests;
  std::vector<std::uint64_t> block_ids;
  std::int32_t block_tokens{0};  ///< tokens of a block; 0 when no request has ids

  [[nodiscard]] std::span<const std::uint64_t> blocks_of(const Request& request) const {
    return std::span<const std::uint64_t>(block_ids).subspan(
        static_cast<std::size_t>(request.first_block),
        static_cast<std::size_t>(request.block_count));
  }
  friend bool operator==(const RequestList&, const RequestList&) = default;
};

/// Sorts by arrival, equal times kept in order; shifts the earliest arrival to 0; numbers the
/// requests. O(n) when they already are in order.
void normalize(RequestList& list);

/// Divides every arrival, think and abort time by `speed` (2 replays twice as fast).
/// Throws InvalidArgument unless `speed` is finite and positive and every scaled time fits.
void scale_time(RequestList& list, double speed);

/// Adds a uniform [0, tick_ns) to every open-loop arrival, seeded, then sorts again: undoes the
/// rounding of timestamps to a tick, which would otherwise look like bursts. Throws InvalidArgument
/// for a negative tick.
void jitter_arrivals(RequestList& list, std::int64_t tick_ns, std::uint64_t seed);

/// Largest step that divides every gap between arrivals, in nanoseconds: 3 * 10^9 for a trace
/// rounded to 3 s. 0 when all arrivals are equal.
std::int64_t arrival_tick_ns(const RequestList& list);

}  // namespace packstone::sim
