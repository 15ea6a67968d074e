// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sim/trace.hpp>
#include <sim/workload.hpp>

#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace packstone::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string message_of(const std::string& spec) {
  try {
    (void)make_workload(spec, 1);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "made";
}

TEST(Workload, AllTenAreListed) {
  std::vector<std::string> names;
  for (const WorkloadInfo& info : list_workloads()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.description.empty());
    EXPECT_FALSE(info.source.empty());
    EXPECT_EQ(info.parameters.front().name, "requests");
    for (const WorkloadParameter& parameter : info.parameters) {
      EXPECT_FALSE(parameter.description.empty()) << info.name << " " << parameter.name;
    }
  }
  EXPECT_THAT(names,
              ElementsAre("chat-azure", "code-azure", "longchat-mooncake", "reason-r1", "batch-api",
                          "agent-coding", "spec-tree", "abort-storm", "steady-fill", "adversary"));
}

TEST(Workload, RequestsAreSoundAndSeeded) {
  for (const WorkloadInfo& info : list_workloads()) {
    const std::string spec = info.name + ":requests=700";
    const Workload made = make_workload(spec, 5);
    EXPECT_EQ(made.name, info.name);
    EXPECT_THAT(made.spec, StartsWith(spec));
    ASSERT_EQ(made.list.requests.size(), 700U) << info.name;
    std::set<std::int64_t> begun;
    for (std::size_t i = 0; i < made.list.requests.size(); ++i) {
      const Request& request = made.list.requests[i];
      ASSERT_EQ(request.id, static_cast<std::int64_t>(i)) << info.name;
      ASSERT_GE(request.prompt_tokens, 1) << info.name;
      ASSERT_GE(request.output_tokens, 1) << info.name;
      ASSERT_LE(request.prompt_tokens, kRequestTokensMax);
      ASSERT_TRUE(i == 0 || made.list.requests[i - 1].arrival_ns <= request.arrival_ns);
      const bool known = begun.count(request.session_id) > 0;
      ASSERT_TRUE(known || !request.closed_loop()) << info.name;
      begun.insert(request.session_id);
      if (request.block_count > 0) {
        ASSERT_EQ(request.block_count,
                  (request.prompt_tokens + made.list.block_tokens - 1) / made.list.block_tokens);
      }
    }
    EXPECT_EQ(make_workload(spec, 5).list, made.list) << info.name;
    // The canonical spec says all there is to say.
    EXPECT_EQ(make_workload(made.spec, 5).list, made.list) << info.name;
    EXPECT_EQ(make_workload(made.spec, 5).spec, made.spec);
    if (info.name != "adversary") {
      EXPECT_NE(make_workload(spec, 6).list, made.list) << info.name;
    }
  }
}

TEST(Workload, OneRequestIsEnough) {
  for (const WorkloadInfo& info : list_workloads()) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      ASSERT_EQ(make_workload(info.name + ":requests=1", seed).list.requests.size(), 1U);
      ASSERT_EQ(make_workload(info.name + ":requests=2", seed).list.requests.size(), 2U);
    }
  }
}

TEST(Workload, SurvivesTheWayThroughAFile) {
  for (const WorkloadInfo& info : list_workloads()) {
    const Workload made = make_workload(info.name + ":requests=300", 2);
    std::ostringstream out;
    const std::int32_t block = write_mooncake(out, made.list);
    const Trace again = read_trace_bytes(out.str(), info.name, {.block_tokens = block});
    EXPECT_EQ(again.list, made.list) << info.name;
  }
}

// Whoever changes a generator changes published results; this makes sure that it is on purpose.
TEST(Workload, BytesArePinned) {
  const auto hash_of = [](const std::string& spec) {
    std::ostringstream out;
    write_mooncake(out, make_workload(spec, 1).list);
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const char c : out.str()) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
    }
    return hash;
  };
  const std::unordered_map<std::string, std::uint64_t> pinned{
      {"chat-azure", 4441933897507357015U},        {"code-azure", 6452818421289851061U},
      {"longchat-mooncake", 5491412242849060705U}, {"reason-r1", 2564732796873019761U},
      {"batch-api", 11061613204554971746U},        {"agent-coding", 3559236720606979355U},
      {"spec-tree", 4441933897507357015U},         {"abort-storm", 17400349462441219758U},
      {"steady-fill", 12779889853313032515U},      {"adversary", 13934614106645364567U}};
  for (const WorkloadInfo& info : list_workloads()) {
    EXPECT_EQ(hash_of(info.name + ":requests=1000"), pinned.at(info.name)) << info.name;
  }
}

TEST(Workload, BadSpecsSayWhatThereIs) {
  EXPECT_THAT(message_of("chat"), HasSubstr("chat-azure, code-azure"));
  EXPECT_THAT(message_of(""), HasSubstr("there are:"));
  EXPECT_THAT(message_of("chat-azure:speed=1"), HasSubstr("requests, rate, cv, drift"));
  EXPECT_THAT(message_of("chat-azure:rate=1,rate=2"), HasSubstr("set twice"));
  EXPECT_THAT(message_of("chat-azure:rate"), HasSubstr("key=value"));
  EXPECT_THAT(message_of("chat-azure:rate=1,,cv=1"), HasSubstr("key=value"));
  EXPECT_THAT(message_of("spec-tree:mode=fast"), HasSubstr("rollback, reserve-tail, tree-front"));
  for (const char* value : {"0", "-1", "nan", "inf", "1e400", "", "5x", "0x5", " 5", "1e9"}) {
    EXPECT_THAT(message_of(std::string("chat-azure:rate=") + value), HasSubstr("within")) << value;
  }
  EXPECT_THAT(message_of("chat-azure:requests=1.5"), HasSubstr("whole number"));
  EXPECT_THAT(message_of("chat-azure:requests=0"), HasSubstr("within"));
  EXPECT_THAT(message_of("chat-azure:requests=20000000,rate=0.001"), HasSubstr("126 years"));
  EXPECT_THAT(message_of("longchat-mooncake:requests=60000,block=1"), HasSubstr("block ids"));
}

TEST(Workload, AParameterDoesNotShiftOtherDraws) {
  const auto lengths_of = [](const std::string& spec) {
    std::vector<std::int64_t> lengths;
    for (const Request& request : make_workload(spec, 9).list.requests) {
      lengths.push_back(request.prompt_tokens);
      lengths.push_back(request.output_tokens);
    }
    return lengths;
  };
  EXPECT_EQ(lengths_of("chat-azure:requests=500"), lengths_of("chat-azure:requests=500,cv=4"));
  EXPECT_EQ(lengths_of("abort-storm:requests=500,abort=0"),
            lengths_of("abort-storm:requests=500,abort=0.5"));
  EXPECT_EQ(lengths_of("chat-azure:requests=500"), lengths_of("abort-storm:requests=500"));
}

TEST(Workload, SpecTreeGivesItsHint) {
  const Workload made =
      make_workload("spec-tree:requests=50,mode=tree-front,draft=32,accept=0.7,cap=5", 1);
  EXPECT_EQ(made.hints.speculation.mode, SpeculationMode::tree_front);
  EXPECT_EQ(made.hints.speculation.draft_tokens, 32);
  EXPECT_EQ(made.hints.speculation.acceptance, 0.7);
  EXPECT_EQ(made.hints.speculation.accepted_max, 5);
  EXPECT_EQ(make_workload("spec-tree", 1).hints.speculation.mode, SpeculationMode::rollback);
  EXPECT_EQ(make_workload("spec-tree:requests=300,base=longchat-mooncake", 4).list,
            make_workload("longchat-mooncake:requests=300", 4).list);
}

TEST(Workload, AbortStormAborts) {
  const Workload made = make_workload("abort-storm:abort=0.2,storm=0.5,storm_at=0.25", 3);
  const auto& requests = made.list.requests;
  std::int64_t aborts = 0;
  std::int64_t struck = 0;
  std::int64_t before = 0;
  std::int64_t storm_ns = -1;
  double place = 0.0;
  for (const Request& request : requests) {
    if (request.abort_after_tokens >= 0) {
      ASSERT_LT(request.abort_after_tokens, request.output_tokens);
      ++aborts;
      place += (static_cast<double>(request.abort_after_tokens) + 0.5) /
               static_cast<double>(request.output_tokens);
    }
    if (request.abort_at_ns < 0) continue;
    ++struck;
    ASSERT_TRUE(storm_ns < 0 || storm_ns == request.abort_at_ns);
    storm_ns = request.abort_at_ns;
    ASSERT_LE(request.arrival_ns, storm_ns);
  }
  for (const Request& request : requests) before += request.arrival_ns <= storm_ns ? 1 : 0;
  const auto n = static_cast<double>(requests.size());
  EXPECT_NEAR(static_cast<double>(aborts) / n, 0.2, 0.01);
  EXPECT_NEAR(place / static_cast<double>(aborts), 0.5, 0.02);
  EXPECT_NEAR(static_cast<double>(struck) / static_cast<double>(before), 0.5, 0.03);
  EXPECT_NEAR(seconds_of(storm_ns) / requests.back().arrival_s(), 0.25, 0.001);
}

TEST(Workload, SteadyFillAimsAtItsOccupancy) {
  for (const double occupancy : {0.7, 0.9, 0.97}) {
    std::ostringstream spec;
    spec << "steady-fill:requests=4000,pool_tokens=262144,occupancy=" << occupancy;
    const Workload made = make_workload(spec.str(), 3);
    double held = 0.0;
    for (const Request& request : made.list.requests) {
      EXPECT_EQ(request.arrival_ns, 0);
      held += static_cast<double>(request.prompt_tokens) +
              0.5 * static_cast<double>(request.output_tokens);
    }
    held /= 4000;
    EXPECT_EQ(made.hints.pool_tokens, 262'144);
    EXPECT_NEAR(held * made.hints.concurrency / 262'144, occupancy, 0.01);
  }
}

TEST(Workload, AdversaryDoublesAndLeavesEverySecond) {
  const Workload made =
      make_workload("adversary:requests=2000,pool_tokens=1024,unit=16,phases=3", 1);
  std::set<std::int64_t> sizes;
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(made.list.requests[i].prompt_tokens, 16);
    EXPECT_EQ(made.list.requests[i].output_tokens, i % 2 == 0 ? 1 : 256);
  }
  for (const Request& request : made.list.requests) sizes.insert(request.prompt_tokens);
  EXPECT_THAT(sizes, ElementsAre(16, 32, 64));
  for (const Request& request :
       make_workload("adversary:requests=500,shape=alternate", 1).list.requests) {
    EXPECT_EQ(request.prompt_tokens, 16);
  }
}

}  // namespace
}  // namespace packstone::sim
