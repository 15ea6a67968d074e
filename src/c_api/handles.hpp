// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "border.hpp"

#include <packstone/kv_manager.hpp>

#include <vector>

/// A manager behind its handle, with the copies that were taken but did not fit the caller's
/// buffer.
struct packstone_manager {
  packstone::KvManager manager;
  std::vector<packstone::PageCopy> copies;
};

struct packstone_checkpoint {
  packstone::KvManager::Checkpoint checkpoint;
};

namespace packstone::c_api {

/// Moves would make what the waiting copies say untrue.
inline void require_copies_taken(const packstone_manager* manager) {
  if (!required(manager, "manager").copies.empty()) {
    throw InvalidArgument(std::to_string(manager->copies.size()) +
                          " copies on write wait for take_copies with a larger buffer");
  }
}

}  // namespace packstone::c_api
