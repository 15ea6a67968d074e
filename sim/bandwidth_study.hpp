// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The bandwidth part of `packstone simulate`: cases of every run, on whatever can measure them.

#include <nlohmann/json.hpp>
#include <sim/bandwidth.hpp>
#include <sim/probe_case.hpp>
#include <sim/run.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace packstone::sim {

enum class Measure : std::uint8_t {
  off,
  automatic,  ///< the device where there is one; else processors and the cost curve
  gpu,        ///< the device, or an error
  cpu,        ///< processors and the cost curve
  model,      ///< the cost curve alone: no wall-clock figure
};

struct BandwidthStudyOptions {
  Measure measure{Measure::off};
  /// Empty: those of `default_probes`, of which the ones that a pool is too small for are noted and
  /// left out; a shape that was asked for and does not fit is an error.
  std::vector<ProbeSpec> specs;
  int threads{1};  ///< for making cases and for the processors' gather
  ProbeProgress* progress{nullptr};
};

/// Live tables in decode and in verify, the three verify shapes (1,8,65,65536), (8,8,9,16384) and
/// (32,16,1,16384) of Kimi K2, and a GQA decode with rows of 256 bytes.
[[nodiscard]] std::vector<ProbeSpec> default_probes();

/// Throws InvalidArgument when a shape that was asked for does not fit the pool of a run.
void require_shapes_fit(const std::vector<ProbeSpec>& specs, const RunOptions& options);

/// Probes the pool of a finished run at its checkpoint; fills `result.probes` and `result.notes`.
/// @param probe  the device; nullptr: none. Ignored by Measure::cpu and Measure::model.
void study_bandwidth(const RequestList& list, const RunOptions& options,
                     const BandwidthStudyOptions& study, BandwidthProbe* probe, RunResult& result);

/// runs[].bandwidth, .transfers, .defrag_cost and .bandwidth_notes of summary.json.
[[nodiscard]] nlohmann::ordered_json bandwidth_json(const RunResult& result);
/// The tables for people; empty without probes.
[[nodiscard]] std::string bandwidth_table(const std::vector<RunResult>& results);

}  // namespace packstone::sim
