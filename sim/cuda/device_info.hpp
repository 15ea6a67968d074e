// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

namespace packstone::sim {

/// What `packstone info` says of the current device: its name and limits, the architectures that
/// this binary has code for, and each attention kernel with its shared memory and registers. One
/// line that says why when there is no device that can run them. Never throws.
void describe_devices(std::ostream& out);

}  // namespace packstone::sim
