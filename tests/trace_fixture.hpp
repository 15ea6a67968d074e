// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the trace tests share: files in a folder that goes away, compression, and where the real
/// traces are.

#include <boost/iostreams/copy.hpp>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_streambuf.hpp>
#include <gtest/gtest.h>
#include <sim/trace.hpp>
#include <unistd.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace packstone::sim {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "packstone-trace-XXXXXX").string();
    const char* made = ::mkdtemp(pattern.data());
    if (made == nullptr) throw std::runtime_error("no temporary folder can be made");
    path_ = made;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string gzip_of(const std::string& bytes) {
  namespace io = boost::iostreams;
  std::istringstream source(bytes);
  std::ostringstream target;
  io::filtering_streambuf<io::input> filter;
  filter.push(io::gzip_compressor());
  filter.push(source);
  io::copy(filter, target);
  return target.str();
}

inline std::string zstd_of(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 3));
  return packed;
}

inline Trace read_text(const std::string& text, const TraceOptions& options = {}) {
  return read_trace_bytes(text, "input", options);
}

/// The TraceError of reading `text`; a failure of the test when it is read.
inline TraceError error_of(const std::string& text, const TraceOptions& options = {}) {
  try {
    const Trace trace = read_text(text, options);
    ADD_FAILURE() << "read " << trace.rows.emitted << " requests of:\n" << text.substr(0, 200);
  } catch (const TraceError& error) {
    return error;
  }
  return TraceError("none", 0, "none");
}

/// A real trace, or an empty path when they are not at hand.
inline std::string real_trace(const std::string& name) {
  const char* given = std::getenv("PACKSTONE_TRACES");
  const std::filesystem::path folder =
      given != nullptr ? std::filesystem::path(given)
                       : std::filesystem::path(PACKSTONE_SOURCE_DIR) / ".." / "shared" / "traces";
  const auto path = folder / name;
  return std::filesystem::exists(path) ? path.string() : std::string();
}

}  // namespace packstone::sim

#define PACKSTONE_NEED_TRACE(variable, name)                                           \
  const std::string variable = ::packstone::sim::real_trace(name);                     \
  if (variable.empty()) {                                                              \
    GTEST_SKIP() << name << " is not there; set PACKSTONE_TRACES to the folder of it"; \
  }
