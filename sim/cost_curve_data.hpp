// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace packstone::sim {

/// sim/cost_curve.csv, made part of the library by the build.
extern const std::string_view kCostCurveCsv;

}  // namespace packstone::sim
