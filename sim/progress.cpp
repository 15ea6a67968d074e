// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/progress.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <ostream>
#include <utility>

namespace packstone::sim {

namespace {

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string millions(double value) {
  return fmt::format("{:.1f}M", value / 1e6);
}

}  // namespace

std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                          std::int64_t runs_done, std::int64_t runs) {
  // Tokens computed again after a preemption are not in the total.
  const double all = static_cast<double>(std::max(total, done));
  const double rate = seconds > 0.0 ? static_cast<double>(done) / seconds : 0.0;
  std::string line = fmt::format(
      "{} of {} tokens ({:.0f} %), {} tokens/s", millions(static_cast<double>(done)), millions(all),
      all > 0.0 ? 100.0 * static_cast<double>(done) / all : 100.0, millions(rate));
  if (rate > 0.0) {
    line += fmt::format(", {} left", duration((all - static_cast<double>(done)) / rate));
  }
  return line + fmt::format(", {} of {} runs done", runs_done, runs);
}

std::string probe_progress_line(const ProbeProgress& progress, std::int64_t run, std::int64_t runs,
                                double seconds) {
  return fmt::format(
      "probing run {} of {}: {} of {} cases made, {} plans of {} moves; {} of {} "
      "measured, {}",
      run, runs, progress.made.load(), progress.cases.load(), progress.plans.load(),
      millions(static_cast<double>(progress.moves.load())), progress.measured.load(),
      progress.figures.load(), duration(seconds));
}

ProgressDisplay::ProgressDisplay(std::ostream& out, Line line, bool enabled) {
  if (!enabled) return;
  thread_ = std::jthread([&out, line = std::move(line)](const std::stop_token& stop) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, std::chrono::milliseconds(200),
                          [&stop] { return stop.stop_requested(); })) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      out << "\r\x1b[K" << line(seconds) << std::flush;
    }
    out << "\r\x1b[K" << std::flush;
  });
}

}  // namespace packstone::sim
