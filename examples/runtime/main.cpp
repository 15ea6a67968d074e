// SPDX-License-Identifier: Apache-2.0
// Serves made-up requests on the small runtime and compares every token with plain decoding.
#include "defrag_cost.hpp"
#include "reference.hpp"
#include "server.hpp"
#include "workload.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <string>

namespace {

struct Arguments {
  runtime::ServerOptions server;
  int requests{12};
  std::string metrics;
  bool compare{true};
  int defrag_rounds{0};
};

const char* const kUsage =
    "runtime_example [--requests N] [--pages N] [--page-size N] [--policy NAME]\n"
    "                [--batch N] [--no-speculation] [--no-defrag] [--no-sharing] [--no-compare]\n"
    "                [--defrag-every STEPS] [--metrics FILE]\n"
    "                [--defrag-cost ROUNDS]   measures both kinds in turn; one line of JSON\n";

// Nothing, or the exit status of a run that ends here.
std::optional<int> parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (name == "--requests") {
      arguments.requests = std::stoi(value());
    } else if (name == "--pages") {
      arguments.server.pages = std::stoll(value());
    } else if (name == "--page-size") {
      arguments.server.page_size = std::stoll(value());
    } else if (name == "--policy") {
      arguments.server.policy = value();
    } else if (name == "--metrics") {
      arguments.metrics = value();
    } else if (name == "--batch") {
      arguments.server.batch_max = std::stoi(value());
    } else if (name == "--defrag-every") {
      arguments.server.defrag_every = std::max(std::stoi(value()), 1);
    } else if (name == "--defrag-cost") {
      arguments.defrag_rounds = std::max(std::stoi(value()), 1);
    } else if (name == "--no-speculation") {
      arguments.server.speculation = false;
    } else if (name == "--no-defrag") {
      arguments.server.defrag = false;
    } else if (name == "--no-sharing") {
      arguments.server.share_prefixes = false;
    } else if (name == "--no-compare") {
      arguments.compare = false;
    } else {
      const bool asked = name == "--help" || name == "-h";
      std::fputs(kUsage, asked ? stdout : stderr);
      return asked ? 0 : 2;
    }
  }
  return std::nullopt;
}

int serve(const Arguments& arguments) {
  const runtime::Model model({});
  if (arguments.defrag_rounds > 0) {
    const std::string line =
        runtime::measure_defrag_cost(model, {.server = arguments.server,
                                             .requests = arguments.requests,
                                             .rounds = arguments.defrag_rounds});
    std::puts(line.c_str());
    return 0;
  }
  const auto backend = runtime::make_backend(shape_of(model, arguments.server), model.scale());
  runtime::Server server(model, *backend, arguments.server);
  const std::vector<runtime::Request> requests =
      runtime::make_requests(arguments.requests, model.config().vocabulary, 1);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::vector<runtime::Token>> results = server.serve(requests);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const runtime::ServerCounters& c = server.counters();
  std::printf("%s, page size %lld, placement %s\n", backend->name().c_str(),
              static_cast<long long>(arguments.server.page_size), arguments.server.policy.c_str());
  std::printf("%zu requests, %lld tokens in %lld steps: %.0f tokens/s (measured here)\n",
              requests.size(), static_cast<long long>(c.tokens_generated),
              static_cast<long long>(c.steps), static_cast<double>(c.tokens_generated) / seconds);
  std::printf("drafts %lld, accepted %lld; rows moved %lld; pages moved %lld; preempted %lld\n",
              static_cast<long long>(c.drafts), static_cast<long long>(c.drafts_accepted),
              static_cast<long long>(c.rows_moved), static_cast<long long>(server.planner().moves),
              static_cast<long long>(c.preemptions));
  std::printf("prompt tokens found in the cache: %lld of %lld\n",
              static_cast<long long>(server.prefixes().counters().tokens_hit),
              static_cast<long long>(server.prefixes().counters().tokens_asked));
  if (!arguments.metrics.empty()) std::ofstream(arguments.metrics) << prometheus_text(server);
  if (!arguments.compare) return 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (results[i] != runtime::decode_plainly(model, requests[i])) {
      std::printf("request %zu differs from plain decoding\n", i);
      return 1;
    }
  }
  std::puts("every token equals plain decoding");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Arguments arguments;
    if (const std::optional<int> status = parse(argc, argv, arguments)) return *status;
    return serve(arguments);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "runtime_example: %s\n", fault.what());
    return 1;
  }
}
