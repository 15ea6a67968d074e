// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What defragmentation between steps costs: the same requests served with and without it, in turn,
/// in one run.

#include "server.hpp"

#include <string>

namespace runtime {

struct DefragCostOptions {
  ServerOptions server{};  ///< but for `defrag`, which is measured
  int requests{64};
  int rounds{7};  ///< servings of each kind, >= 1, after one of each that is not counted
};

/// One line of JSON: tokens a second of both kinds (median, least, most), the ratio of with to
/// without (the median of the rounds, least, most), pages moved, and where the time of a step goes.
/// Throws std::runtime_error when the two kinds generate other tokens.
[[nodiscard]] std::string measure_defrag_cost(const Model& model, const DefragCostOptions& options);

}  // namespace runtime
