// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <packstone/metrics.hpp>

namespace runtime {
namespace {

std::int64_t microseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e6);
}

}  // namespace

std::string prometheus_text(const Server& server) {
  const ServerCounters& c = server.counters();
  packstone::Metrics metrics;
  metrics.add(server.manager());
  metrics.add(server.prefixes());
  metrics.add(server.planner());
  metrics.counter("runtime_steps_total", "Steps of the batch.", c.steps);
  metrics.counter("runtime_tokens_generated_total", "Tokens given out.", c.tokens_generated);
  metrics.counter("runtime_tokens_computed_total", "Tokens that went through the model.",
                  c.tokens_computed);
  metrics.counter("runtime_draft_tokens_total", "Tokens guessed.", c.drafts);
  metrics.counter("runtime_draft_tokens_accepted_total", "Guessed tokens accepted.",
                  c.drafts_accepted);
  metrics.counter("runtime_draft_rows_moved_total", "Rows moved by commits.", c.rows_moved);
  metrics.counter("runtime_preemptions_total", "Sequences stopped to make room.", c.preemptions);
  const char* const name = "runtime_phase_microseconds_total";
  const char* const help = "Wall time of the steps by phase.";
  const auto phase = [&](const char* which, double seconds) {
    metrics.counter(name, help, microseconds(seconds), {{"phase", which}});
  };
  phase("schedule", c.seconds.schedule);
  phase("model", c.seconds.model);
  phase("verify", c.seconds.verify);
  phase("commit", c.seconds.commit);
  phase("defrag", c.seconds.defrag);
  return metrics.text();
}

}  // namespace runtime
