// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The `packstone` command, as a function: main.cpp only hands over its arguments and streams, so
/// that tests drive the same code.

#include <sim/bandwidth.hpp>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace packstone::sim {

/// Where the command reads and writes, and what only a build with a device half can tell.
struct CommandContext {
  std::ostream& out;
  std::ostream& err;
  bool show_progress{false};  ///< err is a terminal
  /// Prints a description of the devices; empty in a build without CUDA.
  std::function<void(std::ostream&)> describe_devices{};
  /// Makes the probe of the current device. Nullptr, and the reason in the argument, when no device
  /// can run it; empty in a build without CUDA.
  std::function<std::unique_ptr<BandwidthProbe>(std::string&)> make_probe{};
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  ///< input, output or memory was not as it has to be
inline constexpr int kExitUsage = 2;    ///< an argument was not

/// Runs the command with the arguments after the program's name. Never throws: a failure is one
/// line on `err`, beginning "packstone: ", and a non-zero status.
[[nodiscard]] int run_command(const std::vector<std::string>& arguments,
                              const CommandContext& context);

}  // namespace packstone::sim
