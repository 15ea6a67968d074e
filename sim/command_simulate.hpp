// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The arguments of `packstone simulate`, and what it does with them.

#include <CLI/CLI.hpp>
#include <sim/command.hpp>
#include <sim/run.hpp>
#include <sim/trace.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace packstone::sim {

struct SimulateArguments {
  std::optional<std::string> trace;
  std::optional<std::string> workload;
  std::string policies{"fifo,lifo,sorted,lowest,run"};  ///< separated by commas
  std::string page_sizes{"1"};                          ///< separated by commas
  std::optional<std::int64_t> pool_tokens;
  std::optional<std::int32_t> concurrency;
  std::uint64_t seed{0};
  int threads{0};  ///< 0: one a processor
  std::optional<std::string> out;
  bool json{false};
  bool no_timing{false};
  bool check{false};
  std::string on_bad_row{"error"};
  std::string trace_format{"auto"};
  std::int32_t block_tokens{0};
  std::optional<std::int64_t> requests;
  double speed{1.0};
  double jitter_s{0.0};
  std::string arrivals{"backlog"};
  std::int64_t token_budget{8192};
  double watermark{0.01};
  bool prefix_cache{false};
  std::optional<DraftingOptions> speculate;  ///< unset: what the workload asks for
  DefragOptions defrag{};
  int samples{128};
  CostModel cost{};
  bool gpu{false};             ///< short for measure = auto
  std::string measure{"off"};  ///< off, auto, gpu, cpu, model
  std::vector<std::string> probes;
};

/// Adds the options to a subcommand; `arguments` must outlive the parse.
void add_simulate_options(CLI::App& app, SimulateArguments& arguments);

/// Runs it. Throws InvalidArgument for an argument that contradicts the input, and other errors for
/// input and output.
void simulate(const SimulateArguments& arguments, const CommandContext& context);

}  // namespace packstone::sim
