// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The report page: one file that opens offline, with its data, style and script inside.

#include <sim/output.hpp>

#include <string>

namespace packstone::sim {

[[nodiscard]] std::string report_html(const Study& study);

}  // namespace packstone::sim
