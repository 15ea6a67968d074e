// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Arguments that hold more than one value. All throw InvalidArgument naming the option and the
/// part that is wrong.

#include <sim/defrag.hpp>
#include <sim/drafting.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace packstone::sim {

/// Parts between commas; none may be empty or stand twice.
[[nodiscard]] std::vector<std::string> split(const std::string& text, const char* option);
[[nodiscard]] std::vector<std::int64_t> page_sizes_of(const std::string& text);
/// MODE:K:Q or "off".
[[nodiscard]] DraftingOptions speculate_from(const std::string& text);
/// The inverse of speculate_from.
[[nodiscard]] std::string described(const DraftingOptions& options);
/// OBJECTIVE:PAGES_PER_STEP
void defrag_from(const std::string& text, DefragOptions& options);

}  // namespace packstone::sim
