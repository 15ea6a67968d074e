// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/trace_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

namespace packstone::sim {
namespace {

constexpr std::int64_t kFirstNamedSession = std::int64_t{1} << 62;
constexpr std::int64_t kTimeMax = std::int64_t{1} << 62;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Groups of rounds of one session, each in order.
std::vector<std::vector<std::size_t>> by_session(const std::vector<SessionRounds::Round>& rounds) {
  std::unordered_map<std::int64_t, std::size_t> group_of;
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    const auto [place, is_new] = group_of.try_emplace(rounds[i].session, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(i);
  }
  for (auto& group : groups) {
    std::stable_sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      return rounds[a].index < rounds[b].index;
    });
  }
  return groups;
}

std::int64_t think_between(const SessionRounds::Round& previous, const SessionRounds::Round& next) {
  if (previous.end_ns >= 0 && next.begin_ns >= 0) {
    return std::max<std::int64_t>(0, next.begin_ns - previous.end_ns);
  }
  return previous.wait_after_ns;
}

}  // namespace

TraceFormat detect_format(std::string_view line) {
  if (line.front() == '{') {
    // Told by its keys as text, so that a first row with a broken number is still told.
    if (contains(line, "\"input_tokens_total\"") || contains(line, "\"round_index\"")) {
      return TraceFormat::tracelab_jsonl;
    }
    if (contains(line, "\"chat_id\"") || contains(line, "\"parent_chat_id\"")) {
      return TraceFormat::bailian;
    }
    const bool mooncake = contains(line, "\"timestamp\"") || contains(line, "\"hash_ids\"") ||
                          contains(line, "\"input_length\"");
    return mooncake ? TraceFormat::mooncake : TraceFormat::automatic;
  }
  if (contains(line, "ContextTokens")) return TraceFormat::azure;
  if (contains(line, "Request tokens")) return TraceFormat::burstgpt;
  if (contains(line, "round_idx") && contains(line, "prefix_len")) {
    return TraceFormat::tracelab_csv;
  }
  if (line.substr(0, 22) == "client,requests_total,") return TraceFormat::servegen;
  return TraceFormat::automatic;
}

void split_csv(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  while (true) {
    std::size_t end = line.find(',');
    std::string_view field = line.substr(0, end);
    if (!line.empty() && line.front() == '"') {
      const std::size_t close = line.find('"', 1);
      if (close != std::string_view::npos) {
        field = line.substr(1, close - 1);
        end = line.find(',', close);
      }
    }
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
    fields.push_back(field);
    if (end == std::string_view::npos) return;
    line.remove_prefix(end + 1);
  }
}

RowFault check_lengths(const Request& request) {
  if (request.prompt_tokens > 0) return {};
  if (request.output_tokens == 0)
    return {"empty_request", "the request has no input and no output"};
  return {"zero_input", "the input length is 0, but there is output"};
}

bool always_dropped(const RowFault& fault) {
  return std::strcmp(fault.reason, "empty_request") == 0;
}

std::int64_t SessionNames::number_of(std::string_view name) {
  std::int64_t number = 0;
  const bool canonical = name == "0" || (!name.empty() && name.front() != '0');
  if (canonical && !parse_whole(name, "session", kFirstNamedSession - 1, number)) return number;
  const auto next = kFirstNamedSession + static_cast<std::int64_t>(numbers_.size());
  return numbers_.try_emplace(std::string(name), next).first->second;
}

std::string SessionRounds::apply(RequestList& list, const TraceOptions& options) const {
  const std::int64_t block = options.block_tokens;
  std::uint64_t next_id = 0;
  std::vector<std::size_t> order;
  order.reserve(rounds_.size());
  std::vector<std::uint64_t> chain;
  for (const auto& group : by_session(rounds_)) {
    chain.clear();
    for (std::size_t turn = 0; turn < group.size(); ++turn) {
      Request& request = list.requests[group[turn]];
      const Round& round = rounds_[group[turn]];
      if (turn > 0) {
        const Request& previous = list.requests[group[turn - 1]];
        request.think_ns = think_between(rounds_[group[turn - 1]], round);
        request.arrival_ns = previous.arrival_ns + std::min(request.think_ns, kTimeMax);
        if (request.arrival_ns > kTimeMax)
          return "the wait times of a session add up past 146 years";
      }
      const auto shared = static_cast<std::size_t>(round.prefix_tokens / block);
      chain.resize(std::min(chain.size(), shared));
      const auto blocks = static_cast<std::size_t>((request.prompt_tokens + block - 1) / block);
      const auto held = static_cast<std::int64_t>(list.block_ids.size());
      if (held + static_cast<std::int64_t>(blocks) > options.limits.block_ids) {
        return fmt::format("needs more than {} block ids of {} tokens", options.limits.block_ids,
                           block);
      }
      while (chain.size() < blocks) chain.push_back(next_id++);
      request.first_block = held;
      request.block_count = static_cast<std::int32_t>(blocks);
      list.block_ids.insert(list.block_ids.end(), chain.begin(), chain.end());
      order.push_back(group[turn]);
    }
  }
  // Sessions one after another: the stable sort by arrival then keeps the turns of each in order.
  std::vector<Request> ordered;
  ordered.reserve(order.size());
  for (const std::size_t i : order) ordered.push_back(list.requests[i]);
  list.requests = std::move(ordered);
  return {};
}

}  // namespace packstone::sim
