// SPDX-License-Identifier: Apache-2.0
// Defragmentation beside a running decode loop: GB/s of every step while a churned pool is being
// straightened, next to the same loop without it, whose tokens must be the same. The default goes
// on until the pool is straight and a while longer; a table of steps goes to standard error.
//
//   bench_defrag_loop --out loop.json               Kimi K2's geometry, 16 sequences of 16,384
//   bench_defrag_loop --batch 32 --prompt 8192 --budget 512 --steps 300
//   PACKSTONE_BENCH_SMOKE=1 bench_defrag_loop       a small size: that it runs
//
// Exit status 1 when a token differs.
#include "bench/device_bench.cuh"

#include <packstone/cuda/attention.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sim/cuda/decode_loop.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

namespace packstone::bench {
namespace {

nlohmann::ordered_json steps_json(const sim::DecodeLoopResult& result, double ceiling) {
  auto rows = nlohmann::ordered_json::array();
  for (const sim::DecodeStep& step : result.steps) {
    rows.push_back({{"us", step.us},
                    {"gbps", step.gbps},
                    {"fraction_of_ceiling", step.gbps / ceiling},
                    {"run_mean", step.run_mean},
                    {"moves", step.moves}});
  }
  return rows;
}

/// Decode breaks a run with nearly every token, so the planner always has something left: straight
/// is from the first step on at nine tenths of the longest mean run.
int straight_from(const sim::DecodeLoopResult& result) {
  double longest = 0;
  for (const sim::DecodeStep& step : result.steps) longest = std::max(longest, step.run_mean);
  int first = 0;
  while (result.steps[static_cast<std::size_t>(first)].run_mean < 0.9 * longest) ++first;
  return first;
}

/// Mean GB/s of the steps [begin, end); 0 for none.
double mean_gbps(const sim::DecodeLoopResult& result, int begin, int end) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += result.steps[static_cast<std::size_t>(i)].gbps;
  return end > begin ? sum / (end - begin) : 0.0;
}

void print_steps(const sim::DecodeLoopResult& with, const sim::DecodeLoopResult& without) {
  std::fputs("   step  moves  mean run, slots    without       GB/s    without\n", stderr);
  const std::size_t last = with.steps.size() - 1;
  const std::size_t stride = std::max<std::size_t>(with.steps.size() / 20, 1);
  for (std::size_t i = 0; i <= last; i += i < last ? std::min(stride, last - i) : 1) {
    const sim::DecodeStep& a = with.steps[i];
    const sim::DecodeStep& b = without.steps[i];
    std::fprintf(stderr, "%7zu %6lld %16.1f %10.1f %10.0f %10.0f\n", i,
                 static_cast<long long>(a.moves), a.run_mean, b.run_mean, a.gbps, b.gbps);
  }
}

/// GB/s before the moves, during them and once the pool is straight.
nlohmann::ordered_json phases_json(const sim::DecodeLoopResult& with,
                                   const sim::DecodeLoopResult& without, int from, int straight) {
  auto rows = nlohmann::ordered_json::array();
  const int steps = static_cast<int>(with.steps.size());
  // The first step loads the modules.
  const std::pair<int, int> spans[] = {{1, from}, {from, straight}, {straight, steps}};
  const char* const names[] = {"before", "straightening", "straight"};
  for (int i = 0; i < 3; ++i) {
    const auto [begin, end] = spans[i];
    if (end <= begin) continue;
    const double a = mean_gbps(with, begin, end);
    const double b = mean_gbps(without, begin, end);
    rows.push_back({{"phase", names[i]},
                    {"from_step", begin},
                    {"to_step", end - 1},
                    {"gbps_with_defrag", a},
                    {"gbps_without", b}});
    std::fprintf(stderr, "%s, steps %d to %d: %.0f GB/s with defrag, %.0f without\n", names[i],
                 begin, end - 1, a, b);
  }
  return rows;
}

int main_of(int argc, char** argv) {
  sim::DecodeLoopOptions options{.model = sim::kv_model("kimi-k2"),
                                 .pages = 500'000,
                                 .batch = 16,
                                 .prompt = 16'384,
                                 .steps = 1000,
                                 .budget = 1024,
                                 .defrag_from = 20};
  if (smoke()) {
    options.model.layers = 2;
    options.pages = 3000;
    options.batch = 2;
    options.prompt = 256;
    options.steps = 8;
    options.budget = 64;
    options.defrag_from = 2;
  }
  std::string out;
  CLI::App app("Defragmentation beside decode");
  app.add_option("--out", out, "File for the JSON; standard output without");
  app.add_option("--batch", options.batch, "sequences");
  app.add_option("--prompt", options.prompt, "tokens of each at first");
  app.add_option("--pages", options.pages, "of the pool");
  app.add_option("--page", options.page_size, "tokens a page");
  app.add_option("--steps", options.steps, "decode steps");
  app.add_option("--budget", options.budget, "pages moved a step");
  app.add_option("--from", options.defrag_from, "step at which moving begins");
  CLI11_PARSE(app, argc, argv);
  const double ceiling = copy_ceiling() * 1e-9;
  const sim::DecodeLoopResult with = sim::run_decode_loop(options);
  sim::DecodeLoopOptions plain = options;
  plain.budget = 0;
  const sim::DecodeLoopResult without = sim::run_decode_loop(plain);
  const bool same = with.tokens == without.tokens;
  const int from = std::clamp(options.defrag_from, 1, options.steps);
  const int straight = std::max(straight_from(with), from);
  print_steps(with, without);
  const auto phases = phases_json(with, without, from, straight);
  const nlohmann::ordered_json json = {{"card", cuda::describe_attention().device_name},
                                       {"how", "measured-gpu"},
                                       {"model", options.model.name},
                                       {"layers", options.model.layers},
                                       {"batch", options.batch},
                                       {"prompt", options.prompt},
                                       {"page_size", options.page_size},
                                       {"pages", options.pages},
                                       {"budget_pages", options.budget},
                                       {"defrag_from_step", options.defrag_from},
                                       {"ceiling_gbps", ceiling},
                                       {"moves", with.moves},
                                       {"straight_from_step", straight},
                                       {"run_mean_at_the_end", with.steps.back().run_mean},
                                       {"phases", phases},
                                       {"tokens", with.tokens.size()},
                                       {"tokens_identical", same},
                                       {"tables_agree", with.tables_agree && without.tables_agree},
                                       {"with_defrag", steps_json(with, ceiling)},
                                       {"without_defrag", steps_json(without, ceiling)}};
  const std::string text = json.dump(1) + "\n";
  if (out.empty()) {
    std::fputs(text.c_str(), stdout);
  } else {
    std::ofstream file(out, std::ios::binary);
    file << text;
    file.close();
    if (!file) {
      std::fprintf(stderr, "%s cannot be written\n", out.c_str());
      return 1;
    }
  }
  if (!same) std::fputs("a token differs\n", stderr);
  return same && with.tables_agree && without.tables_agree ? 0 : 1;
}

}  // namespace
}  // namespace packstone::bench

int main(int argc, char** argv) {
  return packstone::bench::run_on_device(argc, argv, packstone::bench::main_of);
}
