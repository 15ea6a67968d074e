// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Lines of a plain, gzip or zstd input, in bounded memory, with the digest of the raw bytes.

#include <sim/trace.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace packstone::sim {

/// Reads an input line by line. Every failure (unreadable, corrupt or truncated compression, a line
/// or an expansion past its limit, a NUL byte) is a TraceError.
class LineReader {
 public:
  /// Opens a regular file; anything else (directory, device, pipe) is refused, since it might never
  /// end.
  [[nodiscard]] static LineReader open(const std::string& path, const TraceLimits& limits);
  /// Reads from memory that must outlive the reader; `name` stands for the file in errors.
  [[nodiscard]] static LineReader over(std::string_view bytes, const std::string& name,
                                       const TraceLimits& limits);
  LineReader(LineReader&&) noexcept;
  LineReader& operator=(LineReader&&) noexcept;
  ~LineReader();

  /// The next line that is not blank, without its line end, byte order mark or surrounding spaces;
  /// false at the end. The view is good until the next call.
  bool next(std::string_view& line);
  /// Makes the next call of next() return the current line again.
  void unread();
  /// Number of the current line, from 1, blank lines counted.
  [[nodiscard]] std::int64_t line_number() const;
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] const char* compression() const;  ///< "none", "gzip" or "zstd"

  struct Digest {
    std::string sha256;  ///< of the raw bytes, all of them, 64 lower-case hex digits
    std::int64_t bytes;
  };
  /// Reads the raw input to its end, undecoded, and returns its digest. No next() after this.
  [[nodiscard]] Digest finish();

  [[noreturn]] void fail(const std::string& reason) const;       ///< TraceError at the current line
  [[noreturn]] void fail_file(const std::string& reason) const;  ///< TraceError of the whole file

 private:
  struct State;
  explicit LineReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace packstone::sim
