// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reading serving traces, and writing them as Mooncake JSONL.
///
/// Every reader takes plain, gzip or zstd input (told by the first bytes), with LF or CRLF, with or
/// without a byte order mark or a last newline. Blank lines are not rows. A reader never guesses: a
/// row it cannot use is a TraceError that names file, line and reason, or, with OnBadRow::skip,
/// dropped and counted by reason. Memory is bounded by TraceLimits whatever the input.

#include <packstone/error.hpp>

#include <sim/request.hpp>

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace packstone::sim {

/// Input that is no usable trace. what() is "FILE:LINE: REASON", or "FILE: REASON" when line() is
/// 0.
class TraceError : public Error {
 public:
  TraceError(std::string file, std::int64_t line, std::string reason);
  [[nodiscard]] const std::string& file() const { return file_; }
  /// Counted from 1, the header included; 0 when the fault is not in one line.
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string file_;
  std::int64_t line_;
  std::string reason_;
};

enum class TraceFormat : std::uint8_t {
  automatic,       ///< by header line, or by the keys of the first JSON line
  azure,           ///< Azure LLM 2023 and 2024 CSV
  burstgpt,        ///< BurstGPT CSV, with or without sessions; columns by name
  mooncake,        ///< Mooncake JSONL; also what write_mooncake writes
  bailian,         ///< Qwen-Bailian JSONL
  tracelab_csv,    ///< TraceLab CSV export
  tracelab_jsonl,  ///< TraceLab JSONL
  servegen,        ///< ServeGen client table X_clients.csv beside X_in_hist.csv and X_out_hist.csv
};

/// "auto", "azure", "burstgpt", "mooncake", "bailian", "tracelab-csv", "tracelab-jsonl",
/// "servegen".
[[nodiscard]] const char* to_string(TraceFormat format);
/// Throws InvalidArgument listing the names when there is no such format.
[[nodiscard]] TraceFormat trace_format_from(std::string_view name);
[[nodiscard]] std::vector<std::string> trace_format_names();

enum class OnBadRow : std::uint8_t { error, skip };

/// Bounds on what one input may cost. Passing any of them is a TraceError, also under
/// OnBadRow::skip.
struct TraceLimits {
  std::int64_t line_bytes{std::int64_t{16} << 20};  ///< longest line
  std::int64_t rows{std::int64_t{1} << 26};         ///< most rows; 67 million, 5.4 GB of requests
  std::int64_t block_ids{std::int64_t{1} << 28};    ///< most block ids over all rows; 2.1 GB
  std::int64_t input_bytes{std::int64_t{1} << 36};  ///< most bytes after decompression
  /// Decompression may not expand by more than this, once past expansion_free_bytes.
  std::int64_t expansion{300};
  std::int64_t expansion_free_bytes{std::int64_t{64} << 20};
};

struct TraceOptions {
  TraceFormat format{TraceFormat::automatic};
  OnBadRow on_bad_row{OnBadRow::error};
  /// Tokens of a hash-id block. 0: 512 for Mooncake, 16 for Bailian. The files do not say it, so it
  /// is checked: a row whose id count is not ceil(input / block_tokens) is a bad row.
  std::int32_t block_tokens{0};
  /// The ids cover whole blocks only, as some exporters write them: floor(input / block_tokens) ids
  /// a row, and the rest of the prompt is unshared. Bailian rows may do either.
  bool full_blocks_only{false};
  /// Stop after this many emitted requests, in file order; -1 takes all. More than there are: all
  /// there are.
  std::int64_t requests_max{-1};
  double speed{1.0};      ///< see scale_time
  double jitter_s{0.0};   ///< see jitter_arrivals; applied before speed
  std::uint64_t seed{0};  ///< of the jitter and of ServeGen's draws
  /// ServeGen only: how many requests to draw, and their total rate a second (0: the rate of the
  /// tables).
  std::int64_t servegen_requests{20'000};
  double servegen_rate{10.0};
  TraceLimits limits{};
};

/// read == emitted + the sum of dropped, always.
struct RowCounts {
  std::int64_t read{0};
  std::int64_t emitted{0};
  /// By reason; a reason is a short fixed word such as "empty_request" (0 in, 0 out: dropped
  /// without being an error, since published traces log failed requests so) or "bad_number".
  std::map<std::string, std::int64_t> dropped;
  /// Emitted rows with an input but no output; they replay as prefill only.
  std::int64_t prefill_only{0};
  [[nodiscard]] std::int64_t dropped_total() const;
};

struct Trace {
  RequestList list;
  RowCounts
      rows;  ///< rows of the file; of the client table for ServeGen, where they are not requests
  TraceFormat format{TraceFormat::automatic};  ///< as detected
  std::string file;                            ///< as given
  std::string compression;                     ///< "none", "gzip" or "zstd"
  std::string sha256;          ///< of the raw file, 64 hex digits; of the client table for ServeGen
  std::int64_t file_bytes{0};  ///< raw size
  std::int64_t tick_ns{0};     ///< arrival_tick_ns before jitter and speed
};

/// Reads a file. Throws TraceError (unreadable, hostile, unknown format, bad row) or
/// InvalidArgument (bad options).
[[nodiscard]] Trace read_trace(const std::string& path, const TraceOptions& options = {});

/// The same from memory; `name` stands for the file in errors. ServeGen is refused, since it needs
/// three files.
[[nodiscard]] Trace read_trace_bytes(std::string_view bytes, const std::string& name,
                                     const TraceOptions& options = {});

struct WriteOptions {
  /// Block size for requests without ids when the list has none (they get fresh ids, never shared
  /// ones).
  std::int32_t fresh_block_tokens{512};
};

/// Writes Mooncake JSONL, one request a line. What Mooncake's own keys (timestamp in ms,
/// input_length, output_length, hash_ids) do not hold goes into extra keys (session_id, think_time,
/// abort_after, abort_at in ms, request_id, client, no_ids), so that reading it back with the block
/// size of `list` gives an equal list. Returns the block size written, which the format does not
/// store. The caller checks the stream.
std::int32_t write_mooncake(std::ostream& out, const RequestList& list,
                            const WriteOptions& options = {});

/// Writes `path` whole or not at all (through a temporary beside it). Throws TraceError.
std::int32_t write_mooncake_file(const std::string& path, const RequestList& list,
                                 const WriteOptions& options = {});

}  // namespace packstone::sim
