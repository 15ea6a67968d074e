// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/bandwidth_study.hpp>

#include <cmath>
#include <iterator>

namespace packstone::sim {

namespace {

using Json = nlohmann::ordered_json;

Json or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json shape_json(const ProbeShape& shape) {
  return {{"batch", shape.live() ? Json("live") : Json(shape.batch)},
          {"heads", shape.heads},
          {"q_len", shape.q_len},
          {"length", shape.live() ? Json(nullptr) : Json(shape.length)}};
}

void add_probe(const ProbeResult& probe, Json& object) {
  object["model"] = probe.spec.model.name;
  object["kv_type"] = to_string(probe.spec.model.type);
  object["shape"] = shape_json(probe.spec.shape);
  object["page_size"] = probe.page_size;
  object["row_bytes"] = probe.spec.model.row_bytes();
  object["pool_bytes_of_a_layer"] = probe.pool_bytes * probe.spec.model.buffers();
  object["sequences"] = probe.sequences;
  object["tokens"] = probe.tokens;
  object["layers"] = probe.layers;
  object["layers_of_the_model"] = probe.spec.model.layers;
}

Json bandwidth_object(const ProbeResult& probe, const BandwidthFigure& figure) {
  Json object = {{"placement", figure.placement},
                 {"kernel", figure.kernel},
                 {"gbps", figure.gbps.median},
                 {"ceiling_gbps", figure.ceiling_gbps},
                 {"how", to_string(figure.how)},
                 {"gbps_min", figure.gbps.min},
                 {"gbps_max", figure.gbps.max},
                 {"fraction_of_ceiling", figure.gbps.median / figure.ceiling_gbps},
                 {"runs", figure.runs},
                 {"layer_us", figure.layer_us},
                 {"run_mean", figure.run_mean}};
  add_probe(probe, object);
  return object;
}

Json transfer_object(const ProbeResult& probe, const TransferFigure& figure) {
  Json object = {{"placement", figure.placement},
                 {"method", figure.method},
                 {"descriptors", figure.descriptors},
                 {"bytes", figure.bytes},
                 {"ms", static_cast<double>(figure.bytes) / figure.gbps.median * 1e-6},
                 {"gbps", figure.gbps.median},
                 {"gbps_min", figure.gbps.min},
                 {"gbps_max", figure.gbps.max},
                 {"ceiling_gbps", figure.ceiling_gbps},
                 {"how", to_string(figure.how)}};
  add_probe(probe, object);
  return object;
}

Json defrag_object(const ProbeResult& probe) {
  const DefragFigure& d = *probe.defrag;
  Json budgets = Json::array();
  for (const StepCost& step : d.budgets) {
    budgets.push_back({{"budget_pages", step.budget}, {"moves", step.moves}, {"us", step.us}});
  }
  Json object = {
      {"how", to_string(d.how)},
      {"moves", d.moves},
      {"plans", d.plans},
      {"straightened", d.straight},
      {"bytes_moved", d.bytes_moved},
      {"move_us", d.move_us},
      {"step_gain_us", d.step_gain_us},
      {"spread_us", d.noise_us},
      {"one_plan_by_budget", budgets},
      {"outputs_identical", d.outputs_identical ? Json(*d.outputs_identical) : Json(nullptr)},
      {"break_even",
       {{"attention_steps", or_null(d.attention_steps)},
        {"batched_transfers", or_null(d.transfers)},
        {"kernel_transfers", or_null(d.kernel_transfers)},
        {"memory_given_back_steps", or_null(d.returned_steps)}}},
      {"memory_given_back",
       {{"bytes", d.returned_bytes},
        {"bytes_moved", d.returned_moved_bytes},
        {"move_us", d.returned_us}}},
      {"verdict", verdict(probe)}};
  add_probe(probe, object);
  return object;
}

std::string spread_text(const Spread& spread, int digits) {
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", spread.median, digits, spread.min, digits,
                     spread.max, digits);
}

}  // namespace

Json bandwidth_json(const RunResult& result) {
  Json bandwidth = Json::array();
  Json transfers = Json::array();
  Json defrag = Json::array();
  Json notes = result.notes;
  for (const ProbeResult& probe : result.probes) {
    for (const BandwidthFigure& figure : probe.bandwidth)
      bandwidth.push_back(bandwidth_object(probe, figure));
    for (const TransferFigure& figure : probe.transfers)
      transfers.push_back(transfer_object(probe, figure));
    if (probe.defrag) defrag.push_back(defrag_object(probe));
    if (!probe.note.empty())
      notes.push_back(probe.spec.model.name + ":" + probe.spec.shape.text() + ": " + probe.note);
  }
  return {{"bandwidth", bandwidth},
          {"transfers", transfers},
          {"defrag_cost", defrag},
          {"bandwidth_notes", notes}};
}

std::string bandwidth_table(const std::vector<RunResult>& results) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  for (const RunResult& result : results) {
    for (const ProbeResult& probe : result.probes) {
      fmt::format_to(
          to,
          "\n{} page {}, {}:{}, {} sequences, {} tokens, rows of {} bytes, {} of {} "
          "layers, {:.2f} GiB a layer\n",
          result.policy, result.page_size, probe.spec.model.name, probe.spec.shape.text(),
          probe.sequences, probe.tokens, probe.spec.model.row_bytes(), probe.layers,
          probe.spec.model.layers,
          static_cast<double>(probe.pool_bytes * probe.spec.model.buffers()) / (1 << 30));
      fmt::format_to(to, "  {:<13} {:<11} {:>9} {:>24} {:>8} {:>11}  {}\n", "placement", "kernel",
                     "run mean", "GB/s (least-most)", "ceiling", "us a layer", "how");
      for (const BandwidthFigure& figure : probe.bandwidth) {
        fmt::format_to(to, "  {:<13} {:<11} {:>9.1f} {:>24} {:>7.0f}% {:>11.1f}  {}\n",
                       figure.placement, figure.kernel, figure.run_mean,
                       spread_text(figure.gbps, figure.gbps.median < 100 ? 1 : 0),
                       100.0 * figure.gbps.median / figure.ceiling_gbps, figure.layer_us,
                       to_string(figure.how));
      }
      for (const TransferFigure& figure : probe.transfers) {
        fmt::format_to(to,
                       "  {:<13} {:<16} {:>10} descriptors {:>9.1f} ms {:>20} GB/s {:>5.0f}%  {}\n",
                       figure.placement, figure.method, figure.descriptors,
                       static_cast<double>(figure.bytes) / figure.gbps.median * 1e-6,
                       spread_text(figure.gbps, 1),
                       100.0 * figure.gbps.median / figure.ceiling_gbps, to_string(figure.how));
      }
      if (probe.defrag) fmt::format_to(to, "  defrag: {}\n", verdict(probe));
      if (!probe.note.empty()) fmt::format_to(to, "  note: {}\n", probe.note);
    }
    for (const std::string& note : result.notes) {
      fmt::format_to(to, "{} page {}: {}\n", result.policy, result.page_size, note);
    }
  }
  return fmt::to_string(out);
}

}  // namespace packstone::sim
