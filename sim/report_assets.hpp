// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The fixed parts of the report page, made from the files of sim/report when the build is
/// configured.

#include <string_view>

namespace packstone::sim {

extern const std::string_view kReportHead;    ///< up to and with the title
extern const std::string_view kReportStyle;   ///< report.css
extern const std::string_view kReportBody;    ///< body.html
extern const std::string_view kReportScript;  ///< report.js

}  // namespace packstone::sim
