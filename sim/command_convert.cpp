// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/command_convert.hpp>
#include <sim/trace.hpp>
#include <sim/workload.hpp>

#include <filesystem>
#include <ostream>

namespace packstone::sim {

void add_convert_options(CLI::App& app, ConvertArguments& a) {
  app.footer(R"(Example:
  packstone convert --trace azure2023_conv.csv --out conv.jsonl

Writes the keys of Mooncake (timestamp in ms, input_length, output_length, hash_ids), and extra keys
for what these do not hold, so that reading the file back loses nothing. The size of a hash-id block
is not in the format: it is printed, and wanted back as --block-tokens.)");
  auto* trace = app.add_option("--trace", a.trace, "Trace file to read");
  app.add_option("--workload", a.workload, "Built-in workload NAME[:key=value,...] instead")
      ->excludes(trace);
  app.add_option("--out", a.out, "File to write; it may not exist yet")->required();
  app.add_option("--trace-format", a.trace_format, "Format of the trace")
      ->check(CLI::IsMember(trace_format_names()).description(""))
      ->capture_default_str();
  app.add_option("--on-bad-row", a.on_bad_row, "error or skip")
      ->check(CLI::IsMember({"error", "skip"}).description(""))
      ->capture_default_str();
  app.add_option("--block-tokens", a.block_tokens,
                 "Tokens of a hash-id block; 0 is 512 for Mooncake and 16 for Bailian")
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->capture_default_str();
  app.add_option("--seed", a.seed, "Seed of a workload")->capture_default_str();
}

void convert(const ConvertArguments& arguments, const CommandContext& context) {
  if (!arguments.trace && !arguments.workload) {
    throw InvalidArgument("convert: name a --trace or a --workload");
  }
  if (std::filesystem::exists(arguments.out)) {
    throw InvalidArgument(arguments.out + ": is there already");
  }
  RequestList list;
  std::string told;
  if (arguments.trace) {
    TraceOptions options;
    options.format = trace_format_from(arguments.trace_format);
    options.on_bad_row = arguments.on_bad_row == "skip" ? OnBadRow::skip : OnBadRow::error;
    options.block_tokens = arguments.block_tokens;
    options.seed = arguments.seed;
    Trace trace = read_trace(*arguments.trace, options);
    told = fmt::format("read {} rows as {}: {} requests, {} rows dropped\n", trace.rows.read,
                       to_string(trace.format), trace.rows.emitted, trace.rows.dropped_total());
    for (const auto& [reason, count] : trace.rows.dropped) {
      told += fmt::format("  {}: {}\n", reason, count);
    }
    list = std::move(trace.list);
  } else {
    list = make_workload(*arguments.workload, arguments.seed).list;
  }
  const std::int32_t block = write_mooncake_file(arguments.out, list);
  context.out << told
              << fmt::format("wrote {} requests; read them with --block-tokens {}\n",
                             list.requests.size(), block);
}

}  // namespace packstone::sim
