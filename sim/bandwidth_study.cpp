// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/bandwidth_study.hpp>
#include <sim/probe_case.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

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

/// Calls `work(i)` for each of [0, n) on so many threads; the first that threw throws here.
template <typename Work>
void on_threads(std::size_t n, int threads, Work&& work) {
  std::vector<std::exception_ptr> errors(n);
  std::atomic<std::size_t> next{0};
  const auto loop = [&] {
    for (std::size_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::size_t t = 1; t < std::min(n, static_cast<std::size_t>(threads)); ++t)
      workers.emplace_back(loop);
    loop();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

using Cases = std::vector<std::optional<ProbeCase>>;

/// Of the specs that share a case with this one, the one of the fewest query tokens: its case has
/// every sequence that another's has.
std::size_t leader_of(const std::vector<ProbeSpec>& specs, std::size_t spec) {
  std::size_t leader = spec;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!share_a_case(specs[i], specs[spec])) continue;
    const auto rank = [&](std::size_t at) { return std::pair(specs[at].shape.q_len, at); };
    if (rank(i) < rank(leader)) leader = i;
  }
  return leader;
}

/// The cases of the specs, in their order, each from a replay of its own but for those that another
/// one's serves.
Cases make_cases(const RequestList& list, const RunOptions& options,
                 const std::vector<ProbeSpec>& specs, std::int64_t step,
                 const BandwidthStudyOptions& study) {
  Cases cases(specs.size());
  const auto make = [&](const std::vector<std::size_t>& which) {
    if (study.progress != nullptr) study.progress->cases += static_cast<int>(which.size());
    on_threads(which.size(), study.threads, [&](std::size_t k) {
      const std::size_t i = which[k];
      const ProbeCaseOptions making{.token_budget = options.scheduler.token_budget,
                                    .reclaim = specs[i].shape.live(),
                                    .progress = study.progress};
      replay_until(list, options, step,
                   [&](KvManager& kv, PrefixCache* cache, std::vector<SeqId> live) {
                     cases[i] = make_case(kv, cache, std::move(live), specs[i], making);
                   });
      if (study.progress != nullptr) study.progress->made += 1;
    });
  };
  std::vector<std::size_t> leaders;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (leader_of(specs, i) == i) leaders.push_back(i);
  }
  make(leaders);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::size_t leader = leader_of(specs, i);
    // What had no room for the leader has none for this one.
    if (leader == i || !cases[leader]) continue;
    if (serves(*cases[leader], specs[i])) {
      cases[i] = cases[leader];
      cases[i]->spec = specs[i];
    } else {
      others.push_back(i);
    }
  }
  make(others);
  return cases;
}

ProbeResult without_device(const ProbeCase& probe, const RunOptions& options,
                           const BandwidthStudyOptions& study, const GatherMemory& memory) {
  ProbeResult result = model_case(probe, options.cost.copy_gbps);
  if (study.measure == Measure::model) return result;
  const std::vector<BandwidthFigure> measured = measure_on_cpu(probe, memory, study.threads);
  if (measured.empty()) result.note = "too large a pool for a gather by the processors";
  result.bandwidth.insert(result.bandwidth.begin(), measured.begin(), measured.end());
  return result;
}

/// Memory for the largest pool that the processors gather from; none where they are not asked.
GatherMemory memory_for(const Cases& cases, Measure measure) {
  Bytes most = 0;
  for (const std::optional<ProbeCase>& each : cases) {
    if (!each || measure == Measure::model || each->pool_bytes() > kCpuPoolBytesMax) continue;
    most = std::max(most, each->pool_bytes());
  }
  return GatherMemory(most);
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
  ProbeProgress* const progress = study.progress;
  if (progress != nullptr) progress->figures += static_cast<int>(specs.size());
  const Cases cases = make_cases(list, options, specs, checkpoint_step(result), study);
  const bool on_device =
      probe != nullptr && (study.measure == Measure::automatic || study.measure == Measure::gpu);
  std::optional<GatherMemory> memory;
  if (!on_device) memory = memory_for(cases, study.measure);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i]) {
      result.notes.push_back(name_of(specs[i]) + " left out: no room for it beside what stayed");
      continue;
    }
    ProbeResult figures =
        on_device ? probe->measure(*cases[i]) : without_device(*cases[i], options, study, *memory);
    if (on_device) settle(figures);
    add_maps(*cases[i], options.map_columns, figures);
    result.probes.push_back(std::move(figures));
    if (progress != nullptr) progress->measured += 1;
  }
}

}  // namespace packstone::sim
