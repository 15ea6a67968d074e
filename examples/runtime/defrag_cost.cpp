// SPDX-License-Identifier: Apache-2.0
#include "defrag_cost.hpp"

#include "workload.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <vector>

namespace runtime {
namespace {

struct Serving {
  std::vector<std::vector<Token>> tokens;
  double rate{0};  // tokens a second
  ServerCounters counters;
  std::int64_t pages_moved{0};
  std::string where;
};

Serving serve_once(const Model& model, ServerOptions options, bool defrag, int requests) {
  options.defrag = defrag;
  const auto backend = make_backend(shape_of(model, options), model.scale());
  Server server(model, *backend, options);
  const std::vector<Request> asked = make_requests(requests, model.config().vocabulary, 1);
  const auto begin = std::chrono::steady_clock::now();
  Serving result;
  result.tokens = server.serve(asked);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.counters = server.counters();
  result.rate = static_cast<double>(result.counters.tokens_generated) / seconds;
  result.pages_moved = server.planner().moves;
  result.where = backend->name();
  return result;
}

/// Median, least and most.
std::string spread(std::vector<double> values, const char* format) {
  std::ranges::sort(values);
  const double numbers[] = {values[values.size() / 2], values.front(), values.back()};
  const char* const names[] = {"median", "least", "most"};
  std::string text = "{";
  for (int i = 0; i < 3; ++i) {
    char number[64];
    (void)std::snprintf(number, sizeof number, format, numbers[i]);
    text += std::string(i > 0 ? ", \"" : "\"") + names[i] + "\": " + number;
  }
  return text + "}";
}

std::string member(const char* name, const std::string& value) {
  return std::string(", \"") + name + "\": " + value;
}

/// Microseconds of a step, part by part.
std::string step_parts(const ServerCounters& c) {
  const auto part = [&](const char* name, double seconds) {
    char text[96];
    (void)std::snprintf(text, sizeof text, "\"%s\": %.1f", name,
                        1e6 * seconds / static_cast<double>(c.steps));
    return std::string(text);
  };
  return "{" + part("schedule", c.seconds.schedule) + ", " + part("model", c.seconds.model) + ", " +
         part("verify", c.seconds.verify) + ", " + part("commit", c.seconds.commit) + ", " +
         part("defrag", c.seconds.defrag) + "}";
}

}  // namespace

std::string measure_defrag_cost(const Model& model, const DefragCostOptions& options) {
  std::vector<double> with;
  std::vector<double> without;
  std::vector<double> ratios;
  Serving on;
  Serving off;
  for (int round = 0; round <= options.rounds; ++round) {
    // In turn, so that neither kind is always the first.
    for (int i = 0; i < 2; ++i) {
      const bool defrag = (round + i) % 2 == 0;
      (defrag ? on : off) = serve_once(model, options.server, defrag, options.requests);
    }
    if (on.tokens != off.tokens) throw std::runtime_error("defragmentation changed a token");
    if (round == 0) continue;
    with.push_back(on.rate);
    without.push_back(off.rate);
    ratios.push_back(on.rate / off.rate);
  }
  const std::string quote = "\"";
  return std::string("{\"what\": \"tokens a second with defragmentation and without\"") +
         member("where", quote + on.where + quote) +
         member("placement", quote + options.server.policy + quote) +
         member("page_size", std::to_string(options.server.page_size)) +
         member("pages", std::to_string(options.server.pages)) +
         member("batch", std::to_string(options.server.batch_max)) +
         member("defrag_every_steps", std::to_string(options.server.defrag_every)) +
         member("defrag_moves_max", std::to_string(options.server.defrag_moves)) +
         member("requests", std::to_string(options.requests)) +
         member("rounds", std::to_string(options.rounds)) +
         member("tokens", std::to_string(on.counters.tokens_generated)) +
         member("steps", std::to_string(on.counters.steps)) +
         member("pages_moved", std::to_string(on.pages_moved)) +
         member("tokens_per_s_with", spread(with, "%.0f")) +
         member("tokens_per_s_without", spread(without, "%.0f")) +
         member("with_by_without", spread(ratios, "%.4f")) +
         member("step_us_with", step_parts(on.counters)) +
         member("step_us_without", step_parts(off.counters)) + "}";
}

}  // namespace runtime
