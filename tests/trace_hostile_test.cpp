// SPDX-License-Identifier: Apache-2.0
// Input that is wrong on purpose: always one TraceError, in bounded time and memory.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <tests/trace_fixture.hpp>

#include <string>

namespace packstone::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

std::string azure_rows(int count) {
  std::string text = kHeader;
  for (int i = 0; i < count; ++i) {
    text += "2023-11-16 18:17:" + std::to_string(10 + i % 50) + "," +
            std::to_string(1 + i * 7919 % 4000) + "," + std::to_string(1 + i * 104729 % 500) + "\n";
  }
  return text;
}

TEST(TraceHostile, FilesThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto reason_of = [](const std::string& path) -> std::string {
    try {
      (void)read_trace(path);
    } catch (const TraceError& error) {
      EXPECT_EQ(error.file(), path);
      EXPECT_EQ(error.line(), 0);
      return error.reason();
    }
    return "read";
  };
  EXPECT_EQ(reason_of(folder.path("missing.csv")), "no such file");
  EXPECT_EQ(reason_of(folder.path("")), "is a directory");
  EXPECT_EQ(reason_of(folder.write("empty.csv", "")), "is empty");
  EXPECT_EQ(reason_of(folder.write("blank.csv", "\n \r\n\t\n")), "is empty");
  // A pipe without a writer would block for ever.
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(reason_of(pipe), "is no regular file");
  EXPECT_EQ(reason_of("/dev/null"), "is no regular file");
}

TEST(TraceHostile, BinaryJunk) {
  std::string junk;
  for (int i = 0; i < 100'000; ++i) junk += static_cast<char>((i * 7919 + i / 251) % 255 + 1);
  EXPECT_EQ(error_of(junk).file(), "input");
  EXPECT_THAT(error_of(std::string("{\"timestamp\"\0: 0}", 17)).reason(), HasSubstr("NUL"));
  EXPECT_THAT(error_of(std::string("\xFF\xFEt\0i\0m\0e\0", 10)).reason(), HasSubstr("NUL"));
  // The message shows what it found, in plain characters.
  EXPECT_THAT(error_of("\x01\x02hello\n").reason(), HasSubstr("'??hello'"));
}

TEST(TraceHostile, CutAndDamagedCompression) {
  const std::string text = azure_rows(20'000);
  for (const std::string& packed : {gzip_of(text), zstd_of(text)}) {
    for (std::size_t cut = 0; cut < packed.size(); cut += 1 + packed.size() / 97) {
      std::string part = packed.substr(0, cut);
      // A cut is an error wherever it falls, also when bad rows are to be skipped.
      EXPECT_THROW((void)read_text(part, {.on_bad_row = OnBadRow::skip}), TraceError) << cut;
    }
    for (std::size_t at = 20; at < packed.size(); at += 1 + packed.size() / 41) {
      std::string damaged = packed;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      try {
        (void)read_text(damaged, {.on_bad_row = OnBadRow::skip});
      } catch (const TraceError&) {
        // zstd frames without a checksum may decode to other rows; gzip has a CRC and must not.
        continue;
      }
      EXPECT_EQ(static_cast<unsigned char>(packed[0]), 0x28) << "gzip damage at " << at;
    }
  }
}

TEST(TraceHostile, RubbishBehindTheCompressedData) {
  EXPECT_THROW((void)read_text(gzip_of(azure_rows(10)) + "rubbish"), TraceError);
  EXPECT_THROW((void)read_text(zstd_of(azure_rows(10)) + "rubbish"), TraceError);
}

TEST(TraceHostile, DecompressionBombs) {
  // 256 MiB of blank lines, and of one line: few bytes when packed.
  const std::string blank = std::string(kHeader) + std::string(std::size_t{256} << 20U, '\n');
  EXPECT_THAT(error_of(zstd_of(blank)).reason(), HasSubstr("bomb"));
  EXPECT_THAT(error_of(gzip_of(blank)).reason(), HasSubstr("bomb"));
  const std::string line = std::string(kHeader) + std::string(std::size_t{256} << 20U, '1');
  EXPECT_THAT(error_of(zstd_of(line)).reason(), HasSubstr("line is longer"));
}

TEST(TraceHostile, LimitsAreErrorsWhateverTheBadRowRule) {
  const std::string text = azure_rows(100);
  TraceOptions options{.on_bad_row = OnBadRow::skip};
  options.limits.rows = 99;
  EXPECT_EQ(error_of(text, options).line(), 101);
  options = {.on_bad_row = OnBadRow::skip};
  options.limits.line_bytes = 20;
  EXPECT_EQ(error_of(text, options).line(), 1);
  options = {.on_bad_row = OnBadRow::skip};
  options.limits.input_bytes = 1000;
  EXPECT_THAT(error_of(text, options).reason(), HasSubstr("more than 1000 bytes"));
  options = {.block_tokens = 1};
  options.limits.block_ids = 7;
  EXPECT_THAT(
      error_of("{\"timestamp\": 0, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": "
               "[1, 2, 3, 4]}\n{\"timestamp\": 0, \"input_length\": 4, \"output_length\": 1, "
               "\"hash_ids\": [1, 2, 3, 4]}\n",
               options)
          .reason(),
      HasSubstr("block ids"));
  EXPECT_THAT(
      error_of("id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len\n"
               "0,1000000000,1,0,0,0,0\n",
               options)
          .reason(),
      HasSubstr("block ids"));
}

TEST(TraceHostile, LongLinesInsideTheLimitAreRead) {
  std::string ids;
  for (int i = 0; i < 1'000'000; ++i) ids += (i == 0 ? "" : ",") + std::to_string(i);
  const std::string row =
      "{\"timestamp\": 0, \"input_length\": 1000000, \"output_length\": 1, \"hash_ids\": [" + ids +
      "]}\n";
  const Trace trace = read_text(row + row, {.block_tokens = 1});
  EXPECT_EQ(trace.list.block_ids.size(), 2'000'000U);
}

TEST(TraceHostile, DeepJson) {
  const std::string deep = "{\"timestamp\": 0, \"x\": " + std::string(5'000'000, '[') + "\n";
  EXPECT_EQ(error_of(deep).line(), 1);
  const std::string objects = [] {
    std::string text = "{\"timestamp\": ";
    for (int i = 0; i < 100'000; ++i) text += "{\"a\": ";
    return text;
  }();
  EXPECT_EQ(error_of(objects).line(), 1);
}

TEST(TraceHostile, JsonThatIsNoRow) {
  for (const char* text :
       {"[\"timestamp\"]", "{\"timestamp\": 0", "{\"timestamp\"}", "{\"timestamp\": 0}}",
        "{\"timestamp\": 0, \"timestamp\": 1, \"input_length\": 5, \"output_length\": 1}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1], "
        "\"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"think_time\": 5}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1], "
        "\"unshared_blocks\": 2}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"client\": 4294967296}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"session_id\": "
        "9223372036854775808}",
        "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"\xC3\x28\": 1}"}) {
    EXPECT_THROW((void)read_text(text), TraceError) << text;
  }
  // Keys that are not known pass by, whatever they hold.
  EXPECT_EQ(read_text("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"x\": "
                      "{\"input_length\": [{\"timestamp\": -1}]}, \"hash_ids\": [1]}")
                .rows.emitted,
            1);
}

TEST(TraceHostile, ErrorsShowLittleOfALongField) {
  const std::string text =
      std::string(kHeader) + "2023-11-16 18:17:03," + std::string(1'000'000, 'x') + ",1\n";
  EXPECT_LT(std::string(error_of(text).what()).size(), 200U);
}

TEST(TraceHostile, SessionWaitsThatOverflow) {
  std::string text =
      "id,input_len,output_len,arrival_time,round_idx,tool_wait_after_ms,prefix_len\n";
  for (int i = 0; i < 5; ++i) {
    text += "0,5,1,0," + std::to_string(i) + ",4000000000000,0\n";
  }
  EXPECT_THAT(error_of(text).reason(), HasSubstr("146 years"));
}

TEST(TraceHostile, WritingLeavesNothingHalfDone) {
  const TemporaryFolder folder;
  const Trace trace = read_text(azure_rows(5));
  EXPECT_THROW(write_mooncake_file(folder.path("no/such/folder.jsonl"), trace.list), TraceError);
  std::filesystem::create_directory(folder.path("taken"));
  EXPECT_THROW(write_mooncake_file(folder.path("taken"), trace.list), TraceError);
  std::ofstream(folder.path("out.jsonl.partial")) << "of somebody else";
  EXPECT_EQ(write_mooncake_file(folder.path("out.jsonl"), trace.list), 512);
  EXPECT_EQ(read_trace(folder.path("out.jsonl")).list, trace.list);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("taken", "out.jsonl", "out.jsonl.partial"));
}

}  // namespace
}  // namespace packstone::sim
