// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a run leaves behind: the folder of files, and the table on standard output.
///
/// The folder is written beside its place under another name and renamed once whole, so that a
/// reader sees the old one, the new one or none. A folder that is there already is replaced only
/// when it is empty or an earlier run of this program: it has a meta.json that says so and nothing
/// that this program did not write.
///
/// Bytes depend on the input, the seed and the arguments alone, with one exception: the keys of
/// `timing` and `events_per_s` in summary.json are wall-clock figures. Without timing they are
/// null, and then every file is the same, byte for byte, whatever the number of threads. Measured
/// bandwidth, where it was asked for, is of the wall clock too; without timing it is modelled only.

#include <nlohmann/json.hpp>
#include <sim/run.hpp>
#include <sim/trace.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace packstone::sim {

/// The source of the requests and the arguments, as they stand in meta.json.
struct Study {
  std::vector<std::pair<std::string, std::string>> arguments;  ///< name, value, in a fixed order
  std::uint64_t seed{0};
  std::string source;  ///< "trace" or "workload"
  std::string name;    ///< base name of the file, or the workload's spec
  std::string format;  ///< of the trace; empty for a workload
  std::string sha256;  ///< of the raw trace file; empty for a workload
  RowCounts rows{};    ///< of a workload: read == emitted == its requests
  RequestList list;
  std::vector<RunOptions> options;
  std::vector<RunResult> results;  ///< one for each of `options`
  std::string measured_on;         ///< what the bandwidth figures were got on; empty: none
  bool timing{true};               ///< write wall-clock figures
};

[[nodiscard]] nlohmann::ordered_json meta_json(const Study& study);
[[nodiscard]] nlohmann::ordered_json reuse_json(const ReuseCounters& reuse);
/// @param nodes  drafted for a sequence in a step
[[nodiscard]] nlohmann::ordered_json drafting_json(const DraftingCounters& drafting,
                                                   std::int64_t nodes);
[[nodiscard]] nlohmann::ordered_json defrag_json(const DefragReport& report);
/// One sentence: what it moved, what it gave, and whether that pays for attention alone.
[[nodiscard]] std::string defrag_verdict(const DefragReport& report);
[[nodiscard]] nlohmann::ordered_json summary_json(const Study& study);
[[nodiscard]] std::string timeseries_csv(const Study& study);
[[nodiscard]] std::string requests_csv(const Study& study);
/// The table for people, limits below it.
[[nodiscard]] std::string result_table(const Study& study);

/// A name and the bytes of a file.
using Files = std::vector<std::pair<std::string, std::string>>;

/// All files of the folder, report.html included.
[[nodiscard]] Files study_files(const Study& study);

/// Throws InvalidArgument when `folder` is in the way of a run: a file, a folder that is not a
/// run's, a mount point, `.` or `..`, or under something that is no folder. Changes nothing.
void require_replaceable(const std::filesystem::path& folder);

/// Writes the folder whole or not at all; makes the folders above it. Throws Error naming the path
/// and the reason when that fails.
void write_folder(const std::filesystem::path& folder, const Files& files);

}  // namespace packstone::sim
