// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/bandwidth.hpp>
#include <sim/cost_curve.hpp>

#include <algorithm>
#include <cmath>

namespace packstone::sim {

namespace {

/// Calls `each(slots)` for every run of consecutive slots of the set.
template <typename Each>
void for_runs(const TableSet& set, Each&& each) {
  for (std::size_t s = 0; s < set.tables.size(); ++s) {
    const auto& table = set.tables[s];
    TokenCount left = set.lengths[s];
    TokenCount run = 0;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (i > 0 && table[i] != page_after(table[i - 1])) {
        each(run);
        run = 0;
      }
      const TokenCount here = std::min<TokenCount>(left, set.page_size);
      run += here;
      left -= here;
    }
    if (run > 0) each(run);
  }
}

/// GB/s of the whole set where each run is read at the curve's speed.
double modelled_gbps(const TableSet& set, CostCurve::Kind kind, Bytes row, Bytes pool) {
  double bytes = 0;
  double seconds = 0;
  TokenCount last = 0;
  double last_rate = 0;
  for_runs(set, [&](TokenCount run) {
    if (run != last) {
      last = run;
      last_rate = CostCurve::built_in().gbps(kind, row, run * row, pool);
    }
    const auto here = static_cast<double>(run * row);
    bytes += here;
    seconds += here / last_rate;
  });
  return bytes / seconds;
}

const BandwidthFigure* attention_of(const ProbeResult& result, const std::string& placement) {
  const BandwidthFigure* best = nullptr;
  for (const BandwidthFigure& figure : result.bandwidth) {
    if (figure.placement != placement || figure.kernel == "cpu-gather") continue;
    // The attention kernel, where it was run; else what the curve says of reading the rows.
    if (best == nullptr || figure.kernel != "read") best = &figure;
  }
  return best;
}

const TransferFigure* transfer_of(const ProbeResult& result, const std::string& placement,
                                  const std::string& method) {
  for (const TransferFigure& figure : result.transfers) {
    if (figure.placement == placement && figure.method == method) return &figure;
  }
  return nullptr;
}

/// Whole transfers of the sequences by this method that pay for the moves.
double transfers_to_pay(const ProbeResult& result, const std::string& method) {
  const TransferFigure* before = transfer_of(result, "churned", method);
  const TransferFigure* after = transfer_of(result, "defragmented", method);
  if (before == nullptr || after == nullptr) return kNever;
  const double whole = static_cast<double>(result.tokens) *
                       static_cast<double>(result.spec.model.token_bytes()) *
                       static_cast<double>(result.layers);
  const double gain_us = whole * (1.0 / before->gbps.median - 1.0 / after->gbps.median) * 1e-3;
  const auto half_spread_us = [&](const Spread& gbps) {
    return whole * (1.0 / gbps.min - 1.0 / gbps.max) * 0.5e-3;
  };
  // A gain within the spread of the runs is no gain.
  if (gain_us <= half_spread_us(before->gbps) + half_spread_us(after->gbps)) return kNever;
  return result.defrag->move_us / gain_us;
}

std::string transfers_text(double transfers) {
  if (std::isinf(transfers)) return "never";
  if (transfers < 1.0) return fmt::format("within {:.1f} % of one", 100.0 * transfers);
  return fmt::format("after {:.1f}", transfers);
}

std::string steps_text(double steps) {
  return std::isinf(steps) ? std::string("never") : fmt::format("after {:.0f}", std::ceil(steps));
}

}  // namespace

const char* to_string(How how) {
  switch (how) {
    case How::measured_gpu:
      return "measured-gpu";
    case How::measured_cpu:
      return "measured-cpu";
    case How::modelled:
      return "modelled";
  }
  return "unknown";
}

std::string ProbeShape::text() const {
  if (live()) return fmt::format("live,{},{}", heads, q_len);
  return fmt::format("{},{},{},{}", batch, heads, q_len, length);
}

Bytes ProbeCase::pool_bytes() const {
  return churned.pool_pages * churned.page_size * spec.model.row_bytes();
}

double ProbeCase::read_bytes() const {
  const TokenCount tails = std::ssize(churned.tables) * TokenCount{spec.shape.q_len};
  return static_cast<double>(churned.tokens() - tails) *
         static_cast<double>(spec.model.token_bytes());
}

std::vector<Placement> placements_of(const ProbeCase& probe, std::uint64_t seed) {
  std::vector<Placement> result;
  for (const TableLayout layout :
       {TableLayout::identity, TableLayout::churned, TableLayout::stride, TableLayout::random}) {
    // Shared pages appear once for each owner: these have no other layout of distinct pages.
    if (layout != TableLayout::churned && probe.churned.pages() > probe.churned.pool_pages - 1)
      continue;
    result.push_back({std::string(to_string(layout)), relaid(probe.churned, layout, seed)});
  }
  for (std::size_t i = 0; i < probe.stages.size(); ++i) {
    const bool last = i + 1 == probe.stages.size();
    result.push_back(
        {last ? "defragmented" : fmt::format("defrag {}", i + 1), probe.stages[i].tables});
  }
  return result;
}

TableRuns runs_of(const TableSet& set) {
  TableRuns result;
  for_runs(set, [&](TokenCount) { ++result.runs; });
  if (result.runs > 0)
    result.mean_slots = static_cast<double>(set.tokens()) / static_cast<double>(result.runs);
  return result;
}

Spread spread_of(std::vector<double> values) {
  PACKSTONE_ASSERT(!values.empty());
  std::ranges::sort(values);
  return {.median = values[values.size() / 2], .min = values.front(), .max = values.back()};
}

std::vector<BandwidthFigure> measure_on_cpu(const ProbeCase& probe, const GatherMemory& memory,
                                            int threads) {
  std::vector<BandwidthFigure> figures;
  if (probe.pool_bytes() > memory.bytes()) return figures;
  const Bytes row = probe.spec.model.row_bytes();
  const double layer_bytes = probe.read_bytes();
  for (const Placement& placement : placements_of(probe, 1)) {
    const CpuGatherResult gather = measure_cpu_gather(
        memory, placement.tables, {.row_bytes = row, .threads = threads, .repeats = kProbeRuns});
    figures.push_back({.placement = placement.name,
                       .kernel = "cpu-gather",
                       .gbps = {gather.gbps, gather.gbps_min, gather.gbps_max},
                       .ceiling_gbps = gather.ceiling_gbps,
                       .layer_us = layer_bytes / gather.gbps * 1e-3,
                       .how = How::measured_cpu,
                       .runs = kProbeRuns,
                       .run_mean = runs_of(placement.tables).mean_slots});
  }
  double ceiling = 0;
  for (const BandwidthFigure& figure : figures) ceiling = std::max(ceiling, figure.ceiling_gbps);
  for (BandwidthFigure& figure : figures) figure.ceiling_gbps = ceiling;
  return figures;
}

ProbeResult model_case(const ProbeCase& probe, double copy_gbps) {
  const KvModel& model = probe.spec.model;
  const Bytes row = model.row_bytes();
  const Bytes pool = probe.pool_bytes();
  ProbeResult result{.spec = probe.spec,
                     .page_size = probe.churned.page_size,
                     .pool_bytes = pool,
                     .tokens = probe.churned.tokens(),
                     .sequences = static_cast<std::int32_t>(probe.churned.tables.size()),
                     .layers = model.layers,
                     .bandwidth = {},
                     .transfers = {},
                     .defrag = std::nullopt,
                     .note = {}};
  const CostCurve& curve = CostCurve::built_in();
  const Bytes whole = result.tokens * model.token_bytes() * model.layers;
  for (const Placement& placement : placements_of(probe, 1)) {
    const TableRuns runs = runs_of(placement.tables);
    const double rate = modelled_gbps(placement.tables, CostCurve::Kind::read, row, pool);
    result.bandwidth.push_back(
        {.placement = placement.name,
         .kernel = "read",
         .gbps = {rate, rate, rate},
         .ceiling_gbps = curve.contiguous_gbps(CostCurve::Kind::read, row, pool),
         .layer_us = probe.read_bytes() / rate * 1e-3,
         .how = How::modelled,
         .runs = 1,
         .run_mean = runs.mean_slots});
    for (const auto& [method, kind] :
         {std::pair{"to_host_kernel", CostCurve::Kind::to_host_kernel},
          std::pair{"to_host_batched", CostCurve::Kind::to_host_batched}}) {
      const double bus = modelled_gbps(placement.tables, kind, row, pool);
      result.transfers.push_back(
          {.placement = placement.name,
           .method = method,
           .bytes = whole,
           .descriptors = runs.runs * model.buffers() * model.layers,
           .gbps = {bus, bus, bus},
           .ceiling_gbps = curve.contiguous_gbps(CostCurve::Kind::to_host_batched, row, pool),
           .how = How::modelled});
    }
  }
  const Bytes page = page_bytes(model.layout(probe.churned.page_size, model.layers));
  const auto copy_us = [&](PageCount moves) {
    return 2.0 * static_cast<double>(moves * page) / copy_gbps * 1e-3;
  };
  if (!probe.stages.empty()) {
    DefragFigure defrag{.straight = probe.straight};
    for (const DefragStage& stage : probe.stages) {
      for (const auto& plan : stage.plans) {
        defrag.plans += 1;
        defrag.moves += std::ssize(plan);
      }
    }
    defrag.bytes_moved = defrag.moves * page;
    defrag.move_us = copy_us(defrag.moves);
    for (const BudgetPlan& plan : probe.budgets) {
      const PageCount moves = std::ssize(plan.moves);
      defrag.budgets.push_back({.budget = plan.budget, .moves = moves, .us = copy_us(moves)});
    }
    if (probe.reclaim) {
      PageCount moves = 0;
      for (const auto& plan : probe.reclaim->plans) moves += std::ssize(plan);
      defrag.returned_bytes = (probe.reclaim->regions_after - probe.reclaim->regions_before) *
                              (Bytes{2} << 20) * model.buffers() * model.layers;
      defrag.returned_moved_bytes = moves * page;
      defrag.returned_us = copy_us(moves);
    }
    result.defrag = std::move(defrag);
    settle(result);
  }
  return result;
}

void settle(ProbeResult& result) {
  if (!result.defrag) return;
  DefragFigure& defrag = *result.defrag;
  const BandwidthFigure* churned = attention_of(result, "churned");
  const BandwidthFigure* straight = attention_of(result, "defragmented");
  if (churned != nullptr && straight != nullptr) {
    const auto layers = static_cast<double>(result.layers);
    defrag.step_gain_us = (churned->layer_us - straight->layer_us) * layers;
    const auto half_spread = [&](const BandwidthFigure& f) {
      return f.layer_us * layers * (f.gbps.max - f.gbps.min) / (2.0 * f.gbps.median);
    };
    defrag.noise_us = half_spread(*churned) + half_spread(*straight);
    // A gain within the spread of the runs is no gain.
    defrag.attention_steps = defrag.step_gain_us > defrag.noise_us && defrag.step_gain_us > 0.0
                                 ? defrag.move_us / defrag.step_gain_us
                                 : kNever;
    defrag.returned_steps = defrag.returned_bytes > 0 && straight->layer_us > 0.0
                                ? defrag.returned_us / (straight->layer_us * layers)
                                : kNever;
  }
  defrag.transfers = transfers_to_pay(result, "to_host_batched");
  defrag.kernel_transfers = transfers_to_pay(result, "to_host_kernel");
}

std::string verdict(const ProbeResult& result) {
  if (!result.defrag) return "no defrag was planned";
  const DefragFigure& d = *result.defrag;
  // The curve is of reads that do nothing else: attention computes too, and feels placement less.
  const BandwidthFigure* churned = attention_of(result, "churned");
  const bool plain = churned != nullptr && churned->kernel == "read";
  std::string text = fmt::format(
      "{} moves of {:.3f} ms ({}) change {} by {:+.1f} us", d.moves, d.move_us * 1e-3,
      to_string(d.how), plain ? "a step's plain reading of the rows" : "a step's attention",
      -d.step_gain_us);
  const char* const alone =
      plain ? "for such reads alone, at most what attention gains," : "for attention alone";
  text += std::isinf(d.attention_steps)
              ? fmt::format(" (spread {:.1f}): {} defragmenting never pays here", d.noise_us, alone)
              : fmt::format(": {} it pays {} steps", alone, steps_text(d.attention_steps));
  text += fmt::format("; for whole transfers to the host it pays {} by batched copy, {} by kernel",
                      transfers_text(d.transfers), transfers_text(d.kernel_transfers));
  if (d.returned_bytes > 0) {
    text += fmt::format(
        "; emptying granules at half load gives back {:.2f} GiB for {:.3f} ms of "
        "moves, the attention of {:.1f} steps",
        static_cast<double>(d.returned_bytes) / (1 << 30), d.returned_us * 1e-3, d.returned_steps);
  }
  return text;
}

}  // namespace packstone::sim
