// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/bandwidth_study.hpp>
#include <sim/command_parse.hpp>
#include <sim/output.hpp>
#include <sim/report.hpp>
#include <sim/version.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace packstone::sim {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHow =
    "measured-cpu: counted on the page tables of a replay through the manager; "
    "times under limits and simulated seconds are modelled";

Json metrics_object(const Metrics& metrics) {
  Json object = Json::object();
  for (const MetricField& field : metric_fields()) object[field.name] = metrics.*field.value;
  return object;
}

Json events_per_s(const RunResult& result, bool timing) {
  return timing ? Json(result.timing.events_per_s) : Json(nullptr);
}

/// The sample closest above each of the turnovers of the decay curve.
Json decay(const RunResult& result) {
  Json rows = Json::array();
  for (const double turnovers : {0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    for (const Sample& sample : result.samples) {
      if (sample.turnovers < turnovers || sample.turnovers > turnovers * 1.25) continue;
      rows.push_back({{"turnovers", sample.turnovers},
                      {"contig_prefill", sample.metrics.contig_prefill},
                      {"contig_decode", sample.metrics.contig_decode},
                      {"run_mean", sample.metrics.run_mean}});
      break;
    }
  }
  return rows;
}

Json oracle_object(const RunResult& result) {
  return {{"contig_prefill", 1.0},
          {"contig_decode", 1.0},
          {"run_mean", result.steady_oracle_run_mean},
          {"tok_in_runs_16", result.steady_oracle_tok_in_runs[0]},
          {"tok_in_runs_64", result.steady_oracle_tok_in_runs[1]},
          {"tok_in_runs_128", result.steady_oracle_tok_in_runs[2]},
          {"descriptors", 1.0},
          {"frontier_waste", 0.0},
          {"blowup", 1.0}};
}

Json limits_object(const RunResult& result, const RunOptions& options) {
  const auto moves = static_cast<PageCount>(
      std::llround(std::isnan(result.steady_moves_min) ? 0.0 : result.steady_moves_min));
  const auto tokens = static_cast<TokenCount>(
      std::isnan(result.steady.live_tokens) ? 0 : std::llround(result.steady.live_tokens));
  return {{"how", "modelled"},
          {"frontier_moves_min", result.steady_moves_min},
          {"frontier_copy_s", copy_seconds(options.cost, moves, result.page_size)},
          {"attention_floor_s", attention_floor_seconds(options.cost, tokens)},
          {"copy_gbps", options.cost.copy_gbps},
          {"read_gbps", options.cost.read_gbps},
          {"layers", options.cost.layers},
          {"bytes_per_slot", options.cost.slot_bytes}};
}

}  // namespace

Json reuse_json(const ReuseCounters& reuse) {
  const auto rate = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? Json(nullptr)
                      : Json(static_cast<double>(part) / static_cast<double>(whole));
  };
  return {{"blocks_asked", reuse.blocks_asked},
          {"blocks_hit", reuse.blocks_hit},
          {"block_hit_rate", rate(reuse.blocks_hit, reuse.blocks_asked)},
          {"tokens_asked", reuse.tokens_asked},
          {"tokens_hit", reuse.tokens_hit},
          {"token_hit_rate", rate(reuse.tokens_hit, reuse.tokens_asked)}};
}

Json drafting_json(const DraftingCounters& drafting, std::int64_t nodes) {
  const std::int64_t steps = drafting.drafted / std::max<std::int64_t>(nodes, 1);
  return {{"drafted", drafting.drafted},
          {"accepted", drafting.accepted},
          {"tokens_per_step",
           steps == 0 ? Json(nullptr)
                      : Json(static_cast<double>(drafting.accepted) / static_cast<double>(steps))},
          {"row_moves", drafting.row_moves}};
}

namespace {

double share_of(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
}

std::string speculation_line(const RunResult& result, const DraftingOptions& options) {
  const DraftingCounters& counters = *result.drafting;
  return fmt::format(
      "speculation {} page {}, {}: {} of {} drafted tokens accepted ({:.1f} %), {:.2f} a step of a "
      "sequence, {} rows moved\n",
      result.policy, result.page_size, described(options), counters.accepted, counters.drafted,
      100.0 * share_of(counters.accepted, counters.drafted),
      share_of(counters.accepted, counters.drafted / std::max(options.nodes, 1)),
      counters.row_moves);
}

Json run_object(const Study& study, std::size_t index) {
  const RunResult& result = study.results[index];
  const SchedulerCounters& counters = result.counters;
  Json object = {
      {"policy", result.policy},
      {"page_size", result.page_size},
      {"pool_pages", result.pool_pages},
      {"requests", counters.retired()},
      {"finished", counters.finished},
      {"aborted", counters.aborted},
      {"refused", counters.refused},
      {"events", counters.tokens_written + counters.tokens_released},
      {"events_per_s", events_per_s(result, study.timing)},
      {"steps", counters.steps},
      {"simulated_s", seconds_of(result.now_ns)},
      {"tokens_written", counters.tokens_written},
      {"tokens_recomputed", counters.tokens_recomputed},
      {"turnovers", static_cast<double>(counters.tokens_written) /
                        static_cast<double>(result.pool_pages * result.page_size)},
      {"running_max", counters.running_max},
      {"alloc_fail", counters.alloc_fail_capacity},
      {"alloc_fail_capacity", counters.alloc_fail_capacity},
      // Any free page serves any request, so no allocation fails for fragmentation.
      {"alloc_fail_fragment", 0},
      {"preemptions", counters.preemptions},
      {"evictions", result.reuse ? result.reuse->evictions : 0},
      {"hit_tokens", result.reuse ? result.reuse->tokens_hit : 0},
      {"moves", result.defrag ? result.defrag->counters.moves : 0},
  };
  object.update(metrics_object(result.steady));
  object["blowup"] = result.blowup();
  object["steady_samples"] = result.steady_samples;
  object["F"] = result.free_F;
  object["ufsi"] = result.ufsi;
  object["extfrag"] = result.extfrag;
  object["decay"] = decay(result);
  object["oracle"] = oracle_object(result);
  object["limits"] = limits_object(result, study.options[index]);
  if (result.reuse) object["prefix_cache"] = reuse_json(*result.reuse);
  if (result.drafting) {
    object["speculation"] = drafting_json(*result.drafting, study.options[index].drafting.nodes);
  }
  if (result.defrag) object["defrag"] = defrag_json(*result.defrag);
  if (!study.measured_on.empty()) object.update(bandwidth_json(result));
  object["how"] = kHow;
  object["digest"] = fmt::format("{:016x}", result.digest);
  object["timing"] = nullptr;
  if (study.timing) {
    object["timing"] = {{"how", "measured-cpu, wall clock"},
                        {"replay_s", result.timing.replay_s},
                        {"sampling_s", result.timing.sampling_s},
                        {"alloc_ns_p50", result.timing.step_ns_p50},
                        {"alloc_ns_p99", result.timing.step_ns_p99}};
  }
  return object;
}

std::string number(double value) {
  return std::isnan(value) ? std::string() : fmt::format("{:.6g}", value);
}

std::string seconds(std::int64_t nanos) {
  return nanos < 0 ? std::string() : fmt::format("{:.6f}", seconds_of(nanos));
}

std::string share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? std::string()
                    : fmt::format("{:.6g}", static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

Json defrag_json(const DefragReport& report) {
  const DefragCounters& counters = report.counters;
  const bool frontier = report.objective == std::string("frontier");
  return {{"objective", report.objective},
          {"plans", counters.plans},
          {"plans_with_moves", counters.plans_with_moves},
          {"moves", counters.moves},
          {"first_lower_bound", counters.first_lower_bound},
          {"moves_to_first_empty_plan",
           counters.moves_to_first_empty < 0 ? Json(nullptr) : Json(counters.moves_to_first_empty)},
          {"frontier_moves_left", frontier ? Json(report.moves_left) : Json(nullptr)},
          {"bytes_moved", report.bytes_moved},
          {"moves_per_alloc", report.moves_per_alloc},
          {"run_mean_before", report.run_mean_before},
          {"run_mean_after", report.run_mean_after},
          {"descriptors_before", report.descriptors_before},
          {"descriptors_after", report.descriptors_after},
          {"contig_before", report.contig_before},
          {"contig_after", report.contig_after},
          {"pause_us_p50", report.pause_us_p50},
          {"pause_us_p99", report.pause_us_p99},
          {"pause_us_max", report.pause_us_max},
          {"step_cost_us", report.step_cost_us},
          {"step_gain_us", report.step_gain_us},
          {"break_even_steps",
           std::isinf(report.break_even_steps) ? Json(nullptr) : Json(report.break_even_steps)},
          {"how", "moves and runs measured-cpu; bytes, times and break-even modelled"}};
}

std::string defrag_verdict(const DefragReport& report) {
  const double gain = report.step_gain_us;
  // Moves come every step, so they must be paid for within one.
  std::string worth = "it never pays";
  if (gain > report.step_cost_us) {
    worth =
        fmt::format("it pays, the moves of a step within {:.2f} of one", report.break_even_steps);
  } else if (gain > 0.0) {
    worth = fmt::format("it does not pay, the moves of each step cost the gain of {:.1f} steps",
                        report.break_even_steps);
  }
  return fmt::format(
      "{}: {} moves ({:.3f} a page allocated), mean run {:.1f} -> {:.1f}, runs a request {:.1f} -> "
      "{:.1f}; copies cost {:.1f} us a step and save {:.1f} us of attention a step (modelled): for "
      "attention alone {}",
      report.objective, report.counters.moves, report.moves_per_alloc, report.run_mean_before,
      report.run_mean_after, report.descriptors_before, report.descriptors_after,
      report.step_cost_us, gain, worth);
}

Json meta_json(const Study& study) {
  Json arguments = Json::object();
  for (const auto& [name, value] : study.arguments) arguments[name] = value;
  Json source = {{"kind", study.source}, {"name", study.name}};
  source["format"] = study.format.empty() ? Json(nullptr) : Json(study.format);
  source["sha256"] = study.sha256.empty() ? Json(nullptr) : Json(study.sha256);
  return {
      {"program", "packstone"},
      {"version", kVersion},
      {"command", "simulate"},
      {"arguments", arguments},
      {"seed", study.seed},
      {"source", source},
      {"rows",
       {{"read", study.rows.read},
        {"emitted", study.rows.emitted},
        {"dropped", study.rows.dropped},
        {"prefill_only", study.rows.prefill_only}}},
      {"requests", study.list.requests.size()},
      {"tokens", total_tokens(study.list)},
      {"files", {"meta.json", "summary.json", "timeseries.csv", "requests.csv", "report.html"}}};
}

Json summary_json(const Study& study) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < study.results.size(); ++i) runs.push_back(run_object(study, i));
  return {{"program", "packstone"},
          {"version", kVersion},
          {"source", study.name},
          {"seed", study.seed},
          {"steady",
           "metrics are means over the samples of the second half of the tokens, after one pool "
           "turnover and before the queue ran empty; run lengths are in slots"},
          {"measured_on", study.measured_on.empty() ? Json(nullptr) : Json(study.measured_on)},
          {"runs", runs}};
}

std::string timeseries_csv(const Study& study) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "policy,page_size,step,seconds,turnovers,tokens_written,retired,preemptions");
  for (const MetricField& field : metric_fields()) fmt::format_to(to, ",{}", field.name);
  fmt::format_to(to, ",oracle_run_mean,steady\n");
  for (const RunResult& result : study.results) {
    for (const Sample& sample : result.samples) {
      fmt::format_to(to, "{},{},{},{},{:.6g},{},{},{}", result.policy, result.page_size,
                     sample.step, seconds(sample.now_ns), sample.turnovers, sample.tokens_written,
                     sample.retired, sample.preemptions);
      for (const MetricField& field : metric_fields()) {
        fmt::format_to(to, ",{}", number(sample.metrics.*field.value));
      }
      fmt::format_to(to, ",{},{}\n", number(sample.oracle_run_mean), sample.steady ? 1 : 0);
    }
  }
  return fmt::to_string(out);
}

std::string requests_csv(const Study& study) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to,
                 "policy,page_size,request,source_id,outcome,prompt_tokens,output_tokens,generated,"
                 "cached,preemptions,arrival_s,admitted_s,first_token_s,finished_s,runs,"
                 "contig_prefill,contig_decode,pages2m,pages2m_min\n");
  for (const RunResult& result : study.results) {
    for (const RequestRow& row : result.requests) {
      const Retired& what = row.what;
      const LayoutTotals& layout = row.layout;
      const Request& request = study.list.requests[static_cast<std::size_t>(what.request)];
      fmt::format_to(
          to, "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", result.policy,
          result.page_size, what.request,
          request.source_id < 0 ? std::string() : std::to_string(request.source_id),
          to_string(what.outcome), request.prompt_tokens, request.output_tokens, what.generated,
          what.cached, what.preemptions, seconds(what.arrival_ns), seconds(what.admitted_ns),
          seconds(what.first_token_ns), seconds(what.finished_ns), layout.runs,
          share(layout.prefill_adjacent, layout.prefill_pairs),
          share(layout.decode_adjacent, layout.decode_pairs), layout.regions, layout.regions_min);
    }
  }
  return fmt::to_string(out);
}

std::string result_table(const Study& study) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{:<8} {:>5} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9} {:>7} {:>7} {:>9}\n",
                 "policy", "page", "run mean", "prefill", "decode", "in runs", "runs per", "2 MiB",
                 "frontier", "alloc", "pre-", "M events");
  fmt::format_to(to, "{:<8} {:>5} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9} {:>7} {:>7} {:>9}\n",
                 "", "size", "slots", "contig", "contig", ">= 64", "request", "regions", "waste",
                 "fails", "empted", "/ s");
  const auto cell = [](double value, int digits) {
    return std::isnan(value) ? std::string("n/a") : fmt::format("{:.{}f}", value, digits);
  };
  for (std::size_t i = 0; i < study.results.size(); ++i) {
    const RunResult& result = study.results[i];
    const Metrics& m = result.steady;
    fmt::format_to(to, "{:<8} {:>5} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9} {:>7} {:>7} {:>9}\n",
                   result.policy, result.page_size, cell(m.run_mean, 1), cell(m.contig_prefill, 3),
                   cell(m.contig_decode, 3), cell(m.tok_in_runs_64, 3), cell(m.descriptors, 1),
                   cell(m.pages2m_ratio, 1), cell(m.frontier_waste, 3),
                   result.counters.alloc_fail_capacity, result.counters.preemptions,
                   study.timing ? cell(result.timing.events_per_s / 1e6, 1) : "-");
    const bool last =
        i + 1 == study.results.size() || study.results[i + 1].page_size != result.page_size;
    if (!last) continue;
    fmt::format_to(to, "{:<8} {:>5} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9}\n", "oracle",
                   result.page_size, cell(result.steady_oracle_run_mean, 1), "1.000", "1.000",
                   cell(result.steady_oracle_tok_in_runs[1], 3), "1.0", "1.0", "0.000");
  }
  fmt::format_to(to,
                 "Means over the samples of the steady state. How: measured-cpu (page tables of a "
                 "replay through the manager).\nOracle: each sequence in one extent, packed.\n");
  for (std::size_t i = 0; i < study.results.size(); ++i) {
    const RunResult& result = study.results[i];
    const Json limits = limits_object(result, study.options[i]);
    fmt::format_to(to,
                   "limits {} page {}: {:.1f} turnovers; packing below the frontier takes at least "
                   "{:.0f} moves, {:.3f} ms at {:.0f} GB/s; reading all live tokens takes at least "
                   "{:.3f} ms (modelled)\n",
                   result.policy, result.page_size,
                   static_cast<double>(result.counters.tokens_written) /
                       static_cast<double>(result.pool_pages * result.page_size),
                   std::isnan(result.steady_moves_min) ? 0.0 : result.steady_moves_min,
                   limits["frontier_copy_s"].get<double>() * 1e3, study.options[i].cost.copy_gbps,
                   limits["attention_floor_s"].get<double>() * 1e3);
  }
  for (std::size_t i = 0; i < study.results.size(); ++i) {
    const RunResult& result = study.results[i];
    if (result.counters.refused > 0) {
      fmt::format_to(to, "refused {} page {}: {} of {} requests could never fit into the pool\n",
                     result.policy, result.page_size, result.counters.refused,
                     result.counters.retired());
    }
    if (result.counters.tokens_written < result.pool_pages * result.page_size) {
      fmt::format_to(to, "short {} page {}: the pool was not turned over once\n", result.policy,
                     result.page_size);
    }
    if (result.reuse && result.reuse->blocks_asked > 0) {
      fmt::format_to(
          to, "prefix cache {} page {}: {} of {} blocks found ({:.1f} %), {} evictions\n",
          result.policy, result.page_size, result.reuse->blocks_hit, result.reuse->blocks_asked,
          100.0 * share_of(result.reuse->blocks_hit, result.reuse->blocks_asked),
          result.reuse->evictions);
    }
    if (result.drafting)
      fmt::format_to(to, "{}", speculation_line(result, study.options[i].drafting));
    if (result.defrag) {
      fmt::format_to(to, "defrag {} page {}: {}\n", result.policy, result.page_size,
                     defrag_verdict(*result.defrag));
    }
  }
  if (!study.measured_on.empty()) {
    fmt::format_to(to, "\nbandwidth on: {}\n{}", study.measured_on, bandwidth_table(study.results));
  }
  return fmt::to_string(out);
}

Files study_files(const Study& study) {
  const auto text = [](const Json& json) { return json.dump(1) + "\n"; };
  return {{"meta.json", text(meta_json(study))},
          {"summary.json", text(summary_json(study))},
          {"timeseries.csv", timeseries_csv(study)},
          {"requests.csv", requests_csv(study)},
          {"report.html", report_html(study)}};
}

}  // namespace packstone::sim
