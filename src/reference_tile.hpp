// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The inner part of reference_verify: one block of rows over one stretch of tokens.

#include <packstone/verify_params.hpp>

#include <cstdint>
#include <vector>

namespace packstone::reference {

/// Rows that share the decoded tiles: nodes of one sequence times the heads of one kv head.
inline constexpr std::int32_t kBlockRows = 64;

/// Nodes `node` to `node + nodes - 1` of a sequence, with all heads of `kv_head`; row r is node r /
/// group, head r % group.
struct RowBlock {
  std::int32_t sequence;
  std::int32_t node;
  std::int32_t nodes;
  std::int32_t kv_head;
  friend bool operator==(const RowBlock&, const RowBlock&) = default;
};

/// What the numbers of a stretch of tokens count.
enum class TokenSource : std::uint8_t { prefix, list, tail };

/// Unnormalised results: values are sums of exp(s - peak) * V, total the sum of exp(s - peak);
/// total 0 is an empty row.
struct PartialRows {
  std::vector<double> peak;
  std::vector<double> total;
  std::vector<double> values;  ///< [rows, dim]

  [[nodiscard]] double* value(std::size_t row, std::int32_t dim) {
    return values.data() + row * static_cast<std::size_t>(dim);
  }
  [[nodiscard]] const double* value(std::size_t row, std::int32_t dim) const {
    return values.data() + row * static_cast<std::size_t>(dim);
  }
};

/// Attends tokens [begin, end) of `source` for the rows of `block`. Parameters must have passed
/// `validate`.
PartialRows attend(const VerifyParams& params, const RowBlock& block, TokenSource source,
                   std::int64_t begin, std::int64_t end);

}  // namespace packstone::reference
