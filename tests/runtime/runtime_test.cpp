// SPDX-License-Identifier: Apache-2.0
// The small runtime gives, token for token, what plain decoding gives, whatever is switched on.
// Built a second time with RUNTIME_TEST_DEVICE, for the kernels.
#include "examples/runtime/reference.hpp"
#include "examples/runtime/server.hpp"
#include "examples/runtime/workload.hpp"

#ifdef RUNTIME_TEST_DEVICE
#include <packstone/cuda/error.hpp>
#endif

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <tuple>

namespace runtime {
namespace {

constexpr int kRequests = 10;

const Model& model() {
  static const Model made({});
  return made;
}

const std::vector<Request>& requests() {
  static const std::vector<Request> made = make_requests(kRequests, model().config().vocabulary, 3);
  return made;
}

const std::vector<std::vector<Token>>& expected() {
  static const std::vector<std::vector<Token>> made = [] {
    std::vector<std::vector<Token>> results;
    for (const Request& request : requests()) results.push_back(decode_plainly(model(), request));
    return results;
  }();
  return made;
}

std::unique_ptr<KvBackend> backend_of(const KvShape& shape) {
#ifdef RUNTIME_TEST_DEVICE
  return make_cuda_backend(shape, model().scale());
#else
  return make_host_backend(shape, model().scale(), 1);
#endif
}

/// Why the tests cannot run here, or nothing.
std::string missing() {
#ifdef RUNTIME_TEST_DEVICE
  try {
    (void)backend_of({.pages = 2});
  } catch (const packstone::cuda::UnsupportedDevice& fault) {
    return std::string("no CUDA device: ") + fault.what();
  }
#endif
  return "";
}

struct Served {
  std::vector<std::vector<Token>> results;
  ServerCounters counters;
  packstone::PrefixCounters prefixes;
  packstone::PlannerCounters planner;
  std::string metrics;
};

Served run(const ServerOptions& options) {
  const auto backend = backend_of(shape_of(model(), options));
  Server server(model(), *backend, options);
  Served result;
  result.results = server.serve(requests());
  result.counters = server.counters();
  result.prefixes = server.prefixes().counters();
  result.planner = server.planner();
  result.metrics = prometheus_text(server);
  EXPECT_EQ(server.manager().sequences(), 0);
  return result;
}

ServerOptions options_of(bool speculation, bool defrag, std::int64_t page_size, bool sharing) {
  ServerOptions options;
  options.page_size = page_size;
  options.pages = page_size == 1 ? 900 : 24;
  options.policy = "fifo";  // the one that scatters, so that there is something to move
  options.batch_max = 4;
  options.speculation = speculation;
  options.draft = {.nodes_max = 12, .branches = 3, .depth_max = 4};
  options.defrag = defrag;
  options.defrag_every = 1;  // a plan between any two steps
  options.defrag_moves = 16;
  options.share_prefixes = sharing;
  options.check = true;
  return options;
}

using Switches = std::tuple<bool, bool, std::int64_t, bool>;

std::string name_of(const testing::TestParamInfo<Switches>& each) {
  const auto [speculation, defrag, page_size, sharing] = each.param;
  return std::string(speculation ? "tree" : "plain") + (defrag ? "_defrag" : "_still") + "_page" +
         std::to_string(page_size) + (sharing ? "_shared" : "_alone");
}

class Runtime : public testing::TestWithParam<Switches> {};

TEST_P(Runtime, GivesTheTokensOfPlainDecoding) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  const auto [speculation, defrag, page_size, sharing] = GetParam();
  const Served result = run(options_of(speculation, defrag, page_size, sharing));
  EXPECT_EQ(result.results, expected());
  // What was switched on must also have happened, or equality would say little.
  EXPECT_EQ(result.counters.drafts_accepted > 0, speculation);
  EXPECT_EQ(result.counters.rows_moved > 0, speculation);
  EXPECT_EQ(result.prefixes.tokens_hit > 0, sharing);
  if (!defrag) {
    EXPECT_EQ(result.planner.moves, 0);
  } else {
    EXPECT_GT(result.planner.plans, 0);
    EXPECT_TRUE(page_size > 1 || result.planner.moves > 20);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Runtime,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Values(1, 64),
                                          testing::Bool()),
                         &name_of);

TEST(RuntimeUnderPressure, PreemptsAndEvictsWithoutChangingAToken) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  ServerOptions options = options_of(true, true, 16, true);
  options.pages = 1 + 17;  // one long request and little else
  const Served result = run(options);
  EXPECT_EQ(result.results, expected());
  EXPECT_GT(result.counters.preemptions + result.prefixes.pages_evicted, 5);
}

TEST(RuntimeModes, RollbackAndReserveTailGiveTheSameTokens) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  for (const auto mode :
       {packstone::SpeculationMode::rollback, packstone::SpeculationMode::reserve_tail}) {
    for (const std::int64_t page_size : {1, 16}) {
      ServerOptions options = options_of(true, true, page_size, true);
      options.pages = 900 / page_size;
      options.mode = mode;
      EXPECT_EQ(run(options).results, expected());
    }
  }
}

TEST(RuntimeMetrics, AreInTheTextFormatAndAddUp) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  const Served result = run(options_of(true, true, 16, true));
  std::map<std::string, double> values;
  std::istringstream lines(result.metrics);
  std::string type_of;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) type_of = line.substr(7, line.rfind(' ') - 7);
    if (line.starts_with('#')) continue;
    const std::size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    ASSERT_TRUE(line.starts_with(type_of)) << line;
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  double pages = 0;
  for (const char* state : {"free", "reserved", "live", "retired"}) {
    pages += values.at("packstone_pages{state=\"" + std::string(state) + "\"}");
  }
  EXPECT_EQ(pages, 23);
  std::size_t tokens = 0;
  for (const auto& each : expected()) tokens += each.size();
  EXPECT_EQ(values.at("runtime_tokens_generated_total"), static_cast<double>(tokens));
  for (const char* phase : {"schedule", "model", "verify", "commit", "defrag"}) {
    EXPECT_GT(values.at("runtime_phase_microseconds_total{phase=\"" + std::string(phase) + "\"}"),
              0)
        << phase;
  }
}

}  // namespace
}  // namespace runtime
