// SPDX-License-Identifier: Apache-2.0
// The files of a run: equal bytes for equal seeds, whole or not there, nobody else's work replaced.
#include <packstone/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/output.hpp>
#include <sim/workload.hpp>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace packstone::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TempFolder : public ::testing::Test {
 protected:
  TempFolder() : root(fs::temp_directory_path() / ("packstone_output_" + tag())) {
    fs::remove_all(root);
    fs::create_directories(root);
  }
  ~TempFolder() override { fs::remove_all(root); }
  static std::string tag() {
    return std::to_string(::getpid()) + "_" +
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
  }
  static void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(root), fs::directory_iterator()));
  }
  fs::path root;
};

Study study(int threads, bool timing = false) {
  Study result;
  Workload workload = make_workload("chat-azure:requests=300", 11);
  result.seed = 11;
  result.source = "workload";
  result.name = workload.spec;
  result.list = std::move(workload.list);
  result.rows.read = result.rows.emitted = 300;
  result.timing = timing;
  result.arguments = {{"policy", "fifo,run"}};
  for (const std::int64_t page_size : {1, 16}) {
    for (const char* policy : {"fifo", "sorted", "run"}) {
      RunOptions options;
      options.policy = policy;
      options.page_size = page_size;
      options.pool_tokens = 32'768;
      options.scheduler.concurrency = 16;
      options.samples = 16;
      result.options.push_back(options);
    }
  }
  result.results = run_all(result.list, result.options, threads);
  return result;
}

TEST(Output, SameSeedSameBytesWhateverTheThreads) {
  const Files one = study_files(study(1));
  const Files two = study_files(study(2));
  const Files again = study_files(study(2));
  ASSERT_EQ(one.size(), 5U);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, two[i].first);
    EXPECT_TRUE(one[i].second == two[i].second) << one[i].first << " differs between threads";
    EXPECT_TRUE(two[i].second == again[i].second) << one[i].first << " differs between runs";
  }
}

TEST(Output, OnlyTheTimingOfTheSummaryDependsOnTheClock) {
  const Study timed = study(2, true);
  Study untimed = study(1, true);
  untimed.timing = false;
  const Files with = study_files(timed);
  const Files without = study_files(untimed);
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i].first == "summary.json") continue;
    EXPECT_TRUE(with[i].second == without[i].second) << with[i].first;
  }
  auto summary = nlohmann::json::parse(with[1].second);
  for (auto& run : summary["runs"]) {
    EXPECT_GT(run["events_per_s"].get<double>(), 0.0);
    EXPECT_GE(run["timing"]["alloc_ns_p99"].get<double>(), run["timing"]["alloc_ns_p50"]);
    run["events_per_s"] = nullptr;
    run["timing"] = nullptr;
  }
  EXPECT_EQ(summary, nlohmann::json::parse(without[1].second));
}

TEST(Output, SummaryHasWhatAReaderLooksFor) {
  const Study made = study(2);
  const auto summary = nlohmann::json::parse(summary_json(made).dump());
  ASSERT_EQ(summary["runs"].size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    const auto& run = summary["runs"][i];
    for (const char* key : {"policy",
                            "page_size",
                            "requests",
                            "events",
                            "events_per_s",
                            "run_mean",
                            "contig_prefill",
                            "contig_decode",
                            "contig_all",
                            "tok_in_runs_64",
                            "descriptors",
                            "alloc_fail",
                            "alloc_fail_capacity",
                            "alloc_fail_fragment",
                            "preemptions",
                            "blowup",
                            "F",
                            "F_auc",
                            "ufsi",
                            "extfrag",
                            "lfe",
                            "holes",
                            "free_entropy",
                            "internal_frag",
                            "frontier_waste",
                            "returnable_2m",
                            "stride_regular",
                            "mergeable",
                            "pages2m_ratio",
                            "span_ratio",
                            "run_p50w",
                            "oracle",
                            "limits",
                            "how"}) {
      EXPECT_TRUE(run.contains(key)) << key;
    }
    EXPECT_EQ(run["policy"], made.options[i].policy);
    EXPECT_EQ(run["requests"], 300);
    EXPECT_EQ(run["events"].get<std::int64_t>() % 2, 0);  // what is written is released
    EXPECT_LE(run["run_mean"].get<double>(), run["oracle"]["run_mean"].get<double>() + 1e-9);
    EXPECT_GE(run["blowup"].get<double>(), 1.0);
  }
}

TEST(Output, MetaReconcilesTheRows) {
  Study made = study(1);
  made.rows.read = 303;
  made.rows.dropped = {{"empty_request", 3}};
  const auto meta = meta_json(made);
  EXPECT_EQ(meta["program"], "packstone");
  EXPECT_EQ(meta["rows"]["read"], 303);
  EXPECT_EQ(meta["rows"]["dropped"]["empty_request"], 3);
  EXPECT_EQ(meta["seed"], 11);
}

TEST(Output, CsvRowsHaveAllColumnsAndAllRequests) {
  const Study made = study(1);
  for (const std::string& csv : {timeseries_csv(made), requests_csv(made)}) {
    std::istringstream lines(csv);
    std::string line;
    std::getline(lines, line);
    const auto commas = std::count(line.begin(), line.end(), ',');
    std::int64_t rows = 0;
    while (std::getline(lines, line)) {
      ASSERT_EQ(std::count(line.begin(), line.end(), ','), commas) << line;
      ++rows;
    }
    if (csv.find("source_id") != std::string::npos) {
      EXPECT_EQ(rows, 6 * 300);
    } else {
      EXPECT_GE(rows, 6 * 16);
    }
  }
  EXPECT_THAT(requests_csv(made), ::testing::Not(HasSubstr("nan")));
}

TEST(Output, TableNamesEveryPolicyAndTheOracle) {
  const std::string table = result_table(study(1));
  for (const char* word : {"fifo", "sorted", "run", "oracle", "measured-cpu", "modelled"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
}

TEST_F(TempFolder, WritesWholeAndReplacesAnEarlierRun) {
  const fs::path folder = root / "a" / "b";
  write_folder(folder, {{"meta.json", "{\"program\":\"packstone\"}"}, {"summary.json", "1"}});
  write_folder(folder, {{"meta.json", "{\"program\":\"packstone\"}"}});
  EXPECT_TRUE(fs::exists(folder / "meta.json"));
  EXPECT_FALSE(fs::exists(folder / "summary.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root / "a"), fs::directory_iterator()), 1);
}

TEST_F(TempFolder, AWayThroughTheFolderItselfLeadsThere) {
  for (const char* content : {"{\"program\":\"packstone\"}", "again"}) {
    write_folder(root / "run", {{"meta.json", "{\"program\":\"packstone\"}"}});
    write_folder(root / "run" / ".." / "run", {{"meta.json", content}});
    EXPECT_EQ(read(root / "run" / "meta.json"), content);
    EXPECT_EQ(entries(), 1U);
  }
}

TEST_F(TempFolder, TakesAnEmptyFolderAndATrailingSlash) {
  fs::create_directory(root / "empty");
  write_folder((root / "empty").string() + "/", {{"meta.json", "x"}});
  EXPECT_EQ(read(root / "empty" / "meta.json"), "x");
}

TEST_F(TempFolder, RefusesWhatIsNotAnEarlierRun) {
  fs::create_directory(root / "photos");
  write(root / "photos" / "a.jpg", "x");
  EXPECT_THROW(write_folder(root / "photos", {{"meta.json", "x"}}), InvalidArgument);
  EXPECT_EQ(read(root / "photos" / "a.jpg"), "x");

  fs::create_directory(root / "mixed");
  write(root / "mixed" / "meta.json", "{\"program\":\"packstone\"}");
  write(root / "mixed" / "notes.txt", "mine");
  EXPECT_THROW(require_replaceable(root / "mixed"), InvalidArgument);

  fs::create_directory(root / "other");
  write(root / "other" / "meta.json", "[1]");
  EXPECT_THROW(require_replaceable(root / "other"), InvalidArgument);

  write(root / "file", "x");
  EXPECT_THROW(require_replaceable(root / "file"), InvalidArgument);
  EXPECT_THROW(require_replaceable(root / "file" / "below"), InvalidArgument);
  EXPECT_THROW(require_replaceable(""), InvalidArgument);
  // What cannot be renamed is refused before a replay, not after it.
  for (const char* nameless : {".", "..", "/", "empty/.", "empty/..", "none/.."}) {
    EXPECT_THROW(require_replaceable(root / nameless), InvalidArgument) << nameless;
  }
  try {
    require_replaceable("/proc");
    ADD_FAILURE() << "accepted a mount point";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("mount point"), std::string::npos) << error.what();
  }
}

TEST_F(TempFolder, AFailedWriteLeavesNothingAndKeepsTheOldRun) {
  const fs::path folder = root / "run";
  write_folder(folder, {{"meta.json", "{\"program\":\"packstone\"}"}});
  EXPECT_THROW(write_folder(folder, {{"meta.json", "new"}, {"no/such/folder", "x"}}), Error);
  EXPECT_EQ(read(folder / "meta.json"), "{\"program\":\"packstone\"}");
  EXPECT_EQ(entries(), 1U);
}

}  // namespace
}  // namespace packstone::sim
