// SPDX-License-Identifier: Apache-2.0
#include <packstone/metrics.hpp>

#include <algorithm>

namespace packstone {

namespace {

bool is_name(std::string_view name, bool colons) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::ranges::all_of(name, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (colons && c == ':');
  });
}

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) result += '\\';
    result += c;
  }
  return result;
}

Metrics::Labels with(Metrics::Labels labels, std::string name, std::string value) {
  labels.emplace_back(std::move(name), std::move(value));
  return labels;
}

std::int64_t longest_free_run(const FreeSet& set) {
  std::int64_t longest = 0;
  std::int64_t run = 0;
  for (std::int32_t page = 1; page < set.pages(); ++page) {
    run = set.state(PageId{page}) == PageState::free ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

void PlannerCounters::add(const MovePlan& plan) {
  plans += 1;
  plans_empty += plan.moves.empty() ? 1 : 0;
  moves += static_cast<std::int64_t>(plan.moves.size());
  patches += static_cast<std::int64_t>(plan.patches.size());
  runs_removed += plan.forecast.runs_before - plan.forecast.runs_after;
  granules_emptied += plan.forecast.granules_emptied;
  bytes += plan.forecast.bytes;
}

void Metrics::sample(std::string_view kind, std::string_view name, std::string_view help,
                     std::int64_t value, const Labels& labels) {
  if (!is_name(name, true)) throw InvalidArgument("metric name \"" + std::string(name) + "\"");
  std::string line(name);
  const char* separator = "{";
  for (const auto& [label, text] : labels) {
    if (!is_name(label, false)) throw InvalidArgument("metric label \"" + label + "\"");
    line += separator + label + "=\"" + escaped(text, true) + "\"";
    separator = ",";
  }
  if (!labels.empty()) line += "}";
  line += " " + std::to_string(value);
  auto family = std::ranges::find(families_, name, &Family::name);
  if (family == families_.end()) {
    families_.push_back({.name = std::string(name),
                         .help = escaped(help, false),
                         .kind = std::string(kind),
                         .samples = {}});
    family = families_.end() - 1;
  }
  if (family->kind != kind) {
    throw InvalidArgument("metric " + family->name + " is a " + family->kind);
  }
  family->samples.push_back(std::move(line));
}

void Metrics::counter(std::string_view name, std::string_view help, std::int64_t value,
                      const Labels& labels) {
  sample("counter", name, help, value, labels);
}

void Metrics::gauge(std::string_view name, std::string_view help, std::int64_t value,
                    const Labels& labels) {
  sample("gauge", name, help, value, labels);
}

void Metrics::add(const KvManager& manager, const Labels& labels) {
  const FreeSet& set = manager.allocator().set();
  for (const PageState state :
       {PageState::free, PageState::reserved, PageState::live, PageState::retired}) {
    gauge("packstone_pages", "Pages by state.", set.count(state),
          with(labels, "state", to_string(state)));
  }
  gauge("packstone_pages_pinned", "Live pages that a reader holds in place.", set.pinned_pages(),
        labels);
  gauge("packstone_pages_available", "Pages that can be allocated now.", manager.available_pages(),
        labels);
  gauge("packstone_free_run_longest_pages", "Longest run of consecutive free pages.",
        longest_free_run(set), labels);
  std::int64_t tokens = 0;
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (const SeqId seq : manager.live_sequences()) {
    tokens += manager.length(seq);
    std::int32_t previous = -2;
    for (const PageId page : manager.pages(seq)) {
      pages += 1;
      runs += index_of(page) != previous + 1 ? 1 : 0;
      previous = index_of(page);
    }
  }
  gauge("packstone_sequences", "Live sequences.", manager.sequences(), labels);
  gauge("packstone_tokens", "Tokens of live sequences, shared ones counted in each.", tokens,
        labels);
  gauge("packstone_table_pages", "Table entries of live sequences.", pages, labels);
  gauge("packstone_table_runs", "Runs of consecutive pages in the tables: descriptors a layer.",
        runs, labels);
  const KvCounters& counters = manager.counters();
  counter("packstone_sequences_created_total", "Sequences created.", counters.sequences_created,
          labels);
  counter("packstone_sequences_finished_total", "Sequences finished.", counters.sequences_finished,
          labels);
  counter("packstone_forks_total", "Sequences forked.", counters.forks, labels);
  counter("packstone_pages_allocated_total", "Pages given to tables.", counters.pages_allocated,
          labels);
  counter("packstone_pages_released_total", "Pages that tables set free.", counters.pages_released,
          labels);
  counter("packstone_pages_moved_total", "Pages moved by applied plans.", counters.pages_moved,
          labels);
  counter("packstone_copies_on_write_total", "Shared last pages copied for a writer.",
          counters.copies_on_write, labels);
  counter("packstone_shortages_total", "Calls refused for want of pages or sequences.",
          counters.shortages, labels);
}

void Metrics::add(const PrefixCache& cache, const Labels& labels) {
  gauge("packstone_prefix_pages", "Pages that the prefix cache holds.", cache.pages(), labels);
  gauge("packstone_prefix_pages_evictable", "Cached pages that are not locked.",
        cache.evictable_pages(), labels);
  const PrefixCounters& counters = cache.counters();
  counter("packstone_prefix_lookups_total", "Prefixes looked up.", counters.lookups, labels);
  counter("packstone_prefix_lookups_hit_total", "Lookups that found at least a page.",
          counters.lookups_hit, labels);
  counter("packstone_prefix_tokens_asked_total", "Tokens looked up.", counters.tokens_asked,
          labels);
  counter("packstone_prefix_tokens_hit_total", "Tokens found.", counters.tokens_hit, labels);
  counter("packstone_prefix_pages_stored_total", "Pages stored.", counters.pages_stored, labels);
  counter("packstone_prefix_pages_evicted_total", "Pages evicted.", counters.pages_evicted, labels);
  counter("packstone_prefix_pages_evicted_early_total",
          "Pages evicted before their turn, for their address.", counters.pages_evicted_early,
          labels);
  counter("packstone_prefix_hits_lost_total", "Pages missed because they were evicted early.",
          counters.hits_lost_to_addresses, labels);
  counter("packstone_prefix_collisions_total", "Equal hashes of different prefixes.",
          counters.collisions, labels);
}

void Metrics::add(const PlannerCounters& planner, const Labels& labels) {
  counter("packstone_plans_total", "Plans made.", planner.plans, labels);
  counter("packstone_plans_empty_total", "Plans without a move.", planner.plans_empty, labels);
  counter("packstone_plan_moves_total", "Pages that plans moved.", planner.moves, labels);
  counter("packstone_plan_bytes_total", "Bytes that plans moved.", planner.bytes, labels);
  counter("packstone_plan_patches_total", "Table entries that plans rewrote.", planner.patches,
          labels);
  counter("packstone_plan_granules_emptied_total", "Granules of memory that plans emptied.",
          planner.granules_emptied, labels);
  gauge("packstone_plan_runs_removed", "Runs fewer because of all plans.", planner.runs_removed,
        labels);
}

std::string Metrics::text() const {
  std::string result;
  for (const Family& family : families_) {
    result += "# HELP " + family.name + " " + family.help + "\n";
    result += "# TYPE " + family.name + " " + family.kind + "\n";
    for (const std::string& line : family.samples) result += line + "\n";
  }
  return result;
}

}  // namespace packstone
