// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace packstone::sim {
/// The version that `packstone --version` prints.
inline constexpr const char* kVersion = "0.1.0";
}  // namespace packstone::sim
