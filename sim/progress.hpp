// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Progress with rate and time left, on one line of standard error, when that is a terminal.

#include <sim/probe_case.hpp>
#include <sim/run.hpp>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <thread>

namespace packstone::sim {

/// "12.3M of 132.3M tokens (9 %), 31.2M tokens/s, 4 s left, 1 of 5 runs done"; no time left before
/// anything is done.
[[nodiscard]] std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                                        std::int64_t runs_done, std::int64_t runs);

/// "probing run 1 of 2: 1 of 4 cases made, 1834 plans of 1.7M moves; 0 of 6 measured, 74 s".
[[nodiscard]] std::string probe_progress_line(const ProbeProgress& progress, std::int64_t run,
                                              std::int64_t runs, double seconds);

/// Draws a line five times a second from its own thread until destroyed, then wipes it.
class ProgressDisplay {
 public:
  /// The line after so many seconds of display.
  using Line = std::function<std::string(double seconds)>;
  /// @param out  must outlive the display, as what `line` reads must; nothing is drawn when
  /// `enabled` is false.
  ProgressDisplay(std::ostream& out, Line line, bool enabled);

 private:
  std::jthread thread_;
};

}  // namespace packstone::sim
