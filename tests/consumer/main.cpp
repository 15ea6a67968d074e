// SPDX-License-Identifier: Apache-2.0
// Every public header that needs no CUDA compiles from the install tree, and a manager works.
#include <packstone/all_headers.hpp>

#include <cstdio>

std::int64_t plugin_first_slot();

int main() {
  packstone::KvManager manager({.pages = 8, .page_size = 16});
  packstone::SeqId seq;
  if (manager.create(seq) != packstone::Status::ok) return 1;
  if (manager.append(seq, 7 * 16 + 1) != packstone::Status::out_of_pages) return 2;
  if (manager.append(seq, 20) != packstone::Status::ok) return 3;
  if (manager.pages(seq).size() != 2 || manager.available_pages() != 5) return 4;
  try {
    manager.truncate(seq, 21);
    return 5;
  } catch (const packstone::InvalidArgument&) {
  }
  manager.check();
  if (plugin_first_slot() != manager.slot(seq, 0)) return 6;
  std::puts("consumer: ok");
  return 0;
}
