// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A decode loop over a churned pool, with or without a compactor beside it. There are no weights:
/// a sequence's next token is a hash of every bit that attention gave in all layers, and the rows
/// and queries of the next step follow from it. So a single wrong bit, at any step, in any layer,
/// changes every token after it.

#include <packstone/move_plan.hpp>

#include <sim/kv_model.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace packstone::sim {

struct DecodeLoopOptions {
  KvModel model{};  ///< MLA, bf16
  std::int64_t page_size{1};
  PageCount pages{0};  ///< of the pool, page 0 included
  std::int32_t batch{8};
  TokenCount prompt{1024};  ///< tokens of each sequence when the loop begins
  int steps{64};
  std::string policy{"fifo"};
  PageCount budget{0};  ///< pages that a step may move; 0: no defrag
  int defrag_from{0};   ///< step
  std::uint64_t seed{1};
};

struct DecodeStep {
  double us{0};    ///< rows, queries, attention of all layers
  double gbps{0};  ///< KV bytes of all layers over it
  double run_mean{0};
  PageCount moves{0};
};

struct DecodeLoopResult {
  std::vector<DecodeStep> steps;
  std::vector<std::uint64_t> tokens;  ///< [steps, batch]
  bool tables_agree{false};           ///< the device's tables equal the manager's at the end
  PageCount moves{0};
};

/// Runs the loop on the current device; the pool is churned the same way for equal seeds. Throws
/// InvalidArgument for a pool that is too small or another kind of model, and what the parts throw.
[[nodiscard]] DecodeLoopResult run_decode_loop(const DecodeLoopOptions& options);

}  // namespace packstone::sim
