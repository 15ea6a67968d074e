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

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace packstone::sim {

/// MODEL:B,H,q,L or MODEL:live,H,q. Throws InvalidArgument.
[[nodiscard]] ProbeSpec probe_spec_from(const std::string& text);

struct ProbeCaseOptions {
  std::int64_t token_budget{8192};
  int stages{4};  ///< most stages of the defrag
  PageCount budget{
      1024};            ///< moves of a plan: larger ones look for longer free runs than there are
  int plans_max{2000};  ///< of the defrag; past it the case is not straight
  bool defrag{true};
  bool reclaim{false};  ///< plan for memory given back too
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

/// Step of the last steady sample of a run, where its pool is probed.
[[nodiscard]] std::int64_t checkpoint_step(const RunResult& result);

}  // namespace packstone::sim
