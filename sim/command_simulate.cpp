// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/placement.hpp>

#include <fmt/format.h>
#include <sim/bandwidth_study.hpp>
#include <sim/command_parse.hpp>
#include <sim/command_simulate.hpp>
#include <sim/cost_curve.hpp>
#include <sim/output.hpp>
#include <sim/probe_case.hpp>
#include <sim/progress.hpp>
#include <sim/workload.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <ostream>
#include <thread>

namespace packstone::sim {

namespace {

/// A number in [low, high], with a message that says so.
template <typename Number>
CLI::Validator within(Number low, Number high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size()) {
          return text + " is not a number that fits";
        }
        if (!(value >= low && value <= high)) {
          return fmt::format("{} is not between {} and {}", text, low, high);
        }
        return {};
      },
      "");
}

std::string join(const auto& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

std::string model_names() {
  std::vector<std::string> names;
  for (const KvModel& model : kv_models()) names.push_back(model.name);
  return join(names);
}

/// A file name is any bytes, what is written of it is UTF-8: others become U+FFFD.
std::string as_text(const std::string& bytes) {
  using Json = nlohmann::json;
  return Json::parse(Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace));
}

void load_trace(const SimulateArguments& arguments, Study& study) {
  TraceOptions options;
  options.format = trace_format_from(arguments.trace_format);
  options.on_bad_row = arguments.on_bad_row == "skip" ? OnBadRow::skip : OnBadRow::error;
  options.block_tokens = arguments.block_tokens;
  options.requests_max = arguments.requests.value_or(-1);
  options.speed = arguments.speed;
  options.jitter_s = arguments.jitter_s;
  options.seed = arguments.seed;
  if (arguments.requests) options.servegen_requests = *arguments.requests;
  Trace trace = read_trace(*arguments.trace, options);
  study.source = "trace";
  study.name = as_text(std::filesystem::path(*arguments.trace).filename().string());
  study.format = to_string(trace.format);
  study.sha256 = trace.sha256;
  study.rows = trace.rows;
  study.list = std::move(trace.list);
  if (study.list.requests.empty()) {
    throw TraceError(*arguments.trace, 0,
                     fmt::format("no request to replay: {} rows read, {} dropped", trace.rows.read,
                                 trace.rows.dropped_total()));
  }
}

WorkloadHints load_workload(const SimulateArguments& arguments, Study& study) {
  std::string spec = arguments.workload.value_or("chat-azure");
  if (arguments.requests) {
    spec += spec.find(':') == std::string::npos ? ":" : ",";
    spec += "requests=" + std::to_string(*arguments.requests);
  }
  Workload workload = make_workload(spec, arguments.seed);
  study.source = "workload";
  study.name = workload.spec;
  study.list = std::move(workload.list);
  jitter_arrivals(study.list, static_cast<std::int64_t>(arguments.jitter_s * 1e9), arguments.seed);
  scale_time(study.list, arguments.speed);
  study.rows.read = static_cast<std::int64_t>(study.list.requests.size());
  study.rows.emitted = study.rows.read;
  for (const Request& request : study.list.requests) {
    study.rows.prefill_only += request.output_tokens == 0 ? 1 : 0;
  }
  return workload.hints;
}

Measure measure_of(const SimulateArguments& arguments) {
  const std::string& text = arguments.measure;
  if (text == "off") return arguments.gpu ? Measure::automatic : Measure::off;
  if (arguments.gpu && text != "auto") {
    throw InvalidArgument("--gpu is short for --measure auto and contradicts --measure " + text);
  }
  if (text == "gpu") return Measure::gpu;
  if (text == "cpu") return Measure::cpu;
  return text == "model" ? Measure::model : Measure::automatic;
}

/// What the study asks for, checked against the runs' pools.
BandwidthStudyOptions bandwidth_of(const SimulateArguments& arguments, const Study& study) {
  BandwidthStudyOptions options{.measure = measure_of(arguments), .specs = {}};
  if (!arguments.probes.empty() && options.measure == Measure::off) {
    throw InvalidArgument("--probe without --gpu or --measure");
  }
  for (const std::string& text : arguments.probes) options.specs.push_back(probe_spec_from(text));
  for (const RunOptions& run : study.options) require_shapes_fit(options.specs, run);
  if (arguments.no_timing && options.measure == Measure::automatic) {
    options.measure = Measure::model;
  }
  return options;
}

/// The device's probe where one is wanted and there is one; says in the study what measures.
std::unique_ptr<BandwidthProbe> probe_for(const BandwidthStudyOptions& options,
                                          const CommandContext& context, Study& study) {
  if (options.measure == Measure::off) return nullptr;
  std::unique_ptr<BandwidthProbe> probe;
  std::string reason =
      "this build has no device half; one that has comes from scripts/simulate --gpu where nvcc is";
  if (options.measure == Measure::automatic || options.measure == Measure::gpu) {
    if (context.make_probe) probe = context.make_probe(reason);
    if (!probe && options.measure == Measure::gpu) throw Error("--measure gpu: " + reason);
  }
  const std::string curve = "cost curve of: " + CostCurve::built_in().provenance();
  if (probe) {
    study.measured_on = probe->description();
  } else if (options.measure == Measure::model) {
    study.measured_on = curve;
  } else {
    study.measured_on = fmt::format("{} processors of this machine; ", options.threads) + curve;
    if (options.measure == Measure::automatic) study.measured_on += "; no device: " + reason;
  }
  return probe;
}

void describe(const SimulateArguments& arguments, const RunOptions& common, Study& study) {
  const auto add = [&](const char* name, std::string value) {
    study.arguments.emplace_back(name, std::move(value));
  };
  // The number of threads, the folder and the timing are left out: they do not change a result.
  add("policy", arguments.policies);
  add("page_size", arguments.page_sizes);
  add("pool_tokens", std::to_string(common.pool_tokens));
  add("concurrency", std::to_string(common.scheduler.concurrency));
  add("arrivals", arguments.arrivals);
  add("token_budget", std::to_string(arguments.token_budget));
  add("watermark", fmt::format("{}", arguments.watermark));
  add("prefix_cache", common.prefix_cache ? "on" : "off");
  add("speculate", described(common.drafting));
  if (common.defrag.objective) {
    add("defrag",
        fmt::format("{}:{}", to_string(*common.defrag.objective), common.defrag.pages_per_step));
    add("defrag_every", std::to_string(common.defrag.every));
    add("defrag_after", fmt::format("{}", common.defrag.after_turnovers));
  }
  add("samples", std::to_string(arguments.samples));
  add("bytes_per_slot", std::to_string(arguments.cost.slot_bytes));
  add("layers", std::to_string(arguments.cost.layers));
  add("copy_gbps", fmt::format("{}", arguments.cost.copy_gbps));
  add("read_gbps", fmt::format("{}", arguments.cost.read_gbps));
  add("speed", fmt::format("{}", arguments.speed));
  add("jitter", fmt::format("{}", arguments.jitter_s));
  if (arguments.requests) add("requests", std::to_string(*arguments.requests));
  if (arguments.measure != "off" || arguments.gpu) {
    add("measure", arguments.gpu ? "auto" : arguments.measure);
    if (!arguments.probes.empty())
      add("probe", fmt::format("{}", fmt::join(arguments.probes, " ")));
  }
  if (arguments.trace) {
    add("trace_format", arguments.trace_format);
    add("on_bad_row", arguments.on_bad_row);
    add("block_tokens", std::to_string(arguments.block_tokens));
  }
}

}  // namespace

void add_simulate_options(CLI::App& app, SimulateArguments& a) {
  constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
  app.footer(R"(Examples:
  packstone simulate --out out/first
      the built-in workload chat-azure under all policies; then open out/first/report.html
  packstone simulate --trace azure2023_conv.csv --policy fifo,run --page-size 1,16,64 --out out/conv
      a trace of one's own: Azure or BurstGPT CSV, Mooncake or Bailian JSONL; plain, gzip or zstd
  packstone simulate --workload reason-r1:requests=2000 --pool-tokens 1000000 --json
      a workload with a parameter; the summary as JSON on standard output
  packstone simulate --trace mooncake.jsonl --prefix-cache on --page-size 16 --pool-tokens 4000000
      prompts with equal block ids share their pages
  packstone simulate --policy fifo --requests 3000 --defrag straighten:4096 --defrag-after 8
      churn the pool eight times over, then straighten it while the requests go on; fewer pages a
      step than requests take anew (here some 800) leave it as it is
  packstone simulate --gpu --policy fifo --page-size 1,64 --pool-tokens 1000000 --concurrency 1024 \
      --requests 8000 --out out/cost
      what churn costs attention and transfers: fresh, churned and defragmented

The folder gets meta.json, summary.json, timeseries.csv, requests.csv and report.html. It is written
whole or not at all. Equal input, seed and arguments give equal bytes whatever the number of
threads; only `events_per_s` and `timing` of summary.json are wall-clock figures, and --no-timing
leaves them null.)");
  app.option_defaults()->always_capture_default(false);
  const std::string input = "Input";
  auto* trace = app.add_option("--trace", a.trace, "Trace file to replay")->group(input);
  app.add_option("--workload", a.workload,
                 "Built-in workload NAME[:key=value,...]; see `packstone workloads`. Default "
                 "chat-azure")
      ->excludes(trace)
      ->group(input);
  app.add_option("--requests", a.requests, "Take only so many requests")
      ->check(within<std::int64_t>(1, std::int64_t{1} << 40))
      ->group(input);
  app.add_option("--trace-format", a.trace_format,
                 "Format of the trace: " + join(trace_format_names()))
      ->check(CLI::IsMember(trace_format_names()).description(""))
      ->capture_default_str()
      ->group(input);
  app.add_option(
         "--on-bad-row", a.on_bad_row,
         "What a row that cannot be used does: error ends the run, skip drops and counts it")
      ->check(CLI::IsMember({"error", "skip"}).description(""))
      ->capture_default_str()
      ->group(input);
  app.add_option("--block-tokens", a.block_tokens,
                 "Tokens of a hash-id block; 0 is 512 for Mooncake and 16 for Bailian")
      ->check(within<std::int32_t>(0, 1 << 20))
      ->capture_default_str()
      ->group(input);
  app.add_option("--speed", a.speed, "Replay so many times as fast (matters with --arrivals trace)")
      ->check(within<double>(1e-6, 1e6))
      ->capture_default_str()
      ->group(input);
  app.add_option("--jitter", a.jitter_s,
                 "Spread arrivals by up to so many seconds (3 for Mooncake)")
      ->check(within<double>(0.0, 1e6))
      ->capture_default_str()
      ->group(input);
  app.add_option("--seed", a.seed, "Seed of workloads and jitter")
      ->check(within<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str()
      ->group(input);

  const std::string pool = "Pool and placement";
  app.add_option("--policy", a.policies,
                 "Placement policies, separated by commas, of " + join(placement_names()))
      ->capture_default_str()
      ->group(pool);
  app.add_option("--page-size", a.page_sizes,
                 "Slots a page, separated by commas; each policy is run with each")
      ->capture_default_str()
      ->group(pool);
  app.add_option("--pool-tokens", a.pool_tokens,
                 "Slots of the pool. Default: what the workload asks for, else 262144")
      ->check(within<std::int64_t>(1, std::int64_t{1} << 40))
      ->group(pool);

  const std::string scheduler = "Scheduler model (vLLM v1: continuous batching, chunked prefill)";
  app.add_option("--concurrency", a.concurrency,
                 "Most running requests. Default: what the workload asks for, else 128")
      ->check(within<std::int32_t>(1, 1 << 20))
      ->group(scheduler);
  app.add_option("--arrivals", a.arrivals,
                 "backlog: all requests wait from the start, so that the pool is as full as it can "
                 "be and churn is what shows; trace: each arrives at its time, where a step takes "
                 "10 ms + 40 us a prompt token + 17 ns a token of context (modelled)")
      ->check(CLI::IsMember({"backlog", "trace"}).description(""))
      ->capture_default_str()
      ->group(scheduler);
  app.add_option("--token-budget", a.token_budget, "Most tokens a step")
      ->check(within<std::int64_t>(1, kMany))
      ->capture_default_str()
      ->group(scheduler);
  app.add_option("--watermark", a.watermark, "Share of the pool that admission leaves free")
      ->check(within<double>(0.0, 0.999))
      ->capture_default_str()
      ->group(scheduler);

  const std::string manager = "Manager";
  app.add_option_function<std::string>(
         "--prefix-cache", [&a](const std::string& text) { a.prefix_cache = text == "on"; },
         "on: prompts share the pages of equal block ids, on the trace's or workload's ids; off "
         "is the default")
      ->check(CLI::IsMember({"on", "off"}).description(""))
      ->group(manager);
  app.add_option_function<std::string>(
         "--speculate", [&a](const std::string& text) { a.speculate = speculate_from(text); },
         "MODE:K:Q: draft K slots a step and accept further ones with chance Q each; MODE is "
         "rollback (free the rest each step), reserve (keep a tail) or front (move the accepted "
         "to the front, free the rest). off; default: what the workload asks for, else off")
      ->group(manager);
  app.add_option_function<std::string>(
         "--defrag", [&a](const std::string& text) { defrag_from(text, a.defrag); },
         "OBJECTIVE:PAGES_PER_STEP: move so many pages after a step, beside running decode; "
         "OBJECTIVE is frontier, straighten or granules. Planning takes milliseconds a step")
      ->group(manager);
  app.add_option("--defrag-every", a.defrag.every, "Plan after every so many steps")
      ->check(within<std::int64_t>(1, 1 << 30))
      ->capture_default_str()
      ->group(manager);
  app.add_option("--defrag-after", a.defrag.after_turnovers,
                 "Begin once the pool has turned over so often")
      ->check(within<double>(0.0, 1e9))
      ->capture_default_str()
      ->group(manager);

  const std::string measure = "Measuring";
  app.add_option("--samples", a.samples, "Samples of the metrics, evenly over the tokens")
      ->check(within<int>(1, 100'000))
      ->capture_default_str()
      ->group(measure);
  app.add_option("--bytes-per-slot", a.cost.slot_bytes,
                 "Bytes of a slot in one layer's buffer: 1152 MLA bf16, 656 MLA fp8")
      ->check(within<std::int64_t>(1, 1 << 20))
      ->capture_default_str()
      ->group(measure);
  app.add_option("--layers", a.cost.layers, "Layers whose buffers move together")
      ->check(within<std::int64_t>(1, 10'000))
      ->capture_default_str()
      ->group(measure);
  app.add_option(
         "--copy-gbps", a.cost.copy_gbps,
         "Bandwidth of page moves for modelled times, GB/s, read + write; the default is that of "
         "one H200, docs/compaction.md")
      ->check(within<double>(1e-3, 1e6))
      ->capture_default_str()
      ->group(measure);
  app.add_flag("--gpu", a.gpu,
               "Time attention and transfers on each run's page tables under the real kernels: "
               "fresh, churned and defragmented. Without a device: a gather by the processors, and "
               "the measured cost curve. Short for --measure auto")
      ->group(measure);
  app.add_option("--measure", a.measure,
                 "Where: auto, gpu (an error without one), cpu, model (cost curve only), off")
      ->check(CLI::IsMember({"off", "auto", "gpu", "cpu", "model"}).description(""))
      ->capture_default_str()
      ->group(measure);
  app.add_option(
         "--probe", a.probes,
         "What to time, may be repeated: MODEL:B,H,q,L places B sequences of L tokens in the "
         "churned pool as the policy would; MODEL:live,H,q takes those that live. H query "
         "heads, q query tokens. Models: " +
             model_names())
      ->group(measure);
  app.add_flag("--check", a.check, "Verify every invariant of the manager at each sample (slow)")
      ->group(measure);

  const std::string output = "Output";
  app.add_option("--out", a.out, "Folder for the results; replaced if it is an earlier run")
      ->group(output);
  app.add_flag("--json", a.json, "Print the summary as JSON instead of the table")->group(output);
  app.add_flag("--no-timing", a.no_timing, "Leave wall-clock figures out")->group(output);
  app.add_option("--threads", a.threads, "Runs at a time. Default: one a processor")
      ->check(within<int>(1, 1024))
      ->group(output);
}

void simulate(const SimulateArguments& arguments, const CommandContext& context) {
  const std::vector<std::string> policies = split(arguments.policies, "--policy");
  const std::vector<std::int64_t> page_sizes = page_sizes_of(arguments.page_sizes);
  for (const std::string& policy : policies) {
    if (std::ranges::find(placement_names(), policy) == placement_names().end()) {
      throw InvalidArgument(
          fmt::format("--policy: {} is none of {}", policy, join(placement_names())));
    }
  }
  if (arguments.out) require_replaceable(*arguments.out);

  Study study;
  study.seed = arguments.seed;
  study.timing = !arguments.no_timing;
  WorkloadHints hints;
  if (arguments.trace) {
    load_trace(arguments, study);
  } else {
    hints = load_workload(arguments, study);
  }

  RunOptions common;
  common.cost = arguments.cost;
  common.samples = arguments.samples;
  common.check = arguments.check;
  common.prefix_cache = arguments.prefix_cache;
  common.drafting =
      arguments.speculate.value_or(DraftingOptions{.mode = hints.speculation.mode,
                                                   .nodes = hints.speculation.draft_tokens,
                                                   .acceptance = hints.speculation.acceptance,
                                                   .accepted_max = hints.speculation.accepted_max});
  common.drafting.seed = arguments.seed;
  common.defrag = arguments.defrag;
  common.keep_requests = arguments.out.has_value();
  common.pool_tokens = arguments.pool_tokens.value_or(hints.pool_tokens > 0 ? hints.pool_tokens
                                                                            : common.pool_tokens);
  common.scheduler.concurrency = arguments.concurrency.value_or(
      hints.concurrency > 0 ? hints.concurrency : common.scheduler.concurrency);
  common.scheduler.token_budget = arguments.token_budget;
  common.scheduler.watermark = arguments.watermark;
  common.scheduler.arrivals = arguments.arrivals == "trace" ? Arrivals::trace : Arrivals::backlog;
  for (const std::int64_t page_size : page_sizes) {
    for (const std::string& policy : policies) {
      common.page_size = page_size;
      common.policy = policy;
      study.options.push_back(common);
    }
  }
  describe(arguments, common, study);
  BandwidthStudyOptions bandwidth = bandwidth_of(arguments, study);

  const auto runs = static_cast<std::int64_t>(study.options.size());
  const int threads = arguments.threads > 0
                          ? arguments.threads
                          : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bandwidth.threads = threads;
  const std::unique_ptr<BandwidthProbe> probe = probe_for(bandwidth, context, study);
  ProgressCounters counters;
  {
    const std::int64_t total = total_tokens(study.list) * runs;
    const ProgressDisplay display(
        context.err,
        [&counters, total, runs](double seconds) {
          return progress_line(counters.tokens.load(), total, seconds, counters.runs_done.load(),
                               runs);
        },
        context.show_progress);
    study.results = run_all(study.list, study.options, threads, &counters);
  }
  for (std::size_t i = 0; i < study.results.size(); ++i) {
    ProbeProgress progress;
    bandwidth.progress = &progress;
    const ProgressDisplay display(
        context.err,
        [&progress, run = static_cast<std::int64_t>(i) + 1, runs](double seconds) {
          return probe_progress_line(progress, run, runs, seconds);
        },
        context.show_progress && bandwidth.measure != Measure::off);
    study_bandwidth(study.list, study.options[i], bandwidth, probe.get(), study.results[i]);
  }
  if (arguments.out) write_folder(*arguments.out, study_files(study));
  if (arguments.json) {
    context.out << summary_json(study).dump(1) << "\n";
  } else {
    context.out << result_table(study);
    if (arguments.out) {
      context.out << "report: " << (std::filesystem::path(*arguments.out) / "report.html").string()
                  << "\n";
    }
  }
}

}  // namespace packstone::sim
