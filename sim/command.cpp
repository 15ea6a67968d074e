// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/command.hpp>
#include <sim/command_convert.hpp>
#include <sim/command_simulate.hpp>
#include <sim/version.hpp>
#include <sim/workload.hpp>

#include <algorithm>
#include <new>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace packstone::sim {

namespace {

void print_workloads(std::ostream& out) {
  for (const WorkloadInfo& info : list_workloads()) {
    out << fmt::format("{}\n    {}\n    statistics of: {}\n", info.name, info.description,
                       info.source);
    for (const WorkloadParameter& parameter : info.parameters) {
      const std::string choices = parameter.choices.empty()
                                      ? fmt::format("{} to {}", parameter.min, parameter.max)
                                      : fmt::format("{}", fmt::join(parameter.choices, "|"));
      out << fmt::format("      {}={}  {} ({})\n", parameter.name, parameter.default_value,
                         parameter.description, choices);
    }
  }
  out << "Use: packstone simulate --workload NAME:key=value,key=value\n";
}

void print_info(const CommandContext& context) {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}", __clang_version__);
#else
  const std::string compiler = fmt::format("g++ {}", __VERSION__);
#endif
#ifdef NDEBUG
  const char* build = "optimised";
#else
  const char* build = "with assertions of the standard library's kind on";
#endif
  context.out << fmt::format("packstone {}\ncompiler: {}, C++ {}\nbuild: {}\n", kVersion, compiler,
                             __cplusplus / 100 % 100, build);
  context.out << "policies: fifo, lifo, sorted, lowest, run\n";
  if (context.describe_devices) {
    context.describe_devices(context.out);
  } else {
    context.out << "CUDA: not built in (the simulator needs none)\n";
  }
}

/// The first line of a message, so that an error is one line whatever it quotes.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

int fail(const CommandContext& context, const std::string& message, int status) {
  context.err << "packstone: " << one_line(message) << std::endl;
  return status;
}

int parse_and_run(const std::vector<std::string>& arguments, const CommandContext& context) {
  CLI::App app(
      "packstone replays LLM serving traces through a real KV-cache manager and shows what churn\n"
      "does to the pool: how long the runs of consecutive slots are that each sequence lies in,\n"
      "under different placement policies, beside what would be possible.");
  app.name("packstone");
  app.set_version_flag("--version", std::string("packstone ") + kVersion,
                       "Print the version and exit");
  app.require_subcommand(1);
  app.footer(
      "Start with:  packstone simulate --out out/first   and open out/first/report.html\n"
      "Then:        packstone simulate --help");
  SimulateArguments simulate_arguments;
  CLI::App* simulate_app =
      app.add_subcommand("simulate", "Replay a trace or a workload and measure the pool");
  add_simulate_options(*simulate_app, simulate_arguments);
  CLI::App* workloads_app =
      app.add_subcommand("workloads", "List the built-in workloads and their parameters");
  ConvertArguments convert_arguments;
  CLI::App* convert_app =
      app.add_subcommand("convert", "Write a trace or a workload as Mooncake JSONL");
  add_convert_options(*convert_app, convert_arguments);
  CLI::App* info_app = app.add_subcommand("info", "Say how this command was built");

  std::vector<std::string> words = arguments;
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  const auto is_first = [&](const CLI::App* sub) { return sub->check_name(words.front()); };
  if (!words.empty() && !words.front().starts_with('-') &&
      std::as_const(app).get_subcommands(is_first).empty()) {
    return fail(context, "'" + words.front() + "' is no subcommand (--help lists them)",
                kExitUsage);
  }
  bool answered = false;
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& success) {  // --help and --version
    app.exit(success, context.out, context.err);
    answered = true;
  } catch (const CLI::ParseError& error) {
    return fail(context, std::string(error.what()) + " (--help tells more)", kExitUsage);
  }
  if (!answered) {
    if (*workloads_app) print_workloads(context.out);
    if (*info_app) print_info(context);
    if (*convert_app) convert(convert_arguments, context);
    if (*simulate_app) simulate(simulate_arguments, context);
  }
  context.out.flush();
  if (!context.out) return fail(context, "standard output cannot be written", kExitFailure);
  return kExitOk;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments, const CommandContext& context) {
  try {
    return parse_and_run(arguments, context);
  } catch (const InvalidArgument& error) {
    return fail(context, error.what(), kExitUsage);
  } catch (const std::bad_alloc&) {
    return fail(context, "out of memory", kExitFailure);
  } catch (const std::exception& error) {
    return fail(context, error.what(), kExitFailure);
  }
}

}  // namespace packstone::sim
