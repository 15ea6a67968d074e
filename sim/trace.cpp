// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/input.hpp>
#include <sim/trace.hpp>
#include <sim/trace_rows.hpp>
#include <sim/trace_servegen.hpp>

#include <array>
#include <cmath>
#include <utility>

namespace packstone::sim {
namespace {

struct FormatName {
  TraceFormat format;
  const char* name;
};
constexpr std::array kFormatNames{
    FormatName{TraceFormat::automatic, "auto"},
    FormatName{TraceFormat::azure, "azure"},
    FormatName{TraceFormat::burstgpt, "burstgpt"},
    FormatName{TraceFormat::mooncake, "mooncake"},
    FormatName{TraceFormat::bailian, "bailian"},
    FormatName{TraceFormat::tracelab_csv, "tracelab-csv"},
    FormatName{TraceFormat::tracelab_jsonl, "tracelab-jsonl"},
    FormatName{TraceFormat::servegen, "servegen"},
};

/// Names of the formats that a file may have, "azure, burstgpt and so on".
std::string known_formats() {
  std::string names;
  for (const FormatName& known : kFormatNames) {
    if (known.format == TraceFormat::automatic) continue;
    names += names.empty() ? "" : ", ";
    names += known.name;
  }
  return names;
}

bool is_csv(TraceFormat format) {
  return format == TraceFormat::azure || format == TraceFormat::burstgpt ||
         format == TraceFormat::tracelab_csv;
}

constexpr double kJitterMax = 1e9;

void check_options(const TraceOptions& options) {
  if (options.block_tokens < 0) {
    throw InvalidArgument(
        fmt::format("block_tokens is {}, but must be 1 or more", options.block_tokens));
  }
  if (options.requests_max < -1) {
    throw InvalidArgument(
        fmt::format("requests_max is {}, but must be 0 or more", options.requests_max));
  }
  if (!(options.jitter_s >= 0.0 && options.jitter_s <= kJitterMax)) {
    throw InvalidArgument(
        fmt::format("jitter is {} s, but must be within 0 and {}", options.jitter_s, kJitterMax));
  }
  if (!std::isfinite(options.speed) || options.speed <= 0.0) {
    throw InvalidArgument(
        fmt::format("speed is {}, but must be finite and above 0", options.speed));
  }
}

// Counts rows and keeps the limits.
class RowLoop {
 public:
  RowLoop(LineReader& reader, const TraceOptions& options, Trace& trace)
      : reader_(reader), options_(options), trace_(trace) {}

  void run(RowParser& parser) {
    std::string_view line;
    Row row;
    while (!full() && reader_.next(line)) {
      count_row();
      row.request = Request{};
      row.ids.clear();
      RowFault fault = parser.parse(line, row);
      if (!fault) fault = check_lengths(row.request);
      if (fault) {
        drop(fault);
      } else {
        emit(row);
      }
    }
    const std::string limit = parser.finish(trace_.list);
    if (!limit.empty()) reader_.fail_file(limit);
  }

 private:
  [[nodiscard]] bool full() const {
    return options_.requests_max >= 0 && trace_.rows.emitted >= options_.requests_max;
  }
  void count_row() {
    if (++trace_.rows.read > options_.limits.rows) {
      reader_.fail(fmt::format("holds more than {} rows", options_.limits.rows));
    }
  }
  void drop(const RowFault& fault) {
    if (!always_dropped(fault) && options_.on_bad_row == OnBadRow::error) {
      reader_.fail(fault.detail);
    }
    ++trace_.rows.dropped[fault.reason];
  }
  void emit(const Row& row) {
    RequestList& list = trace_.list;
    const auto held = static_cast<std::int64_t>(list.block_ids.size());
    if (held + static_cast<std::int64_t>(row.ids.size()) > options_.limits.block_ids) {
      reader_.fail(fmt::format("holds more than {} block ids", options_.limits.block_ids));
    }
    list.requests.push_back(row.request);
    list.requests.back().first_block = held;
    list.requests.back().block_count = static_cast<std::int32_t>(row.ids.size());
    list.block_ids.insert(list.block_ids.end(), row.ids.begin(), row.ids.end());
    ++trace_.rows.emitted;
    if (row.request.output_tokens == 0) ++trace_.rows.prefill_only;
  }

  LineReader& reader_;
  const TraceOptions& options_;
  Trace& trace_;
};

std::int32_t block_tokens_of(TraceFormat format, const TraceOptions& options) {
  if (options.block_tokens != 0) return options.block_tokens;
  return format == TraceFormat::bailian ? 16 : 512;
}

void read_rows(LineReader& reader, TraceOptions options, Trace& trace) {
  std::string_view line;
  if (!reader.next(line)) reader.fail_file("is empty");
  trace.format = options.format == TraceFormat::automatic ? detect_format(line) : options.format;
  if (trace.format == TraceFormat::automatic) {
    reader.fail(fmt::format("no known trace format, which are {}: the first line is {}",
                            known_formats(), in_quotes(line)));
  }
  if (trace.format == TraceFormat::servegen) {
    reader.fail_file("a ServeGen client table is read from its file, beside its histograms");
  }
  options.block_tokens = block_tokens_of(trace.format, options);
  trace.list.block_tokens = options.block_tokens;
  std::unique_ptr<RowParser> parser;
  if (is_csv(trace.format)) {
    RowFault fault;
    parser = make_csv_parser(trace.format, line, options, fault);
    if (fault) reader.fail(fault.detail);
  } else {
    reader.unread();
    parser = make_json_parser(trace.format, options);
  }
  RowLoop(reader, options, trace).run(*parser);
}

void finish_trace(LineReader& reader, const TraceOptions& options, Trace& trace) {
  trace.file = reader.name();
  trace.compression = reader.compression();
  auto digest = reader.finish();
  trace.sha256 = std::move(digest.sha256);
  trace.file_bytes = digest.bytes;
  normalize(trace.list);
  trace.tick_ns = arrival_tick_ns(trace.list);
  const double jitter_ns = options.jitter_s * static_cast<double>(kNanosPerSecond);
  jitter_arrivals(trace.list, std::llround(jitter_ns), options.seed);
  scale_time(trace.list, options.speed);
  PACKSTONE_ASSERT(trace.rows.read == trace.rows.emitted + trace.rows.dropped_total());
}

Trace read_from(LineReader& reader, const TraceOptions& options) {
  Trace trace;
  read_rows(reader, options, trace);
  finish_trace(reader, options, trace);
  return trace;
}

bool is_servegen(LineReader& reader, const TraceOptions& options) {
  if (options.format != TraceFormat::automatic) return options.format == TraceFormat::servegen;
  std::string_view line;
  if (!reader.next(line)) return false;
  reader.unread();
  return detect_format(line) == TraceFormat::servegen;
}

}  // namespace

TraceError::TraceError(std::string file, std::int64_t line, std::string reason)
    : Error(line > 0 ? fmt::format("{}:{}: {}", file, line, reason)
                     : fmt::format("{}: {}", file, reason)),
      file_(std::move(file)),
      line_(line),
      reason_(std::move(reason)) {}

std::int64_t RowCounts::dropped_total() const {
  std::int64_t total = 0;
  for (const auto& [reason, count] : dropped) total += count;
  return total;
}

const char* to_string(TraceFormat format) {
  for (const FormatName& known : kFormatNames) {
    if (known.format == format) return known.name;
  }
  return "unknown";
}

TraceFormat trace_format_from(std::string_view name) {
  std::string names;
  for (const FormatName& known : kFormatNames) {
    if (name == known.name) return known.format;
    names += names.empty() ? "" : ", ";
    names += known.name;
  }
  throw InvalidArgument(
      fmt::format("no trace format is called {}; there are: {}", in_quotes(name), names));
}

std::vector<std::string> trace_format_names() {
  std::vector<std::string> names;
  names.reserve(kFormatNames.size());
  for (const FormatName& known : kFormatNames) names.emplace_back(known.name);
  return names;
}

Trace read_trace(const std::string& path, const TraceOptions& options) {
  check_options(options);
  LineReader reader = LineReader::open(path, options.limits);
  if (!is_servegen(reader, options)) return read_from(reader, options);
  Trace trace;
  trace.format = TraceFormat::servegen;
  trace.rows = read_servegen(reader, path, options, trace.list);
  finish_trace(reader, options, trace);
  return trace;
}

Trace read_trace_bytes(std::string_view bytes, const std::string& name,
                       const TraceOptions& options) {
  check_options(options);
  LineReader reader = LineReader::over(bytes, name, options.limits);
  return read_from(reader, options);
}

}  // namespace packstone::sim
