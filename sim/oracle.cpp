// SPDX-License-Identifier: Apache-2.0
#include <sim/oracle.hpp>

#include <limits>

namespace packstone::sim {

void Oracle::begin() {
  runs_.clear();
  sequences_ = 0;
}

void Oracle::add(TokenCount length) {
  if (length <= 0) return;
  runs_.add(length);
  sequences_ += 1;
}

double Oracle::run_mean() const {
  if (sequences_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(runs_.tokens()) / static_cast<double>(sequences_);
}

double copy_seconds(const CostModel& model, PageCount pages, std::int64_t page_size) {
  const double bytes = 2.0 * static_cast<double>(pages) * static_cast<double>(page_size) *
                       static_cast<double>(model.slot_bytes) * static_cast<double>(model.layers);
  return bytes / (model.copy_gbps * 1e9);
}

double attention_floor_seconds(const CostModel& model, TokenCount tokens) {
  const double bytes = static_cast<double>(tokens) * static_cast<double>(model.slot_bytes) *
                       static_cast<double>(model.layers);
  return bytes / (model.read_gbps * 1e9);
}

double break_even_steps(double cost_s, double step_slow_s, double step_fast_s) {
  if (!(step_slow_s > step_fast_s)) return std::numeric_limits<double>::infinity();
  return cost_s / (step_slow_s - step_fast_s);
}

}  // namespace packstone::sim
