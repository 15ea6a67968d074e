// SPDX-License-Identifier: Apache-2.0
// The command line: what a newcomer types, and every way to get it wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sim/command.hpp>
#include <sim/progress.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace packstone::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

Outcome command(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int status = run_command(arguments, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

class Command : public ::testing::Test {
 protected:
  Command()
      : root(fs::temp_directory_path() /
             ("packstone_command_" + std::to_string(::getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(root);
    fs::create_directories(root);
  }
  ~Command() override { fs::remove_all(root); }
  [[nodiscard]] std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(root / name, std::ios::binary) << bytes;
    return (root / name).string();
  }
  [[nodiscard]] std::string trace() const {
    return file("t.csv",
                "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                "2023-11-16 18:17:03.9799600,480,10\n"
                "2023-11-16 18:17:04.0319600,318,8\n");
  }
  [[nodiscard]] static nlohmann::json json(const fs::path& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in);
  }
  fs::path root;
};

TEST_F(Command, BadArgumentsAreOneLineAndANonZeroStatus) {
  const std::string good = trace();
  const std::string out = (root / "out").string();
  const std::vector<std::vector<std::string>> all = {
      {},
      {"frobnicate"},
      {"simulate", "--frobnicate"},
      {"simulate", "stray"},
      {"simulate", "--policy", "best"},
      {"simulate", "--policy", ""},
      {"simulate", "--policy", "fifo,fifo"},
      {"simulate", "--policy"},
      {"simulate", "--page-size", "0"},
      {"simulate", "--page-size", "-1"},
      {"simulate", "--page-size", "1,,2"},
      {"simulate", "--page-size", "one"},
      {"simulate", "--page-size", "16,16"},
      {"simulate", "--page-size", "1.5"},
      {"simulate", "--pool-tokens", "0"},
      {"simulate", "--pool-tokens", "-4"},
      {"simulate", "--pool-tokens", "99999999999999999999"},
      {"simulate", "--pool-tokens", "1000000000000"},
      {"simulate", "--pool-tokens", "8", "--page-size", "16"},
      {"simulate", "--concurrency", "0"},
      {"simulate", "--concurrency", "many"},
      {"simulate", "--seed", "-1"},
      {"simulate", "--seed", "x"},
      {"simulate", "--threads", "0"},
      {"simulate", "--threads", "1000000"},
      {"simulate", "--requests", "0"},
      {"simulate", "--requests", "-3"},
      {"simulate", "--speed", "0"},
      {"simulate", "--speed", "-1"},
      {"simulate", "--speed", "inf"},
      {"simulate", "--speed", "nan"},
      {"simulate", "--jitter", "-1"},
      {"simulate", "--samples", "0"},
      {"simulate", "--watermark", "1"},
      {"simulate", "--watermark", "nan"},
      {"simulate", "--token-budget", "0"},
      {"simulate", "--arrivals", "never"},
      {"simulate", "--on-bad-row", "shrug"},
      {"simulate", "--trace-format", "xml"},
      {"simulate", "--block-tokens", "-1"},
      {"simulate", "--bytes-per-slot", "0"},
      {"simulate", "--workload", "no-such-workload"},
      {"simulate", "--workload", "chat-azure:requests=-1"},
      {"simulate", "--workload", "chat-azure:colour=red"},
      {"simulate", "--workload", "chat-azure:requests=5", "--requests", "6"},
      {"simulate", "--workload", "chat-azure", "--trace", good},
      {"simulate", "--trace", (root / "none.csv").string()},
      {"simulate", "--trace", root.string()},
      {"simulate", "--trace", file("empty", "")},
      {"simulate", "--trace", file("noise", std::string("\x00\x01\xff\xfe\n\n", 6))},
      {"simulate", "--trace", file("gz", std::string("\x1f\x8b\x08\x00garbage", 11))},
      {"simulate", "--trace",
       file("bad.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,x,1\n")},
      {"simulate", "--trace", file("header.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n")},
      {"simulate", "--trace", good, "--out", (root / "t.csv").string()},
      {"simulate", "--trace", good, "--out", root.string()},
      {"simulate", "--trace", good, "--out", "/proc/packstone"},
      {"simulate", "--trace", good, "--trace", good},
      {"simulate", "--prefix-cache", "maybe"},
      {"simulate", "--speculate", "rollback"},
      {"simulate", "--speculate", "sideways:8:0.5"},
      {"simulate", "--speculate", "front:0:0.5"},
      {"simulate", "--speculate", "front:257:0.5"},
      {"simulate", "--speculate", "front:8:1.5"},
      {"simulate", "--speculate", "front:8:nan"},
      {"simulate", "--speculate", "front:8:0.5:1"},
      {"simulate", "--defrag", "frontier"},
      {"simulate", "--defrag", "tidy:8"},
      {"simulate", "--defrag", "frontier:0"},
      {"simulate", "--defrag", "frontier:-5"},
      {"simulate", "--defrag", "frontier:many"},
      {"simulate", "--defrag-every", "0"},
      {"simulate", "--measure", "guess"},
      {"simulate", "--gpu", "--measure", "cpu"},
      {"simulate", "--measure", "gpu", "--requests", "5"},
      {"simulate", "--probe", "kimi-k2:live,8,1"},
      {"simulate", "--gpu", "--probe", "kimi-k2"},
      {"simulate", "--gpu", "--probe", "kimi-k3:live,8,1"},
      {"simulate", "--gpu", "--probe", "kimi-k2:64,8,1,65536"},
      {"convert"},
      {"convert", "--out", out},
      {"convert", "--trace", good},
      {"convert", "--trace", good, "--out", good},
      {"convert", "--trace", (root / "none.csv").string(), "--out", out},
      {"convert", "--trace", good, "--out", (root / "none" / "x.jsonl").string()},
      {"convert", "--workload", "no-such-workload", "--out", out},
      {"workloads", "--frobnicate"},
      {"info", "stray"},
  };
  for (std::vector<std::string> arguments : all) {
    const bool names_out =
        std::find(arguments.begin(), arguments.end(), "--out") != arguments.end();
    if (!arguments.empty() && arguments[0] == "simulate" && !names_out) {
      arguments.insert(arguments.end(), {"--out", out});
    }
    std::string line;
    for (const std::string& argument : arguments) line += " " + argument;
    SCOPED_TRACE(line);
    const Outcome result = command(arguments);
    EXPECT_NE(result.status, 0);
    EXPECT_TRUE(result.err.starts_with("packstone: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST_F(Command, HelpAndVersionSucceed) {
  const Outcome version = command({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("packstone "));
  const Outcome help = command({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("simulate"));
  EXPECT_THAT(help.out, HasSubstr("workloads"));
  const Outcome simulate_help = command({"simulate", "--help"});
  EXPECT_EQ(simulate_help.status, 0);
  for (const char* word :
       {"--trace", "--workload", "--policy", "--page-size", "--pool-tokens", "--concurrency",
        "--seed", "--out", "--json", "--on-bad-row", "--arrivals", "Examples:", "--no-timing"}) {
    EXPECT_THAT(simulate_help.out, HasSubstr(word));
  }
  EXPECT_EQ(help.err + version.err + simulate_help.err, "");
  EXPECT_EQ(command({"help"}).out, help.out);
  EXPECT_EQ(command({"help", "simulate"}).out, simulate_help.out);
}

TEST_F(Command, HelpOfASubcommandRunsNothing) {
  const std::string folder = (root / "never").string();
  const std::string help = command({"help", "simulate"}).out;
  for (const char* flag : {"--help", "-h"}) {
    const Outcome simulate = command({"simulate", flag, "--out", folder, "--requests", "5"});
    EXPECT_EQ(simulate.status, 0);
    EXPECT_EQ(simulate.out, help);
    EXPECT_FALSE(fs::exists(folder));
    const Outcome convert = command({"convert", flag});
    EXPECT_EQ(convert.status, 0);
    EXPECT_EQ(convert.err, "");
    EXPECT_THAT(command({"workloads", flag}).out, ::testing::Not(HasSubstr("chat-azure")));
  }
}

TEST_F(Command, AMistypedSubcommandIsNamed) {
  const Outcome outcome = command({"simulat", "--trace", "x"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'simulat' is no subcommand"));
}

TEST_F(Command, RefusedRequestsAndAPoolThatWasNeverFilledAreSaid) {
  const Outcome refused =
      command({"simulate", "--pool-tokens", "1", "--requests", "5", "--policy", "run"});
  EXPECT_EQ(refused.status, 0);
  EXPECT_THAT(refused.out, HasSubstr("refused run page 1: 5 of 5 requests could never fit"));
  EXPECT_THAT(refused.out, HasSubstr("short run page 1: the pool was not turned over once"));
  const Outcome all =
      command({"simulate", "--requests", "50", "--pool-tokens", "65536", "--policy", "fifo,run"});
  EXPECT_THAT(all.out, ::testing::Not(HasSubstr("refused")));
}

TEST_F(Command, TextThatCannotBeWrittenIsAFailure) {
  for (const char* argument : {"--help", "--version", "workloads"}) {
    std::ostringstream out;
    std::ostringstream err;
    out.setstate(std::ios::badbit);
    EXPECT_EQ(run_command({argument}, {.out = out, .err = err}), kExitFailure) << argument;
    EXPECT_EQ(err.str(), "packstone: standard output cannot be written\n");
  }
}

TEST_F(Command, AFileNameThatIsNoUtf8IsWrittenAsOne) {
  fs::copy_file(trace(), root / "\xff\xc3.csv");
  const std::string out = (root / "out").string();
  const Outcome result = command({"simulate", "--trace", (root / "\xff\xc3.csv").string(),
                                  "--policy", "run", "--json", "--out", out});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(json(fs::path(out) / "meta.json")["source"]["name"], "\uFFFD\uFFFD.csv");
  EXPECT_EQ(nlohmann::json::parse(result.out)["source"], "\uFFFD\uFFFD.csv");
}

TEST_F(Command, WorkloadsAndInfo) {
  const Outcome workloads = command({"workloads"});
  EXPECT_EQ(workloads.status, 0);
  for (const char* name :
       {"chat-azure", "code-azure", "longchat-mooncake", "reason-r1", "steady-fill"}) {
    EXPECT_THAT(workloads.out, HasSubstr(name));
  }
  const Outcome info = command({"info"});
  EXPECT_EQ(info.status, 0);
  EXPECT_THAT(info.out, HasSubstr("CUDA: not built in"));
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run_command({"info"},
                        {.out = out,
                         .err = err,
                         .describe_devices = [](std::ostream& to) { to << "CUDA: one device\n"; }}),
            0);
  EXPECT_THAT(out.str(), HasSubstr("CUDA: one device"));
}

TEST_F(Command, SimulateLeavesTheFolderAndTheTable) {
  const std::string out = (root / "out").string();
  const Outcome result = command({"simulate", "--trace", trace(), "--policy", "fifo,run",
                                  "--page-size", "1,16", "--out", out});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");  // no progress when it is not a terminal
  EXPECT_THAT(result.out, HasSubstr("oracle"));
  EXPECT_THAT(result.out, HasSubstr("report.html"));
  for (const char* name :
       {"meta.json", "summary.json", "timeseries.csv", "requests.csv", "report.html"}) {
    EXPECT_TRUE(fs::exists(fs::path(out) / name)) << name;
  }
  const auto meta = json(fs::path(out) / "meta.json");
  EXPECT_EQ(meta["rows"]["read"], 2);
  EXPECT_EQ(meta["rows"]["emitted"], 2);
  EXPECT_EQ(meta["source"]["sha256"].get<std::string>().size(), 64U);
  EXPECT_EQ(meta["arguments"]["page_size"], "1,16");
  const auto summary = json(fs::path(out) / "summary.json");
  ASSERT_EQ(summary["runs"].size(), 4U);
  EXPECT_EQ(summary["runs"][1]["policy"], "run");
  EXPECT_EQ(summary["runs"][2]["page_size"], 16);
  // Again into the same folder: it is an earlier run.
  EXPECT_EQ(command({"simulate", "--trace", trace(), "--policy", "run", "--out", out}).status, 0);
  EXPECT_EQ(json(fs::path(out) / "summary.json")["runs"].size(), 1U);
}

TEST_F(Command, SkippedRowsAreCounted) {
  const std::string path = file("bad.csv",
                                "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                "2023-11-16 18:17:03.9,480,10\n"
                                "2023-11-16 18:17:04.0,x,8\n");
  const std::string out = (root / "out").string();
  const Outcome error = command({"simulate", "--trace", path, "--out", out});
  EXPECT_THAT(error.err, HasSubstr("bad.csv:3"));
  EXPECT_FALSE(fs::exists(out));
  ASSERT_EQ(command({"simulate", "--trace", path, "--on-bad-row", "skip", "--out", out}).status, 0);
  const auto rows = json(fs::path(out) / "meta.json")["rows"];
  std::int64_t dropped = 0;
  for (const auto& [reason, count] : rows["dropped"].items()) dropped += count.get<int>();
  EXPECT_EQ(rows["read"].get<std::int64_t>(), rows["emitted"].get<std::int64_t>() + dropped);
  EXPECT_EQ(dropped, 1);
}

TEST_F(Command, JsonIsTheSummary) {
  const std::string out = (root / "out").string();
  const Outcome result = command(
      {"simulate", "--trace", trace(), "--policy", "run", "--json", "--no-timing", "--out", out});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto summary = nlohmann::json::parse(result.out);
  EXPECT_EQ(summary, json(fs::path(out) / "summary.json"));
  EXPECT_TRUE(summary["runs"][0]["events_per_s"].is_null());
}

TEST_F(Command, ThreadsDoNotChangeAByte) {
  const auto bytes = [&](const std::string& threads) {
    const fs::path out = root / threads;
    const Outcome result =
        command({"simulate", "--workload", "chat-azure:requests=100", "--pool-tokens", "20000",
                 "--concurrency", "12", "--policy", "fifo,sorted,run", "--page-size", "1,16",
                 "--seed", "9", "--no-timing", "--threads", threads, "--out", out.string()});
    EXPECT_EQ(result.status, 0) << result.err;
    std::string all;
    for (const char* name :
         {"meta.json", "summary.json", "timeseries.csv", "requests.csv", "report.html"}) {
      std::ifstream in(out / name, std::ios::binary);
      std::stringstream text;
      text << in.rdbuf();
      all += text.str();
    }
    return all;
  };
  const std::string one = bytes("1");
  EXPECT_GT(one.size(), 10'000U);
  EXPECT_TRUE(one == bytes("2"));
}

TEST_F(Command, PartsOfTheManagerCanBeTurnedOn) {
  const Outcome result = command({"simulate",
                                  "--workload",
                                  "longchat-mooncake:requests=30",
                                  "--page-size",
                                  "16",
                                  "--policy",
                                  "fifo,run",
                                  "--prefix-cache",
                                  "on",
                                  "--speculate",
                                  "front:16:0.6",
                                  "--defrag",
                                  "straighten:64",
                                  "--defrag-every",
                                  "8",
                                  "--pool-tokens",
                                  "1000000",
                                  "--check",
                                  "--json",
                                  "--no-timing"});
  ASSERT_EQ(result.status, 0) << result.err;
  const nlohmann::json summary = nlohmann::json::parse(result.out);
  ASSERT_EQ(summary["runs"].size(), 2U);
  for (const auto& run : summary["runs"]) {
    EXPECT_GT(run["prefix_cache"]["blocks_asked"], 0);
    EXPECT_GT(run["speculation"]["accepted"], 0);
    EXPECT_EQ(run["defrag"]["objective"], "straighten");
    EXPECT_TRUE(run.contains("hit_tokens"));
  }
}

TEST_F(Command, GpuWithoutADeviceFinishesAndLabelsEveryFigure) {
  const std::string out = (root / "out").string();
  for (const char* cache : {"off", "on"}) {
    const Outcome result = command({"simulate",       "--gpu",
                                    "--workload",     "longchat-mooncake:requests=30",
                                    "--page-size",    "16",
                                    "--policy",       "fifo",
                                    "--prefix-cache", cache,
                                    "--pool-tokens",  "500000",
                                    "--probe",        "kimi-k2:2,8,5,4000",
                                    "--probe",        "kimi-k2:live,8,1",
                                    "--probe",        "kimi-k2:live,8,9",
                                    "--out",          out});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("no device: this build has no device half"));
    const auto summary = json(fs::path(out) / "summary.json");
    for (const char* list : {"bandwidth", "transfers", "defrag_cost"}) {
      const auto& figures = summary["runs"][0][list];
      EXPECT_FALSE(figures.empty()) << list;
      for (const auto& figure : figures) {
        const bool labelled = figure["how"] == "measured-cpu" || figure["how"] == "modelled";
        EXPECT_TRUE(labelled) << figure.dump();
      }
    }
    // Every placement of every case by the processors and from the curve.
    std::map<std::string, int> how;
    for (const auto& figure : summary["runs"][0]["bandwidth"]) {
      how[figure["how"]] += 1;
      EXPECT_GT(figure["gbps"], 0.0);
    }
    EXPECT_GE(how["modelled"], 3 * 5);
    EXPECT_EQ(how["measured-cpu"], how["modelled"]);
    EXPECT_EQ(json(fs::path(out) / "meta.json")["arguments"]["measure"], "auto");
  }
}

TEST_F(Command, AStudyOfHugePagesEnds) {
  const Outcome result =
      command({"simulate", "--measure", "model", "--pool-tokens", "1099511627776", "--page-size",
               "1048576", "--policy", "fifo", "--requests", "20", "--samples", "2"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("kimi-k2:live,8,1"));
}

TEST_F(Command, ADeviceThatIsThereIsAskedAndOneThatFailsIsNamed) {
  const std::vector<std::string> arguments = {
      "simulate", "--measure", "gpu",  "--workload", "chat-azure:requests=40", "--pool-tokens",
      "20000",    "--policy",  "fifo", "--probe",    "kimi-k2:live,8,1"};
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(run_command(arguments, {.out = out,
                                    .err = err,
                                    .make_probe =
                                        [](std::string& reason) {
                                          reason = "the card is asleep";
                                          return std::unique_ptr<BandwidthProbe>();
                                        }}),
            kExitFailure);
  EXPECT_EQ(err.str(), "packstone: --measure gpu: the card is asleep\n");
  EXPECT_EQ(out.str(), "");
}

TEST_F(Command, ConvertLosesNothing) {
  const std::string out = (root / "out.jsonl").string();
  const Outcome result = command({"convert", "--trace", trace(), "--out", out});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("--block-tokens 512"));
  const std::string first = (root / "a").string();
  const std::string second = (root / "b").string();
  for (const auto& [input, folder] : {std::pair{trace(), first}, std::pair{out, second}}) {
    ASSERT_EQ(
        command({"simulate", "--trace", input, "--policy", "run", "--no-timing", "--out", folder})
            .status,
        0);
  }
  EXPECT_EQ(json(fs::path(first) / "summary.json")["runs"],
            json(fs::path(second) / "summary.json")["runs"]);
}

TEST_F(Command, AllZeroOutputsGiveNoRatesRatherThanNan) {  // TR-05
  const std::string path = file("zero.csv",
                                "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                "2023-11-16 18:17:03.9,480,0\n"
                                "2023-11-16 18:17:04.0,20,0\n");
  const Outcome result = command({"simulate", "--trace", path, "--policy", "run", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(nlohmann::json::parse(result.out)["runs"][0]["contig_decode"].is_null());
  const Outcome table = command({"simulate", "--trace", path, "--policy", "run"});
  EXPECT_THAT(table.out, HasSubstr("n/a"));
  EXPECT_THAT(table.out, ::testing::Not(HasSubstr("nan")));
}

TEST_F(Command, PartsThatWereUsedStandInTheTableAndOnThePage) {
  const std::string out = (root / "out").string();
  const auto with = [&](const char* cache, const char* speculate) {
    return command({"simulate", "--workload", "longchat-mooncake:requests=30", "--page-size", "16",
                    "--policy", "run", "--prefix-cache", cache, "--speculate", speculate,
                    "--pool-tokens", "500000", "--out", out});
  };
  const Outcome both = with("on", "reserve:8:0.6");
  ASSERT_EQ(both.status, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("prefix cache run page 16: "));
  EXPECT_THAT(both.out, HasSubstr("speculation run page 16, reserve:8:0.6: "));
  const auto run = json(fs::path(out) / "summary.json")["runs"][0];
  EXPECT_THAT(both.out,
              HasSubstr(": " + std::to_string(run["speculation"]["accepted"].get<int>()) + " of " +
                        std::to_string(run["speculation"]["drafted"].get<int>()) + " drafted"));
  const auto page = [&] {
    std::ifstream in(fs::path(out) / "report.html", std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  EXPECT_THAT(page(), HasSubstr("id=\"parts-section\""));
  EXPECT_THAT(page(), HasSubstr("\"prefix_cache\":{\"blocks_asked\":" +
                                std::to_string(run["prefix_cache"]["blocks_asked"].get<int>())));
  EXPECT_THAT(page(), HasSubstr("\"speculation\":{\"drafted\":" +
                                std::to_string(run["speculation"]["drafted"].get<int>())));
  const Outcome neither = with("off", "off");
  EXPECT_THAT(neither.out, ::testing::Not(HasSubstr("speculation")));
  EXPECT_THAT(page(), HasSubstr("\"prefix_cache\":null,\"speculation\":null"));
}

TEST_F(Command, AnUnknownTraceIsToldWhatThereIs) {
  const Outcome result = command(
      {"simulate", "--trace", file("what.txt", "hello\n"), "--out", (root / "out").string()});
  EXPECT_NE(result.status, 0);
  for (const char* word : {"what.txt:1", "azure, burstgpt, mooncake, bailian", "servegen"})
    EXPECT_THAT(result.err, HasSubstr(word));
}

TEST(Progress, OfAStudySaysWhatIsDone) {
  ProbeProgress progress;
  progress.cases = 4;
  progress.made = 1;
  progress.plans = 1834;
  progress.moves = 1'701'952;
  progress.figures = 6;
  EXPECT_EQ(probe_progress_line(progress, 1, 2, 74.0),
            "probing run 1 of 2: 1 of 4 cases made, 1834 plans of 1.7M moves; 0 of 6 measured, "
            "1 min 14 s");
}

TEST(Progress, SaysRateAndTimeLeft) {
  EXPECT_EQ(progress_line(0, 10'000'000, 0.0, 0, 2),
            "0.0M of 10.0M tokens (0 %), 0.0M tokens/s, 0 of 2 runs done");
  EXPECT_EQ(progress_line(2'000'000, 10'000'000, 1.0, 1, 2),
            "2.0M of 10.0M tokens (20 %), 2.0M tokens/s, 4 s left, 1 of 2 runs done");
  EXPECT_THAT(progress_line(1'000'000, 1'000'000'000, 1.0, 0, 1), HasSubstr("16 min 39 s left"));
}

}  // namespace
}  // namespace packstone::sim
