// SPDX-License-Identifier: Apache-2.0
// What fragmentation costs: cases from a churned pool, the curve behind `modelled`, break-evens,
// and the figures that come through the seam of a device.
#include <packstone/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/bandwidth_study.hpp>
#include <sim/cost_curve.hpp>
#include <sim/defrag.hpp>
#include <sim/output.hpp>
#include <sim/probe_case.hpp>
#include <sim/report.hpp>
#include <sim/workload.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace packstone::sim {
namespace {

using ::testing::HasSubstr;

RunOptions small_options(std::int64_t page_size = 1) {
  RunOptions options;
  options.policy = "fifo";
  options.page_size = page_size;
  options.pool_tokens = 16'384;
  options.scheduler.concurrency = 12;
  options.samples = 20;
  return options;
}

RequestList chat() {
  return make_workload("chat-azure:requests=150", 3).list;
}

ProbeCase case_of(const ProbeSpec& spec, std::int64_t page_size = 1, bool reclaim = false) {
  const RequestList list = chat();
  const RunOptions options = small_options(page_size);
  std::optional<ProbeCase> made;
  replay_until(list, options, checkpoint_step(run(list, options)),
               [&](KvManager& kv, PrefixCache* cache, std::vector<SeqId> live) {
                 made = make_case(kv, cache, std::move(live), spec, {.reclaim = reclaim});
                 kv.check();
               });
  EXPECT_TRUE(made.has_value());
  return std::move(*made);
}

constexpr const char* kHeader =
    "kind,row_bytes,run_bytes,pool_bytes,gbps,gbps_min,gbps_max,ceiling_gbps\n";
constexpr const char* kHost =
    "to_host_kernel,1024,1024,1048576,50,50,50,55\n"
    "to_host_batched,1024,1024,1048576,2,2,2,55\n";

TEST(CostCurve, IsLinearInLogarithmsBetweenPointsAndConstantOutside) {
  const CostCurve curve(std::string("# a card; a command\n") + kHeader + kHost +
                        "read,1024,1024,1048576,1000,990,1010,4000\n"
                        "read,1024,16384,1048576,3000,2990,3010,4000\n"
                        "read,1024,1024,4194304,500,490,510,4000\n"
                        "read,1024,16384,4194304,2500,2490,2510,4000\n"
                        "read,128,128,1048576,100,100,100,4000\n");
  using enum CostCurve::Kind;
  constexpr Bytes kPool = 1 << 20;
  EXPECT_EQ(curve.provenance(), "a card; a command");
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 1024, kPool), 1000.0);
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 4096, kPool), 2000.0);        // half of four octaves
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 1024, 2 * kPool), 750.0);     // half of two
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 4096, 2 * kPool), 1750.0);    // of both
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 1, kPool), 1000.0);           // below
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 1 << 30, kPool), 3000.0);     // above
  EXPECT_DOUBLE_EQ(curve.gbps(read, 1024, 16384, 64 * kPool), 2500.0);  // a larger pool
  EXPECT_DOUBLE_EQ(curve.gbps(read, 200, 4096, kPool), 100.0);          // the nearest row
  EXPECT_DOUBLE_EQ(curve.contiguous_gbps(read, 1024, kPool), 3000.0);
  EXPECT_DOUBLE_EQ(curve.gbps(to_host_batched, 1024, 1024, kPool), 2.0);
}

TEST(CostCurve, BadTablesAreNamedByLine) {
  const std::string good = std::string(kHeader) + kHost + "read,8,8,8,1,1,1,1\n";
  EXPECT_EQ(CostCurve(good).points().size(), 3U);
  for (const char* line : {"read,8,8,8,1,1,1\n", "read,8,8,8,1,1,1,1,1\n", "read,8,8,8,1,1,1,x\n",
                           "read,8,8,8,0,1,1,1\n", "read,8,-8,8,1,1,1,1\n", "write,8,8,8,1,1,1,1\n",
                           "read,8,8,8,nan,1,1,1\n", "\x01\n"}) {
    try {
      const CostCurve curve(good + line);
      ADD_FAILURE() << line;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("line 5"));
    }
  }
  EXPECT_THROW(CostCurve(std::string(kHeader) + "read,8,8,8,1,1,1,1\n"), InvalidArgument);
  EXPECT_THROW(CostCurve(""), InvalidArgument);
}

TEST(CostCurve, TheOneOfTheBuildNamesItsCardAndCoversTheRowsOfTheModels) {
  const CostCurve& curve = CostCurve::built_in();
  EXPECT_THAT(curve.provenance(), HasSubstr("NVIDIA"));
  for (const CostCurve::Point& point : curve.points()) {
    EXPECT_LE(point.gbps_min, point.gbps);
    EXPECT_LE(point.gbps, point.gbps_max);
  }
  const double scattered = curve.gbps(CostCurve::Kind::read, 1152, 1152, Bytes{64} << 30);
  const double whole = curve.contiguous_gbps(CostCurve::Kind::read, 1152, Bytes{64} << 30);
  EXPECT_LT(scattered, whole);
  EXPECT_DOUBLE_EQ(read_loss(1152, 1, Bytes{64} << 30), 1.0 - scattered / whole);
}

TEST(ProbeSpecs, AreReadAndRefused) {
  const ProbeSpec spec = probe_spec_from("kimi-k2:1,8,65,65536");
  EXPECT_EQ(spec.model.name, "kimi-k2");
  EXPECT_EQ(spec.model.row_bytes(), 1152);
  EXPECT_EQ(spec.shape, (ProbeShape{.batch = 1, .heads = 8, .q_len = 65, .length = 65536}));
  EXPECT_EQ(spec.shape.text(), "1,8,65,65536");
  const ProbeSpec live = probe_spec_from("llama-3-70b-tp8:live,8,1");
  EXPECT_TRUE(live.shape.live());
  EXPECT_EQ(live.model.row_bytes(), 256);
  EXPECT_EQ(live.model.token_bytes(), 512);
  EXPECT_EQ(kv_model("glm-5-fp8").row_bytes(), 656);
  for (const char* text :
       {"", "kimi-k2", "kimi-k2:", "kimi-k2:1,8,65", "kimi-k2:1,8,65,x", "kimi-k2:1,8,65,1,1",
        "kimi-k2:0,8,1,64", "kimi-k2:live,8", "kimi-k2:1,129,1,64", "kimi-k2:1,8,257,64",
        "nobody:1,8,1,64", "llama-3-70b-tp1:1,4,1,64", "kimi-k2:2000,8,1,64"}) {
    EXPECT_THROW((void)probe_spec_from(text), InvalidArgument) << text;
  }
}

TEST(ProbeCases, SequencesTakeTheirPlaceInAFullPoolAndAreStraightened) {
  for (const std::int64_t page_size : {1, 16}) {
    const ProbeCase made = case_of(probe_spec_from("kimi-k2:3,8,5,2000"), page_size);
    EXPECT_EQ(made.churned.tables.size(), 3U);
    for (const TokenCount length : made.churned.lengths) EXPECT_EQ(length, 2005);
    EXPECT_DOUBLE_EQ(made.read_bytes(), 3.0 * 2000 * 1152);
    EXPECT_GT(made.retired, 0);
    EXPECT_TRUE(made.straight);
    SCOPED_TRACE("page size " + std::to_string(page_size));
    ASSERT_FALSE(made.stages.empty());
    EXPECT_LE(made.stages.size(), 4U);
    EXPECT_FALSE(made.budgets.empty());
    for (const BudgetPlan& plan : made.budgets) EXPECT_LE(std::ssize(plan.moves), plan.budget);
    const TableSet& after = made.stages.back().tables;
    EXPECT_EQ(after.lengths, made.churned.lengths);
    EXPECT_GT(runs_of(after).mean_slots, 3.0 * runs_of(made.churned).mean_slots);
    // No page stands twice, and each moved page is where the plans say.
    std::set<PageId> distinct;
    for (const auto& table : after.tables) distinct.insert(table.begin(), table.end());
    EXPECT_EQ(std::ssize(distinct), after.pages());
    TableSet moved = made.churned;
    for (const DefragStage& stage : made.stages) {
      for (const auto& plan : stage.plans) {
        std::map<PageId, PageId> to;
        for (const PageMove& move : plan) to[move.from] = move.to;
        for (auto& table : moved.tables) {
          for (PageId& page : table) {
            if (const auto found = to.find(page); found != to.end()) page = found->second;
          }
        }
      }
      EXPECT_EQ(moved.tables, stage.tables.tables);
    }
  }
}

TEST(ProbeCases, LiveSequencesAndMemoryGivenBackAtHalfLoad) {
  const ProbeCase made = case_of(probe_spec_from("kimi-k2:live,8,1"), 1, true);
  EXPECT_GT(made.churned.tables.size(), 4U);
  ASSERT_TRUE(made.reclaim.has_value());
  EXPECT_GT(made.reclaim->regions_after, made.reclaim->regions_before);
}

TEST(ProbeCases, AShapePastThePoolIsNoCase) {
  KvManager kv({.pages = 101, .page_size = 1, .policy = "fifo"});
  SeqId old;
  ASSERT_EQ(kv.create(old), Status::ok);
  ASSERT_EQ(kv.append(old, 90), Status::ok);
  std::vector<SeqId> live = {old};
  const ProbeShape shape{.batch = 1, .heads = 8, .q_len = 1, .length = 99};
  const auto placed = place_sequences(kv, live, shape, 16);
  ASSERT_TRUE(placed.has_value());
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(kv.length(placed->front()), 100);
  std::vector<SeqId> none = *placed;
  EXPECT_FALSE(place_sequences(kv, none, {.batch = 2, .q_len = 1, .length = 60}, 16).has_value());
}

void expect_equal(const ProbeCase& a, const ProbeCase& b) {
  EXPECT_EQ(a.churned.tables, b.churned.tables);
  EXPECT_EQ(a.churned.lengths, b.churned.lengths);
  ASSERT_EQ(a.stages.size(), b.stages.size());
  for (std::size_t i = 0; i < a.stages.size(); ++i) {
    EXPECT_EQ(a.stages[i].plans, b.stages[i].plans);
    EXPECT_EQ(a.stages[i].tables.tables, b.stages[i].tables.tables);
  }
  ASSERT_EQ(a.reclaim.has_value(), b.reclaim.has_value());
  if (!a.reclaim) return;
  EXPECT_EQ(a.reclaim->plans, b.reclaim->plans);
  EXPECT_EQ(a.reclaim->regions_before, b.reclaim->regions_before);
  EXPECT_EQ(a.reclaim->regions_after, b.reclaim->regions_after);
}

TEST(ProbeCases, OneThatServesAnotherSpecIsTheOneThatWouldBeMadeForIt) {
  const ProbeCase placed = case_of(probe_spec_from("kimi-k2:2,16,1,2000"));
  const ProbeSpec gqa = probe_spec_from("llama-3-70b-tp8:2,8,1,2000");
  ASSERT_TRUE(serves(placed, gqa));
  expect_equal(placed, case_of(gqa));
  EXPECT_FALSE(serves(placed, probe_spec_from("kimi-k2:2,16,2,2000")));
  EXPECT_FALSE(serves(placed, probe_spec_from("kimi-k2:3,16,1,2000")));
  EXPECT_FALSE(serves(placed, probe_spec_from("kimi-k2:live,16,1")));

  const ProbeCase live = case_of(probe_spec_from("kimi-k2:live,8,1"), 1, true);
  const TokenCount shortest = *std::ranges::min_element(live.churned.lengths);
  ASSERT_GT(shortest, 9);
  const ProbeSpec verify = probe_spec_from("kimi-k2:live,8,9");
  ASSERT_TRUE(serves(live, verify));
  expect_equal(live, case_of(verify, 1, true));
  // A sequence would be too short; rows of another size fill other granules.
  const ProbeSpec longer = {verify.model, {.q_len = static_cast<std::int32_t>(shortest)}};
  EXPECT_FALSE(serves(live, longer));
  EXPECT_LT(case_of(longer, 1, true).churned.tables.size(), live.churned.tables.size());
  EXPECT_FALSE(serves(live, probe_spec_from("glm-5-fp8:live,8,1")));
}

ProbeResult result_of(double churned_us, double straight_us, double spread) {
  ProbeResult result{.spec = probe_spec_from("kimi-k2:1,8,1,1000"),
                     .pool_bytes = 1 << 20,
                     .tokens = 1001,
                     .sequences = 1,
                     .layers = 10};
  for (const auto& [name, us] : {std::pair{"churned", churned_us}, {"defragmented", straight_us}}) {
    const double gbps = 1000.0 / us;
    result.bandwidth.push_back({.placement = name,
                                .kernel = "decode",
                                .gbps = {gbps, gbps * (1 - spread), gbps * (1 + spread)},
                                .ceiling_gbps = 4000,
                                .layer_us = us,
                                .how = How::measured_gpu,
                                .runs = 3});
  }
  result.defrag = DefragFigure{.moves = 100, .plans = 2, .move_us = 300.0};
  result.defrag->how = How::measured_gpu;
  result.defrag->returned_bytes = Bytes{1} << 30;
  result.defrag->returned_us = 500.0;
  return result;
}

TEST(BreakEven, FollowsFromMoveTimeAndGain) {
  ProbeResult result = result_of(110.0, 100.0, 0.01);
  result.transfers = {{.placement = "churned",
                       .method = "to_host_batched",
                       .gbps = {1.0, 0.95, 1.05},
                       .ceiling_gbps = 50},
                      {.placement = "defragmented",
                       .method = "to_host_batched",
                       .gbps = {2.0, 1.9, 2.1},
                       .ceiling_gbps = 50}};
  settle(result);
  const DefragFigure& d = *result.defrag;
  EXPECT_DOUBLE_EQ(d.step_gain_us, 100.0);  // 10 us in each of 10 layers
  EXPECT_DOUBLE_EQ(d.attention_steps, 3.0);
  EXPECT_DOUBLE_EQ(d.returned_steps, 0.5);
  const double bytes = 1001.0 * 1152 * 10;
  EXPECT_NEAR(d.transfers, 300.0 / (bytes * 0.5e-3), 1e-9);
  EXPECT_TRUE(std::isinf(d.kernel_transfers));
  EXPECT_THAT(verdict(result), HasSubstr("pays after 3 steps"));
  EXPECT_THAT(verdict(result), HasSubstr("never by kernel"));
  EXPECT_THAT(verdict(result), HasSubstr("for attention alone"));
  // The curve's figures are of reads that do nothing else, and the sentence must not call it more.
  for (BandwidthFigure& figure : result.bandwidth) figure.kernel = "read";
  EXPECT_THAT(verdict(result), HasSubstr("plain reading of the rows"));
  EXPECT_THAT(verdict(result), ::testing::Not(HasSubstr("for attention alone")));
}

TEST(BreakEven, TransfersThatVaryMoreThanTheyGainNeverPay) {
  ProbeResult result = result_of(110.0, 100.0, 0.01);
  result.transfers = {{.placement = "churned",
                       .method = "to_host_kernel",
                       .gbps = {50.0, 45.0, 55.0},
                       .ceiling_gbps = 55},
                      {.placement = "defragmented",
                       .method = "to_host_kernel",
                       .gbps = {51.0, 46.0, 55.0},
                       .ceiling_gbps = 55}};
  settle(result);
  EXPECT_TRUE(std::isinf(result.defrag->kernel_transfers));
}

TEST(BreakEven, AGainWithinTheSpreadOrALossNeverPays) {
  for (const auto& [churned, straight, spread] :
       {std::tuple{101.0, 100.0, 0.02}, {100.0, 100.0, 0.0}, {90.0, 100.0, 0.0}}) {
    ProbeResult result = result_of(churned, straight, spread);
    settle(result);
    EXPECT_TRUE(std::isinf(result.defrag->attention_steps));
    EXPECT_THAT(verdict(result), HasSubstr("for attention alone defragmenting never pays here"));
  }
}

TEST(Modelled, FollowsTheRunsOfEachPlacement) {
  const ProbeCase made = case_of(probe_spec_from("kimi-k2:2,8,1,3000"));
  const ProbeResult result = model_case(made, 3000.0);
  std::map<std::string, double> gbps;
  for (const BandwidthFigure& figure : result.bandwidth) {
    EXPECT_EQ(figure.how, How::modelled);
    EXPECT_EQ(figure.kernel, "read");
    gbps[figure.placement] = figure.gbps.median;
  }
  EXPECT_GT(gbps["identity"], gbps["random"]);
  EXPECT_GE(gbps["defragmented"], gbps["churned"]);
  ASSERT_TRUE(result.defrag.has_value());
  EXPECT_DOUBLE_EQ(result.defrag->move_us,
                   2.0 * static_cast<double>(result.defrag->bytes_moved) / 3000.0 * 1e-3);
  EXPECT_EQ(result.defrag->bytes_moved, result.defrag->moves * 1152 * 61);
}

/// A device that is none: says what it was given.
class FakeProbe final : public BandwidthProbe {
 public:
  [[nodiscard]] std::string description() const override { return "a card that is none"; }
  [[nodiscard]] ProbeResult measure(const ProbeCase& probe) override {
    ++cases;
    ProbeResult result = model_case(probe, 1000.0);
    for (BandwidthFigure& figure : result.bandwidth) {
      figure.how = How::measured_gpu;
      figure.kernel = "verify";
      figure.runs = kProbeRuns;
    }
    return result;
  }
  int cases{0};
};

Study measured(Measure measure, BandwidthProbe* probe) {
  Study study;
  study.source = "workload";
  study.name = "chat";
  study.list = chat();
  study.timing = false;
  study.options = {small_options(1), small_options(16)};
  study.results = run_all(study.list, study.options, 1);
  study.measured_on = "a test";
  const BandwidthStudyOptions options{
      .measure = measure,
      .specs = {probe_spec_from("kimi-k2:2,8,3,2000"), probe_spec_from("glm-5-fp8:live,8,1")},
      .threads = 2};
  for (std::size_t i = 0; i < study.results.size(); ++i)
    study_bandwidth(study.list, study.options[i], options, probe, study.results[i]);
  return study;
}

TEST(BandwidthStudy, TheSummaryHasEveryFieldOfEveryFigure) {
  FakeProbe probe;
  const Study study = measured(Measure::automatic, &probe);
  EXPECT_EQ(probe.cases, 4);
  const auto summary = nlohmann::json::parse(summary_json(study).dump());
  ASSERT_EQ(summary["runs"].size(), 2U);
  for (const auto& run : summary["runs"]) {
    std::set<std::string> placements;
    for (const auto& figure : run["bandwidth"]) {
      for (const char* key :
           {"placement", "kernel", "gbps", "ceiling_gbps", "how", "gbps_min", "gbps_max", "model",
            "shape", "page_size", "row_bytes", "run_mean", "layers", "layers_of_the_model", "runs"})
        EXPECT_TRUE(figure.contains(key)) << key;
      EXPECT_EQ(figure["how"], "measured-gpu");
      EXPECT_EQ(figure["page_size"], run["page_size"]);
      placements.insert(figure["placement"].get<std::string>());
    }
    EXPECT_THAT(placements, ::testing::IsSupersetOf(
                                {"identity", "churned", "stride", "random", "defragmented"}));
    for (const auto& figure : run["transfers"]) {
      EXPECT_GT(figure["descriptors"].get<std::int64_t>(), 0);
      EXPECT_GT(figure["ms"].get<double>(), 0.0);
    }
    ASSERT_EQ(run["defrag_cost"].size(), 2U);
    for (const auto& cost : run["defrag_cost"]) {
      EXPECT_TRUE(cost["break_even"].contains("attention_steps"));
      EXPECT_GT(cost["moves"].get<std::int64_t>(), 0);
    }
    // Only the live case empties granules.
    EXPECT_GT(run["defrag_cost"][1]["memory_given_back"]["bytes"].get<std::int64_t>(), 0);
  }
  // The page has the pool before and after, and the script's own copy of the figures.
  const std::string page = report_html(study);
  EXPECT_THAT(
      page, HasSubstr("\"maps\":[{\"name\":\"kimi-k2, 2 x 2000 tokens, 8 heads, 3 query tokens\""));
  EXPECT_THAT(page, HasSubstr("\"measured_on\":\"a test\""));
  for (const ProbeResult& result : study.results.front().probes) {
    EXPECT_EQ(result.map_before.size(), 2U * 240U);
    EXPECT_NE(result.map_before, result.map_after);
  }
  const std::string table = result_table(study);
  for (const char* word : {"measured-gpu", "kimi-k2:2,8,3,2000", "glm-5-fp8:live,8,1", "churned",
                           "descriptors", "defrag: "}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
}

TEST(BandwidthStudy, WithoutADeviceEveryFigureSaysSo) {
  for (const Measure measure : {Measure::automatic, Measure::cpu, Measure::model}) {
    const Study study = measured(measure, nullptr);
    const auto summary = nlohmann::json::parse(summary_json(study).dump());
    std::set<std::string> how;
    for (const auto& run : summary["runs"]) {
      for (const char* list : {"bandwidth", "transfers", "defrag_cost"}) {
        EXPECT_FALSE(run[list].empty()) << list;
        for (const auto& figure : run[list]) how.insert(figure["how"].get<std::string>());
      }
    }
    if (measure == Measure::model) {
      EXPECT_THAT(how, ::testing::ElementsAre("modelled"));
    } else {
      EXPECT_THAT(how, ::testing::ElementsAre("measured-cpu", "modelled"));
    }
  }
}

TEST(BandwidthStudy, SpecsThatShareACaseHaveItMadeOnceAndEachItsFigures) {
  const RequestList list = chat();
  const RunOptions options = small_options();
  const RunResult replayed = run(list, options);
  std::vector<ProbeSpec> specs;
  for (const char* text : {"kimi-k2:live,8,40", "kimi-k2:2,16,1,2000", "kimi-k2:live,8,1",
                           "llama-3-70b-tp8:2,8,1,2000", "kimi-k2:live,8,255"})
    specs.push_back(probe_spec_from(text));
  ProbeProgress progress;
  RunResult together = replayed;
  study_bandwidth(list, options,
                  {.measure = Measure::model, .specs = specs, .threads = 2, .progress = &progress},
                  nullptr, together);
  ASSERT_EQ(together.probes.size(), specs.size());
  EXPECT_LT(progress.cases, 5);
  EXPECT_EQ(progress.made, progress.cases);
  EXPECT_EQ(progress.measured, 5);
  EXPECT_GT(progress.moves, progress.plans);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    RunResult alone = replayed;
    study_bandwidth(list, options, {.measure = Measure::model, .specs = {specs[i]}}, nullptr,
                    alone);
    RunResult one = replayed;
    one.probes = {together.probes[i]};
    EXPECT_EQ(bandwidth_json(one), bandwidth_json(alone)) << specs[i].shape.text();
  }
}

TEST(BandwidthStudy, TheDeviceIsNotAskedWhereItWasNotWanted) {
  FakeProbe probe;
  (void)measured(Measure::cpu, &probe);
  (void)measured(Measure::model, &probe);
  EXPECT_EQ(probe.cases, 0);
  const Study off = measured(Measure::off, &probe);
  EXPECT_TRUE(off.results.front().probes.empty());
}

TEST(BandwidthStudy, ModelledFiguresAreTheSameBytesEachTime) {
  const Study one = measured(Measure::model, nullptr);
  const Study two = measured(Measure::model, nullptr);
  EXPECT_TRUE(summary_json(one).dump() == summary_json(two).dump());
  EXPECT_TRUE(result_table(one) == result_table(two));
}

TEST(BandwidthStudy, ShapesPastThePoolAreNotedOrRefused) {
  const RunOptions options = small_options();
  EXPECT_THROW(require_shapes_fit({probe_spec_from("kimi-k2:1,8,1,16384")}, options),
               InvalidArgument);
  EXPECT_NO_THROW(require_shapes_fit({probe_spec_from("kimi-k2:1,8,1,16383")}, options));
  const RequestList list = chat();
  RunResult result = run(list, options);
  study_bandwidth(list, options, {.measure = Measure::model, .specs = {}}, nullptr, result);
  EXPECT_EQ(result.probes.size(), 2U);  // the live ones
  EXPECT_EQ(result.notes.size(), 4U);
  EXPECT_THAT(result.notes.front(), HasSubstr("too small"));
}

TEST(ReplayUntil, StopsWhereTheSampleWas) {
  const RequestList list = chat();
  const RunOptions options = small_options();
  const RunResult result = run(list, options);
  const std::int64_t step = checkpoint_step(result);
  ASSERT_GT(step, 0);
  double live_tokens = -1;
  for (const Sample& sample : result.samples) {
    if (sample.step == step) live_tokens = sample.metrics.live_tokens;
  }
  replay_until(list, options, step,
               [&](KvManager& kv, PrefixCache*, const std::vector<SeqId>& live) {
                 TokenCount tokens = 0;
                 for (const SeqId seq : live) tokens += kv.length(seq);
                 EXPECT_DOUBLE_EQ(static_cast<double>(tokens), live_tokens);
                 EXPECT_EQ(kv.sequences(), std::ssize(live));
               });
  EXPECT_THROW(replay_until(list, options, 1 << 30, [](auto&&...) {}), InvalidArgument);
}

}  // namespace
}  // namespace packstone::sim
