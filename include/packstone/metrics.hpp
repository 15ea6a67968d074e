// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Counters and gauges in the text form that a Prometheus server scrapes (exposition format 0.0.4).
///
///     packstone::Metrics metrics;
///     metrics.add(manager, {{"pool", "full"}});
///     metrics.add(cache, {{"pool", "full"}});
///     respond(metrics.text());
///
/// All samples of one name stand together under one HELP and one TYPE line, names in the order in
/// which they were first added. Counters only rise; gauges are the state at the time of `add`,
/// which costs O(pool + tables). Nothing is kept or counted for it in between.

#include <packstone/kv_manager.hpp>
#include <packstone/move_plan.hpp>
#include <packstone/prefix_cache.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace packstone {

/// Sums over the plans of a planner, for whoever applies them.
struct PlannerCounters {
  std::int64_t plans{0};
  std::int64_t plans_empty{0};
  std::int64_t moves{0};
  std::int64_t patches{0};
  std::int64_t runs_removed{0};  ///< may fall when moves for another objective tear runs
  std::int64_t granules_emptied{0};
  Bytes bytes{0};
  void add(const MovePlan& plan);
};

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// One sample. Throws InvalidArgument for a name or label that the format does not allow, or a
  /// name used before with another kind.
  void counter(std::string_view name, std::string_view help, std::int64_t value,
               const Labels& labels = {});
  void gauge(std::string_view name, std::string_view help, std::int64_t value,
             const Labels& labels = {});

  void add(const KvManager& manager, const Labels& labels = {});
  void add(const PrefixCache& cache, const Labels& labels = {});
  void add(const PlannerCounters& planner, const Labels& labels = {});

  [[nodiscard]] std::string text() const;

 private:
  struct Family {
    std::string name;
    std::string help;
    std::string kind;
    std::vector<std::string> samples;
  };
  void sample(std::string_view kind, std::string_view name, std::string_view help,
              std::int64_t value, const Labels& labels);
  std::vector<Family> families_;
};

}  // namespace packstone
