// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/bandwidth_study.hpp>
#include <sim/probe_case.hpp>

#include <atomic>
#include <exception>
#include <thread>

namespace packstone::sim {

namespace {

bool fits(const ProbeSpec& spec, const RunOptions& options) {
  if (spec.shape.live()) return true;
  const TokenCount length = TokenCount{spec.shape.length} + spec.shape.q_len;
  return spec.shape.batch * pages_for(length, options.page_size) <=
         options.pool_tokens / options.page_size;
}

std::string name_of(const ProbeSpec& spec) {
  return spec.model.name + ":" + spec.shape.text();
}

std::vector<std::uint8_t> map_of(const TableSet& set, const KvModel& model, int columns) {
  Meter meter(set.pool_pages, set.page_size, model.row_bytes());
  meter.begin();
  for (std::size_t i = 0; i < set.tables.size(); ++i)
    meter.add({.pages = set.tables[i], .length = set.lengths[i], .prefilled = set.lengths[i]});
  meter.end();
  return meter.map(columns);
}

void add_maps(const ProbeCase& probe, int columns, ProbeResult& result) {
  if (columns < 1) return;
  result.map_before = map_of(probe.churned, probe.spec.model, columns);
  if (!probe.stages.empty())
    result.map_after = map_of(probe.stages.back().tables, probe.spec.model, columns);
}

/// The cases of the specs, in their order, each from a replay of its own.
std::vector<std::optional<ProbeCase>> make_cases(const RequestList& list, const RunOptions& options,
                                                 const std::vector<ProbeSpec>& specs,
                                                 std::int64_t step, int threads) {
  std::vector<std::optional<ProbeCase>> cases(specs.size());
  std::vector<std::exception_ptr> errors(specs.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < specs.size(); i = next.fetch_add(1)) {
      try {
        const ProbeCaseOptions making{.token_budget = options.scheduler.token_budget,
                                      .reclaim = specs[i].shape.live()};
        replay_until(list, options, step,
                     [&](KvManager& kv, PrefixCache* cache, std::vector<SeqId> live) {
                       cases[i] = make_case(kv, cache, std::move(live), specs[i], making);
                     });
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int t = 1; t < threads && t < std::ssize(specs); ++t) workers.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return cases;
}

}  // namespace

std::vector<ProbeSpec> default_probes() {
  std::vector<ProbeSpec> specs;
  for (const char* text :
       {"kimi-k2:live,8,1", "kimi-k2:live,8,9", "kimi-k2:1,8,65,65536", "kimi-k2:8,8,9,16384",
        "kimi-k2:32,16,1,16384", "llama-3-70b-tp8:32,8,1,16384"}) {
    specs.push_back(probe_spec_from(text));
  }
  return specs;
}

void require_shapes_fit(const std::vector<ProbeSpec>& specs, const RunOptions& options) {
  for (const ProbeSpec& spec : specs) {
    if (fits(spec, options)) continue;
    throw InvalidArgument(
        fmt::format("--probe {}: {} sequences of {} tokens do not fit a pool of "
                    "{} slots in pages of {}",
                    name_of(spec), spec.shape.batch, spec.shape.length + spec.shape.q_len,
                    options.pool_tokens, options.page_size));
  }
}

void study_bandwidth(const RequestList& list, const RunOptions& options,
                     const BandwidthStudyOptions& study, BandwidthProbe* probe, RunResult& result) {
  if (study.measure == Measure::off) return;
  std::vector<ProbeSpec> specs;
  for (const ProbeSpec& spec : study.specs.empty() ? default_probes() : study.specs) {
    if (fits(spec, options)) {
      specs.push_back(spec);
    } else {
      result.notes.push_back(name_of(spec) + " left out: the pool is too small for it");
    }
  }
  const auto cases = make_cases(list, options, specs, checkpoint_step(result), study.threads);
  const bool on_device =
      probe != nullptr && (study.measure == Measure::automatic || study.measure == Measure::gpu);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i]) {
      result.notes.push_back(name_of(specs[i]) + " left out: no room for it beside what stayed");
      continue;
    }
    if (on_device) {
      ProbeResult measured = probe->measure(*cases[i]);
      settle(measured);
      add_maps(*cases[i], options.map_columns, measured);
      result.probes.push_back(std::move(measured));
      continue;
    }
    ProbeResult modelled = model_case(*cases[i], options.cost.copy_gbps);
    if (study.measure != Measure::model) {
      std::vector<BandwidthFigure> measured = measure_on_cpu(*cases[i], {.threads = study.threads});
      if (measured.empty()) modelled.note = "too large a pool for a gather by the processors";
      modelled.bandwidth.insert(modelled.bandwidth.begin(), measured.begin(), measured.end());
    }
    add_maps(*cases[i], options.map_columns, modelled);
    result.probes.push_back(std::move(modelled));
  }
}

}  // namespace packstone::sim
