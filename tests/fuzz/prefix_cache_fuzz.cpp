// SPDX-License-Identifier: Apache-2.0
// Four bytes a command, after one byte that chooses the hash and how eviction looks at addresses.
#include "tests/prefix_cache_model.hpp"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  packstone::test::PrefixDriver driver((data[0] & 1U) != 0, (data[0] & 2U) != 0 ? 4 : 1);
  for (std::size_t i = 1; i + 4 <= size; i += 4) {
    driver.run({data[i], data[i + 1], data[i + 2], data[i + 3]});
    driver.check();
  }
  driver.finish_all();
  return 0;
}
