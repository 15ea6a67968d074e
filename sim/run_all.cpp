// SPDX-License-Identifier: Apache-2.0
#include <sim/run.hpp>

#include <algorithm>
#include <exception>
#include <thread>

namespace packstone::sim {

std::int64_t total_tokens(const RequestList& list) {
  std::int64_t sum = 0;
  for (const Request& request : list.requests) {
    sum += request.prompt_tokens;
    sum += request.abort_after_tokens < 0
               ? request.output_tokens
               : std::min(request.output_tokens, request.abort_after_tokens);
  }
  return sum;
}

std::vector<RunResult> run_all(const RequestList& list, const std::vector<RunOptions>& options,
                               int threads, ProgressCounters* progress) {
  std::vector<RunResult> results(options.size());
  std::vector<std::exception_ptr> errors(options.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < options.size(); i = next.fetch_add(1)) {
      try {
        results[i] = run(list, options[i], progress);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    const auto count = std::min(options.size(), static_cast<std::size_t>(std::max(threads, 1)));
    for (std::size_t i = 1; i < count; ++i) workers.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

}  // namespace packstone::sim
