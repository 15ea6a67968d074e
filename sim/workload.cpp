// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <fmt/format.h>
#include <sim/trace_number.hpp>
#include <sim/workload.hpp>
#include <sim/workload_generators.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>

namespace packstone::sim {
namespace {

WorkloadParameter number(const char* name, const char* value, double min, double max,
                         const char* description) {
  return {name, value, description, min, max, false, {}};
}
WorkloadParameter whole(const char* name, const char* value, double min, double max,
                        const char* description) {
  return {name, value, description, min, max, true, {}};
}
WorkloadParameter word(const char* name, std::vector<std::string> choices,
                       const char* description) {
  return {name, choices.front(), description, 0.0, 0.0, false, std::move(choices)};
}
// What most workloads share.
WorkloadParameter requests(const char* value) {
  return whole("requests", value, 1, 2e7, "how many requests");
}
WorkloadParameter rate(const char* value) {
  return number("rate", value, 1e-3, 1e5, "mean arrivals a second");
}
WorkloadParameter pool(const char* value) {
  return whole("pool_tokens", value, 1024, 1e10, "size of the pool it is made for, in tokens");
}

std::vector<WorkloadInfo> make_list() {
  std::vector<WorkloadInfo> list;
  list.push_back({"chat-azure",
                  "chat: mid prompts and answers, near-Poisson arrivals with a slow drift",
                  "Azure LLM 2023 conversation",
                  {requests("19366"), rate("5.5"),
                   number("cv", "1.06", 0.1, 50, "CV of the gaps at constant rate"),
                   number("drift", "0.25", 0, 2, "standard deviation of ln rate")}});
  list.push_back(
      {"code-azure",
       "code completion: long prompts, short answers, arrivals in violent bursts",
       "Azure LLM 2023 code",
       {requests("8819"), rate("2.57"),
        number("renew", "0.4", 0.01, 1,
               "chance that a gap is independent of the one before; less is burstier")}});
  list.push_back({"longchat-mooncake",
                  "long chats: a shared first block, and 39 % of requests continue a conversation",
                  "Mooncake FAST'25 conversation",
                  {requests("12031"), rate("3.4"), number("cv", "1.45", 0.1, 50, "CV of the gaps"),
                   number("continue", "0.387", 0, 1, "share of requests that continue a chat"),
                   number("gap", "123", 0.1, 1e5, "median seconds between turns of a chat"),
                   number("tick", "0", 0, 60, "round arrivals down to this many seconds"),
                   whole("block", "512", 1, 65536, "tokens of a block id")}});
  list.push_back({"reason-r1",
                  "reasoning: short to long prompts, very long outputs, bursty clients",
                  "ServeGen deepseek-r1 (Alibaba)",
                  {requests("5000"), rate("2")}});
  list.push_back({"batch-api",
                  "an API with a few large clients, some of them submitting in batches",
                  "ServeGen m-large (Alibaba)",
                  {requests("20000"), rate("20")}});
  list.push_back(
      {"agent-coding",
       "coding agents: closed-loop sessions that grow to 10^5 tokens and wait for tools and people",
       "TraceLab (UW SyFI), with the prefix layers of AIPerf",
       {requests("5000"), number("session_rate", "0.05", 1e-4, 1e3, "sessions begun a second"),
        number("steps", "47", 1, 1e4, "mean steps of a session"),
        number("tail", "0.08", 0, 1, "share of steps that append 10,000 tokens or more"),
        number("human", "0.15", 0, 1, "share of steps that wait for a person, not for a tool"),
        number("compact", "0.0036", 0, 1, "chance a step drops 64,000 tokens or more, if it can"),
        whole("context", "1000000", 65536, 1e8, "longest context; reaching it compacts"),
        whole("shared", "8192", 0, 65536, "system prompt common to all, tokens"),
        whole("groups", "8", 1, 1e6, "projects, with a prompt of their own of the same size"),
        whole("block", "512", 1, 65536, "tokens of a block id")}});
  list.push_back(
      {"spec-tree",
       "another workload, decoded with speculative draft trees",
       "any of the above; acceptance as EAGLE-3 on gpt-oss-120b",
       {requests("5000"),
        word("base", {"chat-azure", "code-azure", "longchat-mooncake", "reason-r1"},
             "which workload"),
        word("mode", {"rollback", "reserve-tail", "tree-front"}, "how slots come and go"),
        whole("draft", "64", 1, 256, "draft slots a step"),
        number("accept", "0.53", 0, 0.999, "chance that the next draft token is accepted"),
        whole("cap", "8", 1, 256, "most accepted a step")}});
  list.push_back(
      {"abort-storm",
       "chat whose clients go away: some at random, and many at once",
       "Azure LLM 2023 conversation; the abort rates are a sweep, none is published",
       {requests("19366"), rate("5.5"),
        number("abort", "0.05", 0, 1, "share that aborts at a uniform point of its output"),
        number("storm", "0.5", 0, 1, "share of the requests under way that the storm ends"),
        number("storm_at", "0.5", 0, 1, "when it comes, as a share of the whole time")}});
  list.push_back({"steady-fill",
                  "a backlog of even requests that holds the pool at one occupancy",
                  "synthetic: isolates the placement policy",
                  {requests("20000"), pool("262144"),
                   number("occupancy", "0.9", 0.05, 1, "live share of the pool to aim at"),
                   whole("input", "512", 1, 1e6, "mean prompt tokens"),
                   whole("output", "256", 1, 1e6, "mean output tokens"),
                   number("spread", "0.5", 0, 1, "lengths are even within mean * (1 +- spread)")}});
  list.push_back({"adversary",
                  "holes on purpose: every second request stays, and sizes may double",
                  "after Robson's worst cases (J. ACM 1971, 1974)",
                  {requests("20000"), pool("65536"),
                   word("shape", {"doubling", "alternate"},
                        "doubling: sizes double each phase; alternate: one size"),
                   whole("unit", "16", 1, 65536, "tokens of the smallest request"),
                   whole("phases", "6", 1, 20, "sizes before it begins again"),
                   whole("hold", "256", 2, 1e6, "output tokens of the requests that stay")}});
  return list;
}

struct NamedGenerator {
  std::string_view name;
  Generator generate;
};
constexpr std::array kGenerators{
    NamedGenerator{"chat-azure", chat_azure},
    NamedGenerator{"code-azure", code_azure},
    NamedGenerator{"longchat-mooncake", longchat_mooncake},
    NamedGenerator{"reason-r1", reason_r1},
    NamedGenerator{"batch-api", batch_api},
    NamedGenerator{"agent-coding", agent_coding},
    NamedGenerator{"spec-tree", spec_tree},
    NamedGenerator{"abort-storm", abort_storm},
    NamedGenerator{"steady-fill", steady_fill},
    NamedGenerator{"adversary", adversary},
};

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

const WorkloadInfo& find_workload(std::string_view name) {
  std::vector<std::string> names;
  for (const WorkloadInfo& info : list_workloads()) {
    if (info.name == name) return info;
    names.push_back(info.name);
  }
  throw InvalidArgument(
      fmt::format("no workload is called {}; there are: {}", in_quotes(name), joined(names)));
}

const WorkloadParameter& find_parameter(const WorkloadInfo& info, std::string_view name) {
  std::vector<std::string> names;
  for (const WorkloadParameter& parameter : info.parameters) {
    if (parameter.name == name) return parameter;
    names.push_back(parameter.name);
  }
  throw InvalidArgument(fmt::format("workload {} has no parameter {}; it has: {}", info.name,
                                    in_quotes(name), joined(names)));
}

double to_number(std::string_view text) {
  double parsed = 0.0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, parsed);
  return code == std::errc{} && rest == end ? parsed : std::nan("");
}

void check_value(const WorkloadInfo& info, const WorkloadParameter& parameter,
                 std::string_view text) {
  const auto place = [&] {
    return fmt::format("parameter {} of workload {} is {}, but must be", parameter.name, info.name,
                       in_quotes(text));
  };
  if (!parameter.choices.empty()) {
    const auto& choices = parameter.choices;
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      throw InvalidArgument(fmt::format("{} one of: {}", place(), joined(choices)));
    }
    return;
  }
  const double parsed = to_number(text);
  if (!(parsed >= parameter.min && parsed <= parameter.max)) {
    throw InvalidArgument(
        fmt::format("{} a number within {} and {}", place(), parameter.min, parameter.max));
  }
  if (parameter.integer && parsed != std::floor(parsed)) {
    throw InvalidArgument(fmt::format("{} a whole number", place()));
  }
}

}  // namespace

Parameters::Parameters(const WorkloadInfo& info, std::string_view text) : workload_(info.name) {
  std::vector<std::string> seen;
  for (const WorkloadParameter& parameter : info.parameters) {
    values_.emplace_back(parameter.name, parameter.default_value);
  }
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view assignment = text.substr(0, comma);
    const std::string name(assignment.substr(0, assignment.find('=')));
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      throw InvalidArgument(
          fmt::format("parameter {} of workload {} is set twice", in_quotes(name), info.name));
    }
    seen.push_back(name);
    set(info, assignment);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
}

void Parameters::set(const WorkloadInfo& info, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    throw InvalidArgument(
        fmt::format("workload {}: {} is no key=value", info.name, in_quotes(assignment)));
  }
  const WorkloadParameter& parameter = find_parameter(info, assignment.substr(0, equals));
  const std::string_view text = assignment.substr(equals + 1);
  check_value(info, parameter, text);
  for (auto& [name, held] : values_) {
    if (name != parameter.name) continue;
    held = parameter.choices.empty() ? fmt::format("{}", to_number(text)) : std::string(text);
    if (parameter.integer) held = fmt::format("{:.0f}", to_number(text));
  }
}

const std::string& Parameters::value(std::string_view name) const {
  for (const auto& [known, held] : values_) {
    if (known == name) return held;
  }
  PACKSTONE_ASSERT(false && "the workload has no such parameter");
  return workload_;
}

double Parameters::number(std::string_view name) const {
  return to_number(value(name));
}
std::int64_t Parameters::whole(std::string_view name) const {
  return std::llround(number(name));
}
const std::string& Parameters::word(std::string_view name) const {
  return value(name);
}

std::string Parameters::canonical() const {
  std::string text = workload_;
  char separator = ':';
  for (const auto& [name, held] : values_) {
    text += fmt::format("{}{}={}", separator, name, held);
    separator = ',';
  }
  return text;
}

const std::vector<WorkloadInfo>& list_workloads() {
  static const std::vector<WorkloadInfo> list = make_list();
  return list;
}

Workload make_workload(std::string_view spec, std::uint64_t seed) {
  const std::size_t colon = spec.find(':');
  const WorkloadInfo& info = find_workload(spec.substr(0, colon));
  const Parameters parameters(
      info, colon == std::string_view::npos ? std::string_view{} : spec.substr(colon + 1));
  for (const NamedGenerator& known : kGenerators) {
    if (known.name != info.name) continue;
    Workload workload = known.generate(parameters, seed);
    workload.name = info.name;
    workload.spec = parameters.canonical();
    normalize(workload.list);
    return workload;
  }
  PACKSTONE_ASSERT(false && "a listed workload has no generator");
  return {};
}

}  // namespace packstone::sim
