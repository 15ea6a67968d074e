// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How long the runs of the live sequences are, counted anew.

#include <packstone/kv_manager.hpp>

#include <cstdint>

namespace packstone::test {

/// Pages a run over all live sequences; 0 where there are none.
inline double mean_run(const KvManager& manager) {
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (const SeqId seq : manager.live_sequences()) {
    std::int32_t previous = -2;
    for (const PageId page : manager.pages(seq)) {
      pages += 1;
      runs += index_of(page) != previous + 1 ? 1 : 0;
      previous = index_of(page);
    }
  }
  return runs == 0 ? 0.0 : static_cast<double>(pages) / static_cast<double>(runs);
}

}  // namespace packstone::test
