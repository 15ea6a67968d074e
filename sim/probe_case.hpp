// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Makes the cases of a study from a churned pool.
///
/// The protocol: the replay is run again up to a sample of its steady state. For a shape of B
/// sequences, one after the other: the oldest live sequences retire until its prompt (seven eighths
/// of the length) fits; the prompt is written in chunks of the token budget, as a prefill would.
/// Then all B decode the rest in lock-step, one token a step, older sequences retiring where pages
/// run short. So each lies where the policy puts it in a pool that was full a moment before. Then
/// the planner straightens these sequences (others move only where they are in the way) until it
/// has nothing left to do.

#include <packstone/kv_manager.hpp>
#include <packstone/prefix_cache.hpp>

#include <sim/bandwidth.hpp>
#include <sim/run.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace packstone::sim {

/// MODEL:B,H,q,L or MODEL:live,H,q. Throws InvalidArgument.
[[nodiscard]] ProbeSpec probe_spec_from(const std::string& text);

/// How far the study of a pool has come; written while cases are made and measured.
struct ProbeProgress {
  std::atomic<int> cases{0};  ///< to be made: those that are alike are made once
  std::atomic<int> made{0};
  std::atomic<std::int64_t> plans{0};
  std::atomic<std::int64_t> moves{0};
  std::atomic<int> figures{0};  ///< cases to be measured or modelled
  std::atomic<int> measured{0};
};

struct ProbeCaseOptions {
  std::int64_t token_budget{8192};
  int stages{4};  ///< most stages of the defrag
  PageCount budget{
      1024};            ///< moves of a plan: larger ones look for longer free runs than there are
  int plans_max{2000};  ///< of the defrag; past it the case is not straight
  bool defrag{true};
  bool reclaim{false};  ///< plan for memory given back too
  ProbeProgress* progress{nullptr};
};

/// Places the shape's sequences in the manager; `live` are its sequences, oldest first, of which
/// those that made room are finished and taken off. Nothing when the pool is too small for them
/// even when all of `live` have gone; the manager is then as it came out.
[[nodiscard]] std::optional<std::vector<SeqId>> place_sequences(KvManager& kv,
                                                                std::vector<SeqId>& live,
                                                                const ProbeShape& shape,
                                                                std::int64_t token_budget);

/// The case of a manager whose sequences `live` are, oldest first: places, then plans on the
/// manager itself. Nothing when the shape does not fit.
/// @param cache  told of moves; may be nullptr.
[[nodiscard]] std::optional<ProbeCase> make_case(KvManager& kv, PrefixCache* cache,
                                                 std::vector<SeqId> live, const ProbeSpec& spec,
                                                 const ProbeCaseOptions& options);

/// Whether the specs ask for the same sequences in the same pool, so that one case may do for both:
/// the model's own geometry counts only in what is given back, the query tokens of live sequences
/// only in which of them are too short.
[[nodiscard]] bool share_a_case(const ProbeSpec& a, const ProbeSpec& b);

/// Whether the case, under another spec, is what `make_case` would make for that spec: they share a
/// case and, of live sequences, none is too short for it.
[[nodiscard]] bool serves(const ProbeCase& made, const ProbeSpec& spec);

/// Step of the last steady sample of a run, where its pool is probed.
[[nodiscard]] std::int64_t checkpoint_step(const RunResult& result);

}  // namespace packstone::sim
