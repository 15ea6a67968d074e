// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <cstdio>
#include <cstdlib>

namespace packstone::detail {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: packstone bug: %s does not hold\n", file, line, expression);
  std::abort();
}

}  // namespace packstone::detail
