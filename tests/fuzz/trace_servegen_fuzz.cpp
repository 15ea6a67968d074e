// SPDX-License-Identifier: Apache-2.0
// The three tables of ServeGen in one input, cut at the first two NUL bytes.
#include <packstone/error.hpp>

#include <tests/fuzz/trace_fuzz.hpp>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace {

// One folder for the process; every run writes its files anew.
const std::string& folder() {
  static const std::string path = [] {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "packstone-fuzz-XXXXXX").string();
    PACKSTONE_ASSERT(::mkdtemp(pattern.data()) != nullptr);
    return pattern;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace packstone::sim;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"x_clients.csv", "x_in_hist.csv", "x_out_hist.csv"}) {
    const std::size_t end = rest.find('\0');
    std::ofstream(folder() + "/" + name, std::ios::binary) << rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  for (const OnBadRow rule : {OnBadRow::skip, OnBadRow::error}) {
    try {
      const Trace trace = read_trace(
          folder() + "/x_clients.csv",
          {.format = TraceFormat::servegen, .on_bad_row = rule, .servegen_requests = 50});
      PACKSTONE_ASSERT(trace.rows.read == trace.rows.emitted + trace.rows.dropped_total());
      PACKSTONE_ASSERT(trace.list.requests.size() == 50U);
    } catch (const TraceError&) {
      continue;
    }
  }
  return 0;
}
