// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Progress with rate and time left, on one line of standard error, when that is a terminal.

#include <sim/run.hpp>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <thread>

namespace packstone::sim {

/// "12.3M of 132.3M tokens (9 %), 31.2M tokens/s, 4 s left, 1 of 5 runs done"; no time left before
/// anything is done.
[[nodiscard]] std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                                        std::int64_t runs_done, std::int64_t runs);

/// Draws the line five times a second from its own thread until destroyed, then wipes it.
class ProgressDisplay {
 public:
  /// @param out  must outlive the display; nothing is drawn when `enabled` is false.
  ProgressDisplay(std::ostream& out, const ProgressCounters& counters, std::int64_t total,
                  std::int64_t runs, bool enabled);

 private:
  std::jthread thread_;
};

}  // namespace packstone::sim
