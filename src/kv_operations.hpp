// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace packstone::detail {

/// What the digest of a KvManager tells apart. The numbers are part of the digest: append, never
/// renumber.
enum Operation : std::uint64_t {
  kCreate = 1,
  kGrow = 2,
  kReserve = 3,
  kCommit = 4,
  kTruncate = 5,
  kTrim = 6,
  kFork = 7,
  kFinish = 8,
  kPin = 9,
  kUnpin = 10,
  kMove = 11,
  kReclaim = 12,
  kBatch = 13,
  kPrefix = 14,
  kRange = 15,
  kKeep = 16,
  kDropFront = 17,
};

}  // namespace packstone::detail
