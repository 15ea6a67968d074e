// SPDX-License-Identifier: Apache-2.0
#include <sim/bandwidth_study.hpp>
#include <sim/report.hpp>
#include <sim/report_assets.hpp>
#include <sim/version.hpp>

#include <cmath>
#include <string_view>

namespace packstone::sim {

namespace {

using Json = nlohmann::ordered_json;

/// Five significant digits: enough for a figure, and a quarter of the bytes.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0.0) return 0;
  const double scale = std::pow(10.0, 4.0 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json rounded(const std::vector<double>& values) {
  Json array = Json::array();
  for (const double value : values) array.push_back(rounded(value));
  return array;
}

/// A row of the map as two characters a cell: '0' + ninths in use, 'a' + run class.
std::string map_row(const std::vector<std::uint8_t>& cells) {
  std::string row;
  row.reserve(cells.size());
  for (std::size_t i = 0; i < cells.size(); i += 2) {
    row.push_back(static_cast<char>('0' + cells[i]));
    row.push_back(static_cast<char>('a' + cells[i + 1]));
  }
  return row;
}

/// The name under which the page's script groups the figures of a case.
std::string case_name(const ProbeSpec& spec) {
  const ProbeShape& shape = spec.shape;
  const std::string tail =
      std::to_string(shape.heads) + " heads, " + std::to_string(shape.q_len) + " query tokens";
  if (shape.live()) return spec.model.name + ", live sequences, " + tail;
  return spec.model.name + ", " + std::to_string(shape.batch) + " x " +
         std::to_string(shape.length) + " tokens, " + tail;
}

Json cost_data(const RunResult& result) {
  if (result.probes.empty() && result.notes.empty()) return nullptr;
  Json cost = bandwidth_json(result);
  Json maps = Json::array();
  for (const ProbeResult& probe : result.probes) {
    if (probe.map_before.empty()) continue;
    maps.push_back({{"name", case_name(probe.spec)},
                    {"before", map_row(probe.map_before)},
                    {"after", map_row(probe.map_after)}});
  }
  cost["maps"] = std::move(maps);
  return cost;
}

Json run_data(const Study& study, std::size_t index) {
  const RunResult& result = study.results[index];
  Json series = Json::object();
  Json turnovers = Json::array();
  Json at_seconds = Json::array();
  Json at_step = Json::array();
  Json steady_flags = Json::array();
  for (const Sample& sample : result.samples) {
    turnovers.push_back(rounded(sample.turnovers));
    at_seconds.push_back(rounded(seconds_of(sample.now_ns)));
    at_step.push_back(sample.step);
    steady_flags.push_back(sample.steady ? 1 : 0);
  }
  for (const MetricField& field : metric_fields()) {
    Json values = Json::array();
    for (const Sample& sample : result.samples) {
      values.push_back(rounded(sample.metrics.*field.value));
    }
    series[field.name] = std::move(values);
  }
  Json oracle_run_mean = Json::array();
  for (const Sample& sample : result.samples) {
    oracle_run_mean.push_back(rounded(sample.oracle_run_mean));
  }
  Json steady = Json::object();
  for (const MetricField& field : metric_fields()) {
    steady[field.name] = rounded(result.steady.*field.value);
  }
  Json map = Json::array();
  for (const auto& row : result.map) map.push_back(map_row(row));
  const CostModel& cost = study.options[index].cost;
  const double moves = std::isnan(result.steady_moves_min) ? 0.0 : result.steady_moves_min;
  const double tokens = std::isnan(result.steady.live_tokens) ? 0.0 : result.steady.live_tokens;
  Json defrag = nullptr;
  if (result.defrag) {
    defrag = defrag_json(*result.defrag);
    defrag.erase("how");
    defrag["verdict"] = defrag_verdict(*result.defrag);
  }
  Json reuse = nullptr;
  if (result.reuse) {
    reuse = reuse_json(*result.reuse);
    reuse["evictions"] = result.reuse->evictions;
  }
  return {{"policy", result.policy},
          {"page_size", result.page_size},
          {"prefix_cache", reuse},
          {"speculation", result.drafting
                              ? drafting_json(*result.drafting, study.options[index].drafting.nodes)
                              : Json(nullptr)},
          {"defrag", defrag},
          {"cost", cost_data(result)},
          {"pool_pages", result.pool_pages},
          {"turnovers", turnovers},
          {"seconds", at_seconds},
          {"step", at_step},
          {"steady_flags", steady_flags},
          {"series", series},
          {"steady", steady},
          {"steady_samples", result.steady_samples},
          {"oracle_run_mean", oracle_run_mean},
          {"oracle",
           {{"run_mean", rounded(result.steady_oracle_run_mean)},
            {"tok_in_runs_64", rounded(result.steady_oracle_tok_in_runs[1])}}},
          {"run_shares", rounded(result.run_shares)},
          {"oracle_run_shares", rounded(result.oracle_run_shares)},
          {"F", rounded(result.free_F)},
          {"blowup", rounded(result.blowup())},
          {"requests", result.counters.retired()},
          {"finished", result.counters.finished},
          {"aborted", result.counters.aborted},
          {"refused", result.counters.refused},
          {"preemptions", result.counters.preemptions},
          {"alloc_fail", result.counters.alloc_fail_capacity},
          {"steps", result.counters.steps},
          {"moves_min", rounded(moves)},
          {"copy_ms", rounded(1e3 * copy_seconds(cost, std::llround(moves), result.page_size))},
          {"floor_ms", rounded(1e3 * attention_floor_seconds(cost, std::llround(tokens)))},
          {"map", map}};
}

/// "</script>" inside the data would end the element early.
std::string safe_in_script(std::string json) {
  for (std::size_t at = json.find('<'); at != std::string::npos; at = json.find('<', at)) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

}  // namespace

std::string report_html(const Study& study) {
  Json bins = Json::array();
  for (int bin = 0; bin < RunLengths::kBins; ++bin) bins.push_back(run_bin_start(bin));
  Json runs = Json::array();
  for (std::size_t i = 0; i < study.results.size(); ++i) runs.push_back(run_data(study, i));
  const Json data = {
      {"meta", meta_json(study)},
      {"bins", bins},
      {"measured_on", study.measured_on.empty() ? Json(nullptr) : Json(study.measured_on)},
      {"runs", runs}};

  std::string page(kReportHead);
  page += "<style>\n";
  page += kReportStyle;
  page += "</style>\n</head>\n<body>\n";
  page += kReportBody;
  page += "<script type=\"application/json\" id=\"data\">";
  page += safe_in_script(data.dump(-1, ' ', false, Json::error_handler_t::replace));
  page += "</script>\n<script>\n";
  page += kReportScript;
  page += "</script>\n</body>\n</html>\n";
  return page;
}

}  // namespace packstone::sim
