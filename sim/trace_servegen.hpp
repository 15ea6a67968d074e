// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// ServeGen tables: not a log of requests, but statistics to draw them from.

#include <sim/input.hpp>
#include <sim/trace.hpp>

#include <string>

namespace packstone::sim {

/// Reads the client table that `clients` is at the start of, and the histograms X_in_hist.csv and
/// X_out_hist.csv beside `path` = X_clients.csv; draws options.servegen_requests requests into
/// `list`. Returns the counts of the client table. Columns by name: client, share,
/// cv_rate_weighted, gamma_share; tokens_lo, tokens_hi, probability.
[[nodiscard]] RowCounts read_servegen(LineReader& clients, const std::string& path,
                                      const TraceOptions& options, RequestList& list);

}  // namespace packstone::sim
