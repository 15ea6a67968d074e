// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A model of a server's scheduler that drives a real KvManager.
///
/// A step is one forward pass of continuous batching with chunked prefill, in the order of vLLM v1:
///   1. every running sequence whose prompt is done decodes one token;
///   2. prompts under way get what is left of the token budget, in the order of admission;
///   3. waiting requests are admitted first come, first served, while there is a place, budget, and
///      room for the whole prompt above the watermark. The first that does not fit stops the rest.
/// When a decode or a prefill runs short of pages the newest running request is preempted: all its
/// pages go back, and it waits at the head of the queue to be prefilled again, the tokens that it
/// had made included. A request that could never fit into the pool is refused on arrival.
///
/// With a prefix cache a prompt starts with the pages found, and pages of the cache that nobody
/// uses are evicted before a request is preempted. With speculation a decode step reserves the
/// drafts of every sequence and commits what is accepted.
///
/// Output lengths are not known to a server: the manager is told the prompt's length only.
///
/// Time is modelled, in whole nanoseconds (StepTime), and decides nothing but the arrivals of
/// Arrivals::trace, think times, and aborts by time.

#include <packstone/kv_manager.hpp>

#include <sim/drafting.hpp>
#include <sim/request.hpp>
#include <sim/reuse.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

namespace packstone::sim {

enum class Arrivals : std::uint8_t {
  backlog,  ///< every request waits from the start, in order: the pool is always as full as it gets
  trace,    ///< a request arrives at its time
};

/// Modelled duration of a step; round figures for a DeepSeek-class model on an H200-class server.
struct StepTime {
  std::int64_t fixed_ns{10'000'000};         ///< launch, weights
  std::int64_t prefill_token_ns{40'000};     ///< 25,000 prompt tokens a second
  std::int64_t decode_context_token_ns{17};  ///< 61 layers x 1,152 B at 4.2 TB/s
};

struct SchedulerOptions {
  std::int32_t concurrency{128};    ///< most running requests, >= 1
  std::int64_t token_budget{8192};  ///< most tokens a step, >= concurrency or it starves prefills
  double watermark{0.01};           ///< share of the pool that admission leaves free
  Arrivals arrivals{Arrivals::backlog};
  StepTime time{};
};

enum class Outcome : std::uint8_t { finished, aborted, refused };
const char* to_string(Outcome outcome);

/// What became of a request.
struct Retired {
  std::int64_t request{0};  ///< index in the list
  Outcome outcome{Outcome::finished};
  std::int64_t arrival_ns{0};    ///< when it could first run
  std::int64_t admitted_ns{-1};  ///< first time; -1 never
  std::int64_t first_token_ns{-1};
  std::int64_t finished_ns{0};
  TokenCount generated{0};
  TokenCount cached{0};  ///< prompt tokens found in the prefix cache, first admission
  std::int32_t preemptions{0};
  TokenCount prefilled{0};  ///< of the tokens it holds, those a prefill wrote
  SeqId seq{};              ///< its sequence, still live during the call; none if never admitted
};

struct SchedulerCounters {
  std::int64_t steps{0};
  std::int64_t tokens_written{0};   ///< slots filled, recomputation after preemption included
  std::int64_t tokens_released{0};  ///< slots given back
  std::int64_t tokens_recomputed{0};
  std::int64_t admitted{0};  ///< admissions, those after a preemption included
  std::int64_t finished{0};
  std::int64_t aborted{0};
  std::int64_t refused{0};
  std::int64_t preemptions{0};
  std::int64_t alloc_fail_capacity{0};  ///< calls of the manager that came back short of pages
  std::int64_t running_max{0};
  /// tokens_written when the last waiting request was admitted: from here on the pool drains.
  std::int64_t drained_at{-1};
  [[nodiscard]] std::int64_t retired() const { return finished + aborted + refused; }
};

/// Optional parts; nullptr is off. They must outlive the scheduler.
struct SchedulerParts {
  PrefixReuse* reuse{nullptr};
  Drafting* drafting{nullptr};
};

class Scheduler {
 public:
  /// @param on_retire  called once for each request, before its pages go back; may be empty.
  /// The list and the manager must outlive the scheduler. Throws InvalidArgument for bad options.
  Scheduler(const RequestList& list, const SchedulerOptions& options, KvManager& kv,
            std::function<void(const Retired&)> on_retire = {}, SchedulerParts parts = {});

  /// Runs one step. False, and nothing done, once every request has retired.
  bool step();

  [[nodiscard]] const SchedulerCounters& counters() const { return counters_; }
  [[nodiscard]] std::int64_t now_ns() const { return now_; }
  /// A running request.
  struct Active {
    std::int64_t request{0};
    SeqId seq{};
    TokenCount length{0};          ///< tokens written
    TokenCount prefill_target{0};  ///< prompt, and what it had generated before a preemption
    TokenCount generated{0};
    TokenCount target{0};       ///< output tokens after which it ends
    std::int32_t progress{-1};  ///< index of its record while it waits again, and runs
    TokenCount cached{0};       ///< tokens that came with the shared prefix
    std::optional<PrefixLock> lock{};
    [[nodiscard]] bool prefilling() const { return length < prefill_target; }
  };
  /// In order of admission.
  [[nodiscard]] std::span<const Active> running() const { return running_; }

 private:
  /// What outlives a preemption.
  struct Progress {
    std::int64_t arrival_ns{0};
    std::int64_t admitted_ns{-1};
    std::int64_t first_token_ns{-1};
    TokenCount generated{0};
    TokenCount cached{0};
    std::int32_t preemptions{0};
  };
  struct Waiting {
    std::int64_t request{0};
    std::int32_t progress{-1};  ///< -1 until it has been admitted once
    std::int64_t since_ns{0};
  };
  static constexpr std::int64_t kNeverNs = std::numeric_limits<std::int64_t>::max();
  using Timed = std::pair<std::int64_t, std::int64_t>;  // time, request
  using Earliest = std::priority_queue<Timed, std::vector<Timed>, std::greater<>>;

  [[nodiscard]] TokenCount target_of(const Request& request) const;
  /// The request whose turn it is, or none by now.
  [[nodiscard]] std::optional<Waiting> head();
  void pop_head(const Waiting& waiting);
  [[nodiscard]] std::int64_t next_event_ns() const;

  void abort_by_time();
  void rebuild_decoding();
  [[nodiscard]] PageCount promised_pages() const;
  bool admit_head(const Waiting& waiting, PageCount& promised);
  void decode_all();
  [[nodiscard]] Status decode_batch();
  void grow_by_drafts();
  void give_back(Active& active);
  /// Evicts from the prefix cache towards `wanted` available pages; else preempts.
  void relieve(PageCount wanted);
  [[nodiscard]] bool can_take(const Request& request, TokenCount prefill, PageCount promised);
  void continue_prefills();
  void admit();
  void finish_ended();
  void preempt_newest();
  void retire(Active& active, Outcome outcome);
  void retire_waiting(const Waiting& waiting, Outcome outcome);
  void release_next_turn(std::int64_t request);
  std::int32_t new_progress();

  const RequestList& list_;
  SchedulerOptions options_;
  KvManager& kv_;
  std::function<void(const Retired&)> on_retire_;
  SchedulerParts parts_;
  PageCount watermark_pages_;

  std::vector<Active> running_;
  std::vector<SeqId> decoding_;    // scratch of decode_all
  std::vector<TokenCount> left_;   // scratch of speculation: tokens that each may make
  std::vector<TokenCount> grown_;  // scratch of speculation
  std::vector<Growth> growths_;    // scratch of prefills
  bool batch_changed_{true};       // decoding_ is out of date
  std::int64_t budget_{0};         // tokens left in this step
  std::int64_t prefilled_in_step_{0};
  TokenCount decoding_context_{0};  // sum of lengths of decoding requests
  bool preempted_in_step_{false};

  std::size_t cursor_{0};                // next open-loop request of the list
  std::vector<Waiting> preempted_;       // stack: the one preempted last is next, as in vLLM
  Earliest released_;                    // closed-loop turns by arrival
  std::vector<std::int64_t> next_turn_;  // [requests], the turn after it in its session, or -1
  std::vector<bool> later_turn_;         // [requests], arrives when the turn before it ends
  Earliest aborts_;                      // running requests that a client leaves, by time
  std::vector<Progress> progress_;
  std::vector<std::int32_t> free_progress_;
  std::int64_t now_{0};
  SchedulerCounters counters_;
};

}  // namespace packstone::sim
