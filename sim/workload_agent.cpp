// SPDX-License-Identifier: Apache-2.0
#include <packstone/units.hpp>

#include <sim/workload_generators.hpp>
#include <sim/workload_parts.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace packstone::sim {
namespace {

// TraceLab's medians and quantiles, as lognormal parameters: sigma = ln(quantile / median) /
// z(quantile).
constexpr double kAppendMedian = 870.0;
constexpr double kAppendSigma = 0.35;  // most steps append under 1,000 tokens
constexpr double kTailMin = 10'000.0;  // the others append at least this,
constexpr double kTailExcess =
    14'800.0;  // and so much more on average: 70 % of all appended tokens
constexpr double kOutputMedian = 220.0;
constexpr double kOutputSigma = 1.595;  // p90 1,700
constexpr std::int64_t kOutputMax = 32'768;
constexpr double kToolWaitMedian = 0.3;  // between Claude's 0.13 s and Codex' 0.63 s
constexpr double kToolWaitSigma = 2.0;
constexpr double kHumanWaitMedian = 86.0;
constexpr double kHumanWaitSigma = 1.85;  // three of four under 5 minutes
constexpr double kWaitMax = 86'400.0;
constexpr std::int64_t kStartMin = 12'000;
constexpr std::int64_t kStartMax = 32'000;
constexpr std::int64_t kCompactionMin = 64'000;

struct AgentOptions {
  double steps;
  double tail;
  double human;
  double compact;
  std::int64_t context;
  std::int64_t shared;
  std::int64_t groups;
  std::int64_t block;
};

class AgentSessions {
 public:
  AgentSessions(RequestList& list, const AgentOptions& options, std::uint64_t seed)
      : list_(list),
        options_(options),
        lengths_(Prng::stream(seed, "lengths")),
        sessions_(Prng::stream(seed, "sessions")),
        waits_(Prng::stream(seed, "waits")) {}

  // One session from `start_s`, at most `room` requests long.
  void append_session(double start_s, std::int64_t room) {
    const std::int64_t session = next_session_++;
    const std::int64_t steps =
        std::min(room, 1 + static_cast<std::int64_t>(sessions_.exponential(options_.steps)));
    begin_chain(lengths_.between(kStartMin, kStartMax));
    double at_s = start_s;
    for (std::int64_t step = 0; step < steps; ++step) {
      Request request;
      request.session_id = session;
      if (step > 0) {
        const double wait_s = draw_wait();
        request.think_ns = nanos_of(wait_s);
        at_s += wait_s;
        grow();
      }
      request.arrival_ns = nanos_of(at_s);
      request.prompt_tokens = context_;
      request.output_tokens = last_output_ = draw_output();
      emit(request);
    }
  }

 private:
  void begin_chain(std::int64_t context) {
    // Layers of a prompt: one system prompt for all, one of the project, then the session's own.
    const std::int64_t shared_blocks = options_.shared / options_.block;
    const auto group =
        static_cast<std::uint64_t>(sessions_.below(static_cast<std::uint64_t>(options_.groups)));
    chain_.clear();
    for (std::int64_t k = 0; k < shared_blocks; ++k) {
      chain_.push_back(static_cast<std::uint64_t>(k));
    }
    for (std::int64_t k = 0; k < shared_blocks; ++k) {
      chain_.push_back(static_cast<std::uint64_t>(shared_blocks) * (group + 1) +
                       static_cast<std::uint64_t>(k));
    }
    context_ = std::max(context, 2 * options_.shared + 1);
    first_own_id_ = static_cast<std::uint64_t>(shared_blocks * (options_.groups + 1));
  }

  // The prompt of the next step: this one, its output, and what the tool or the person added.
  void grow() {
    const bool tail = lengths_.chance(options_.tail);
    const double appended = tail ? kTailMin + lengths_.exponential(kTailExcess)
                                 : lengths_.lognormal(fixed_log(kAppendMedian), kAppendSigma);
    const std::int64_t grown =
        context_ + last_output_ + std::max<std::int64_t>(1, static_cast<std::int64_t>(appended));
    const std::int64_t summary = lengths_.between(kStartMin, kStartMax);
    const bool may_compact = context_ - summary >= kCompactionMin;
    const bool compacts = sessions_.chance(options_.compact) && may_compact;
    if (!compacts && grown <= options_.context) {
      // The partial last block gets other tokens behind it, so it becomes another block.
      chain_.resize(std::min(chain_.size(), static_cast<std::size_t>(context_ / options_.block)));
      context_ = grown;
      return;
    }
    // A summary takes the place of the history; only the system and project prompts stay.
    const auto layers = static_cast<std::size_t>(2 * (options_.shared / options_.block));
    chain_.resize(std::min(chain_.size(), layers));
    context_ = std::max(summary, 2 * options_.shared + 1);
  }

  std::int64_t draw_output() {
    const double tokens = lengths_.lognormal(fixed_log(kOutputMedian), kOutputSigma);
    return std::clamp<std::int64_t>(std::llround(tokens), 1, kOutputMax);
  }

  double draw_wait() {
    const bool human = waits_.chance(options_.human);
    const double seconds = human ? waits_.lognormal(fixed_log(kHumanWaitMedian), kHumanWaitSigma)
                                 : waits_.lognormal(fixed_log(kToolWaitMedian), kToolWaitSigma);
    return std::min(seconds, kWaitMax);
  }

  void emit(Request& request) {
    const auto blocks = static_cast<std::size_t>(pages_for(request.prompt_tokens, options_.block));
    while (chain_.size() < blocks) chain_.push_back(first_own_id_ + own_ids_++);
    check_block_ids(list_.block_ids.size() + blocks);
    request.first_block = static_cast<std::int64_t>(list_.block_ids.size());
    request.block_count = static_cast<std::int32_t>(blocks);
    list_.block_ids.insert(list_.block_ids.end(), chain_.begin(),
                           chain_.begin() + static_cast<std::ptrdiff_t>(blocks));
    list_.requests.push_back(request);
  }

  RequestList& list_;
  AgentOptions options_;
  Prng lengths_;
  Prng sessions_;
  Prng waits_;
  std::vector<std::uint64_t> chain_;
  std::int64_t context_{0};
  std::int64_t last_output_{0};
  std::int64_t next_session_{0};
  std::uint64_t first_own_id_{0};
  std::uint64_t own_ids_{0};
};

}  // namespace

Workload agent_coding(const Parameters& parameters, std::uint64_t seed) {
  const AgentOptions options{.steps = parameters.number("steps"),
                             .tail = parameters.number("tail"),
                             .human = parameters.number("human"),
                             .compact = parameters.number("compact"),
                             .context = parameters.whole("context"),
                             .shared = parameters.whole("shared"),
                             .groups = parameters.whole("groups"),
                             .block = parameters.whole("block")};
  Prng arrivals = Prng::stream(seed, "arrivals");
  const std::int64_t wanted = parameters.whole("requests");
  const double mean_gap_s = 1.0 / parameters.number("session_rate");
  Workload workload;
  workload.list.block_tokens = static_cast<std::int32_t>(options.block);
  AgentSessions sessions(workload.list, options, seed);
  double now = 0.0;
  while (static_cast<std::int64_t>(workload.list.requests.size()) < wanted) {
    const auto made = static_cast<std::int64_t>(workload.list.requests.size());
    sessions.append_session(now, wanted - made);
    now += arrivals.exponential(mean_gap_s);
  }
  return workload;
}

}  // namespace packstone::sim
