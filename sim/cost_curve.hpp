// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How fast a card reads rows, by how they lie: the table that `bench_cost_curve` measured, kept in
/// sim/cost_curve.csv with card, driver and command, and compiled in. Figures that follow from it
/// are labelled `modelled`.

#include <packstone/units.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace packstone::sim {

class CostCurve {
 public:
  enum class Kind : std::uint8_t {
    read,             ///< a kernel reads rows of device memory
    to_host_kernel,   ///< a kernel writes them to pinned host memory
    to_host_batched,  ///< a batched copy to pinned host memory, one piece a run
  };
  struct Point {
    Kind kind{Kind::read};
    Bytes row_bytes{0};
    Bytes run_bytes{0};   ///< consecutive bytes; a whole contiguous read is its own length
    Bytes pool_bytes{0};  ///< over which the runs are spread
    double gbps{0};       ///< median
    double gbps_min{0};
    double gbps_max{0};
    double ceiling_gbps{0};  ///< the card's own limit in the same process
    friend bool operator==(const Point&, const Point&) = default;
  };

  /// Lines of `kind,row_bytes,run_bytes,pool_bytes,gbps,gbps_min,gbps_max,ceiling_gbps` behind a
  /// header of that text; lines that begin with `#` say where it comes from. Throws InvalidArgument
  /// naming the line for anything else, and for a table without points of a kind.
  explicit CostCurve(std::string_view csv);
  /// The one of this build.
  [[nodiscard]] static const CostCurve& built_in();

  /// Card, driver, command and date, as the comment lines say them.
  [[nodiscard]] const std::string& provenance() const { return provenance_; }
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }

  /// GB/s for runs of so many bytes, >= 1: linear in log2 of run and pool between the points of the
  /// nearest row size (by ratio), constant outside.
  [[nodiscard]] double gbps(Kind kind, Bytes row_bytes, Bytes run_bytes, Bytes pool_bytes) const;
  /// GB/s of the longest runs of that row size.
  [[nodiscard]] double contiguous_gbps(Kind kind, Bytes row_bytes, Bytes pool_bytes) const;

 private:
  std::vector<Point> points_;
  std::string provenance_;
};

}  // namespace packstone::sim
