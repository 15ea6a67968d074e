// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Plain autoregressive decoding: one request, one token at a time, rows in one array, attention in
/// two loops. It uses nothing of packstone but its bf16, so that it can judge the rest.

#include "server.hpp"

#include <vector>

namespace runtime {

/// The tokens that `request` generates.
[[nodiscard]] std::vector<Token> decode_plainly(const Model& model, const Request& request);

}  // namespace runtime
