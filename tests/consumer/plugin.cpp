// SPDX-License-Identifier: Apache-2.0
// A shared library that has packstone inside.
#include <packstone/kv_manager.hpp>

std::int64_t plugin_first_slot() {
  packstone::KvManager manager({.pages = 8, .page_size = 16});
  packstone::SeqId seq;
  if (manager.create(seq) != packstone::Status::ok) return -1;
  if (manager.append(seq, 20) != packstone::Status::ok) return -1;
  manager.check();
  return manager.slot(seq, 0);
}
