// SPDX-License-Identifier: Apache-2.0
/// @file
/// The replay of a whole trace on one core, per policy: scheduler, manager and sampled metrics.
///
/// Reads azure2023_conv.csv from the folder named by PACKSTONE_TRACES, or ../shared/traces, when it
/// is there (26.5 million tokens, 262,144 slots, 128 concurrent); else the built-in chat-azure of
/// the same size. The label says which.
#include <benchmark/benchmark.h>
#include <sim/run.hpp>
#include <sim/trace.hpp>
#include <sim/workload.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

using packstone::sim::RequestList;

struct Input {
  RequestList list;
  std::string label;
};

const Input& input() {
  static const Input kInput = [] {
    const char* folder = std::getenv("PACKSTONE_TRACES");
    const std::filesystem::path path =
        std::filesystem::path(folder != nullptr ? folder : "../shared/traces") /
        "azure2023_conv.csv";
    if (std::filesystem::exists(path)) {
      return Input{packstone::sim::read_trace(path.string()).list, "azure2023_conv.csv"};
    }
    return Input{packstone::sim::make_workload("chat-azure:requests=19366", 0).list,
                 "chat-azure (the trace is not here)"};
  }();
  return kInput;
}

void replay(benchmark::State& state, const std::string& policy, std::int64_t page_size) {
  packstone::sim::RunOptions options;
  options.policy = policy;
  options.page_size = page_size;
  options.keep_requests = false;
  std::int64_t tokens = 0;
  std::int64_t events = 0;
  double sampling = 0.0;
  for (auto _ : state) {
    const packstone::sim::RunResult result = packstone::sim::run(input().list, options);
    tokens += result.counters.tokens_written;
    events += result.counters.tokens_written + result.counters.tokens_released;
    sampling += result.timing.sampling_s;
  }
  using benchmark::Counter;
  state.counters["tokens_per_s"] = Counter(static_cast<double>(tokens), Counter::kIsRate);
  state.counters["slot_events_per_s"] = Counter(static_cast<double>(events), Counter::kIsRate);
  state.counters["sampling_s"] = Counter(sampling, Counter::kAvgIterations);
  state.SetLabel(input().label);
}

void register_all() {
  for (const std::string policy : {"fifo", "lifo", "sorted", "lowest", "run"}) {
    for (const std::int64_t page_size : {1, 16, 64}) {
      const std::string name = "replay/" + policy + "/page_size:" + std::to_string(page_size);
      benchmark::RegisterBenchmark(name.c_str(), replay, policy, page_size)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
