// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <sstream>
#include <string_view>

namespace runtime {
namespace {

class Text {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    out_ << "# HELP packstone_" << name << ' ' << help << "\n# TYPE packstone_" << name << ' '
         << type << '\n';
  }
  template <typename Value>
  void sample(std::string_view labels, Value value) {
    out_ << "packstone_" << name_;
    if (!labels.empty()) out_ << '{' << labels << '}';
    out_ << ' ' << value << '\n';
  }
  template <typename Value>
  void counter(std::string_view name, std::string_view help, Value value) {
    family(name, "counter", help);
    sample("", value);
  }
  [[nodiscard]] std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::string_view name_;
};

/// Runs of all tables: maximal stretches of neighbouring pages.
std::int64_t count_runs(const packstone::KvManager& manager) {
  std::int64_t runs = 0;
  for (const packstone::SeqId seq : manager.live_sequences()) {
    packstone::PageId before = packstone::kNoPage;
    for (const packstone::PageId page : manager.pages(seq)) {
      if (before == packstone::kNoPage || page != packstone::page_after(before)) runs += 1;
      before = page;
    }
  }
  return runs;
}

}  // namespace

std::string prometheus_text(const Server& server) {
  const packstone::KvManager& manager = server.manager();
  const packstone::FreeSet& set = manager.allocator().set();
  const packstone::KvCounters& kv = manager.counters();
  const packstone::PrefixCounters& prefix = server.prefixes().counters();
  const ServerCounters& c = server.counters();
  Text text;
  text.family("pages", "gauge", "Pages of the pool by state, the reserved page 0 not counted.");
  text.sample(R"(state="free")", set.count(packstone::PageState::free));
  text.sample(R"(state="reserved")", set.count(packstone::PageState::reserved));
  text.sample(R"(state="live")", set.count(packstone::PageState::live));
  text.sample(R"(state="retired")", set.count(packstone::PageState::retired));
  text.family("page_tokens", "gauge", "Tokens a page.");
  text.sample("", manager.page_size());
  text.family("sequences", "gauge", "Live sequences.");
  text.sample("", manager.sequences());
  text.family("runs", "gauge", "Stretches of neighbouring pages in all page tables.");
  text.sample("", count_runs(manager));
  text.family("prefix_pages", "gauge", "Pages in the prefix cache.");
  text.sample("", server.prefixes().pages());
  text.counter("pages_allocated_total", "Pages taken by sequences.", kv.pages_allocated);
  text.counter("pages_released_total", "Table entries given back.", kv.pages_released);
  text.counter("pages_moved_total", "Pages moved by defragmentation.", kv.pages_moved);
  text.counter("shortages_total", "Calls refused for want of pages or places.", kv.shortages);
  text.counter("prefix_tokens_asked_total", "Prompt tokens looked up.", prefix.tokens_asked);
  text.counter("prefix_tokens_hit_total", "Prompt tokens found in the cache.", prefix.tokens_hit);
  text.counter("prefix_pages_evicted_total", "Pages evicted.", prefix.pages_evicted);
  text.counter("steps_total", "Steps of the batch.", c.steps);
  text.counter("tokens_generated_total", "Tokens given out.", c.tokens_generated);
  text.counter("tokens_computed_total", "Tokens that went through the model.", c.tokens_computed);
  text.counter("draft_tokens_total", "Tokens guessed.", c.drafts);
  text.counter("draft_tokens_accepted_total", "Guessed tokens accepted.", c.drafts_accepted);
  text.counter("draft_rows_moved_total", "Rows moved by commits.", c.rows_moved);
  text.counter("preemptions_total", "Sequences stopped to make room.", c.preemptions);
  text.family("phase_seconds_total", "counter", "Wall time by phase of the step.");
  text.sample(R"(phase="model")", c.model_seconds);
  text.sample(R"(phase="commit")", c.commit_seconds);
  text.sample(R"(phase="defrag")", c.defrag_seconds);
  return text.text();
}

}  // namespace runtime
