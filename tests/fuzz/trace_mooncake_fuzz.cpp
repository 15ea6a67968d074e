// SPDX-License-Identifier: Apache-2.0
#include <tests/fuzz/trace_fuzz.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return packstone::sim::fuzz_trace(packstone::sim::TraceFormat::mooncake, data, size);
}
