// SPDX-License-Identifier: Apache-2.0
// A command stream against the oracle of model.hpp: three bytes choose policy, page size and pool,
// then four bytes a command. Everything is checked after every command.
#include "tests/model.hpp"

#include <packstone/placement.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>

namespace {

void run(std::span<const std::uint8_t> input) {
  using namespace packstone;
  constexpr std::array<std::int64_t, 6> kPageSizes = {1, 2, 3, 4, 16, 64};
  const auto names = placement_names();
  test::Driver driver({.pages = 1 + input[2] % 48,
                       .page_size = kPageSizes[input[1] % kPageSizes.size()],
                       .policy = std::string(names[input[0] % names.size()])});
  for (std::size_t i = 3; i + 4 <= input.size(); i += 4) {
    driver.step({.op = static_cast<test::Op>(input[i] % test::kOps),
                 .a = input[i + 1],
                 .b = input[i + 2],
                 .c = input[i + 3]});
    driver.check();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 7 || size > 1200) return 0;
  try {
    run({data, size});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
