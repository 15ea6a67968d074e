// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Between the list of workloads (workload.cpp) and the generators: the parsed parameters, and one
/// generator each.

#include <sim/workload.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace packstone::sim {

/// The parameters of one workload: defaults, then what the spec sets, checked against their
/// descriptions.
class Parameters {
 public:
  /// `text` is the part of a spec behind the colon. Throws InvalidArgument as make_workload does.
  Parameters(const WorkloadInfo& info, std::string_view text);
  /// The value of a number; a name that the workload does not have is a bug.
  [[nodiscard]] double number(std::string_view name) const;
  [[nodiscard]] std::int64_t whole(std::string_view name) const;
  [[nodiscard]] const std::string& word(std::string_view name) const;
  /// "NAME:key=value,..." with every parameter.
  [[nodiscard]] std::string canonical() const;

 private:
  void set(const WorkloadInfo& info, std::string_view assignment);
  [[nodiscard]] const std::string& value(std::string_view name) const;

  std::string workload_;
  std::vector<std::pair<std::string, std::string>> values_;
};

using Generator = Workload (*)(const Parameters& parameters, std::uint64_t seed);

// Open loop, from statistics of traces (workload_traces.cpp).
[[nodiscard]] Workload chat_azure(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload code_azure(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload longchat_mooncake(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload reason_r1(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload batch_api(const Parameters& parameters, std::uint64_t seed);
// Another workload with something added (workload_stress.cpp).
[[nodiscard]] Workload spec_tree(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload abort_storm(const Parameters& parameters, std::uint64_t seed);
// Made up to isolate a cause (workload_stress.cpp).
[[nodiscard]] Workload steady_fill(const Parameters& parameters, std::uint64_t seed);
[[nodiscard]] Workload adversary(const Parameters& parameters, std::uint64_t seed);
// Closed-loop sessions (workload_agent.cpp).
[[nodiscard]] Workload agent_coding(const Parameters& parameters, std::uint64_t seed);

}  // namespace packstone::sim
