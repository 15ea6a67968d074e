// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/cost_curve.hpp>
#include <sim/cost_curve_data.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace packstone::sim {

namespace {

constexpr std::string_view kHeader =
    "kind,row_bytes,run_bytes,pool_bytes,gbps,gbps_min,gbps_max,ceiling_gbps";
constexpr std::array<std::pair<std::string_view, CostCurve::Kind>, 3> kKinds{{
    {"read", CostCurve::Kind::read},
    {"to_host_kernel", CostCurve::Kind::to_host_kernel},
    {"to_host_batched", CostCurve::Kind::to_host_batched},
}};

[[noreturn]] void bad_line(int number, std::string_view line) {
  throw InvalidArgument("cost curve, line " + std::to_string(number) + ": " + std::string(line));
}

CostCurve::Point parsed(std::string_view line, int number) {
  CostCurve::Point point;
  const std::size_t comma = line.find(',');
  const auto* const kind =
      std::ranges::find(kKinds, line.substr(0, comma), &decltype(kKinds)::value_type::first);
  if (comma == std::string_view::npos || kind == kKinds.end()) bad_line(number, line);
  point.kind = kind->second;
  std::array<double, 7> values{};
  std::string rest(line.substr(comma + 1));
  const char* at = rest.c_str();
  for (std::size_t i = 0; i < values.size(); ++i) {
    char* end = nullptr;
    values[i] = std::strtod(at, &end);
    const bool last = i + 1 == values.size();
    if (end == at || *end != (last ? '\0' : ',') || !(values[i] > 0.0) || !std::isfinite(values[i]))
      bad_line(number, line);
    at = end + 1;
  }
  point.row_bytes = std::llround(values[0]);
  point.run_bytes = std::llround(values[1]);
  point.pool_bytes = std::llround(values[2]);
  point.gbps = values[3];
  point.gbps_min = values[4];
  point.gbps_max = values[5];
  point.ceiling_gbps = values[6];
  return point;
}

double log2_of(Bytes bytes) {
  return std::log2(static_cast<double>(std::max<Bytes>(bytes, 1)));
}

/// Piecewise linear in the logarithm of the key, constant outside.
double between(const std::map<Bytes, double>& values, Bytes at) {
  const auto above = values.lower_bound(at);
  if (above == values.begin()) return above->second;
  if (above == values.end()) return values.rbegin()->second;
  const auto below = std::prev(above);
  const double part =
      (log2_of(at) - log2_of(below->first)) / (log2_of(above->first) - log2_of(below->first));
  return below->second + part * (above->second - below->second);
}

}  // namespace

CostCurve::CostCurve(std::string_view csv) {
  bool header = false;
  int number = 0;
  while (!csv.empty()) {
    const std::size_t end = csv.find('\n');
    const std::string_view line = csv.substr(0, end);
    csv.remove_prefix(end == std::string_view::npos ? csv.size() : end + 1);
    ++number;
    if (line.empty()) continue;
    if (line.starts_with('#')) {
      const std::size_t text = std::min(line.find_first_not_of("# "), line.size());
      provenance_ += (provenance_.empty() ? "" : " ") + std::string(line.substr(text));
    } else if (!header) {
      if (line != kHeader) bad_line(number, line);
      header = true;
    } else {
      points_.push_back(parsed(line, number));
    }
  }
  for (const auto& [name, kind] : kKinds) {
    if (std::ranges::find(points_, kind, &Point::kind) == points_.end()) {
      throw InvalidArgument("cost curve: no point of kind " + std::string(name));
    }
  }
}

const CostCurve& CostCurve::built_in() {
  static const CostCurve curve(kCostCurveCsv);
  return curve;
}

double CostCurve::gbps(Kind kind, Bytes row_bytes, Bytes run_bytes, Bytes pool_bytes) const {
  double nearest = std::numeric_limits<double>::infinity();
  Bytes row = 0;
  for (const Point& point : points_) {
    if (point.kind != kind) continue;
    const double distance = std::abs(log2_of(point.row_bytes) - log2_of(row_bytes));
    if (distance < nearest) {
      nearest = distance;
      row = point.row_bytes;
    }
  }
  std::map<Bytes, std::map<Bytes, double>> by_pool;
  for (const Point& point : points_) {
    if (point.kind == kind && point.row_bytes == row)
      by_pool[point.pool_bytes][point.run_bytes] = point.gbps;
  }
  std::map<Bytes, double> at_run;
  for (const auto& [pool, by_run] : by_pool) at_run[pool] = between(by_run, run_bytes);
  return between(at_run, pool_bytes);
}

double CostCurve::contiguous_gbps(Kind kind, Bytes row_bytes, Bytes pool_bytes) const {
  return gbps(kind, row_bytes, std::numeric_limits<Bytes>::max(), pool_bytes);
}

}  // namespace packstone::sim
