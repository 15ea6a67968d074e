// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `packstone convert`: any trace that can be read, or a workload, as Mooncake JSONL.

#include <CLI/CLI.hpp>
#include <sim/command.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace packstone::sim {

struct ConvertArguments {
  std::optional<std::string> trace;
  std::optional<std::string> workload;
  std::string out;
  std::string trace_format{"auto"};
  std::string on_bad_row{"error"};
  std::int32_t block_tokens{0};
  std::uint64_t seed{0};
};

void add_convert_options(CLI::App& app, ConvertArguments& arguments);
void convert(const ConvertArguments& arguments, const CommandContext& context);

}  // namespace packstone::sim
