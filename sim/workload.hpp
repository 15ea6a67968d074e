// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Built-in workloads: seeded generators whose statistics come from published traces.
///
/// A workload is named by a spec, `NAME` or `NAME:key=value,key=value`. The same spec and seed give
/// the same requests on every machine: generators use sim/prng.hpp only, one stream for each of
/// arrivals, lengths, prefixes, sessions and aborts, so that a change of one parameter does not
/// reshuffle the others.

#include <sim/request.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace packstone::sim {

enum class SpeculationMode : std::uint8_t {
  none,
  rollback,      ///< take k slots a step, keep the accepted ones, free the rest
  reserve_tail,  ///< keep k slots reserved ahead and free nothing a step
  tree_front,    ///< as rollback, with the accepted rows moved to the front first
};

/// What a workload says about speculative decoding; an explicit choice of the user wins.
struct SpeculationHint {
  SpeculationMode mode{SpeculationMode::none};
  std::int32_t draft_tokens{0};  ///< k, slots of a draft tree
  double acceptance{0.0};  ///< q: the chance that the next position is accepted too (geometric)
  std::int32_t accepted_max{0};  ///< most accepted in one step, before the bonus token
};

/// What a workload wants of the run; the command applies it where the user gave no value. 0 is "no
/// wish".
struct WorkloadHints {
  std::int64_t pool_tokens{0};
  std::int32_t concurrency{0};
  SpeculationHint speculation{};
};

struct Workload {
  std::string name;
  std::string spec;  ///< canonical: every parameter written out, in the listed order
  RequestList list;
  WorkloadHints hints;
};

/// A parameter of a workload; numbers have a range, words a list of choices.
struct WorkloadParameter {
  std::string name;
  std::string default_value;
  std::string description;
  double min{0.0};
  double max{0.0};
  bool integer{false};
  std::vector<std::string> choices;  ///< empty for a number
};

struct WorkloadInfo {
  std::string name;
  std::string description;  ///< one line
  std::string source;       ///< the trace or paper the statistics come from
  std::vector<WorkloadParameter> parameters;
};

/// All built-in workloads, in a fixed order. Every one has the parameter `requests`.
[[nodiscard]] const std::vector<WorkloadInfo>& list_workloads();

/// Generates a workload. Throws InvalidArgument for an unknown name, an unknown or repeated key, or
/// a value that is no number or out of its range; the message lists what there is.
[[nodiscard]] Workload make_workload(std::string_view spec, std::uint64_t seed);

}  // namespace packstone::sim
