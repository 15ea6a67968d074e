// SPDX-License-Identifier: Apache-2.0
#include "address_placement.hpp"
#include "list_placement.hpp"
#include "run_placement.hpp"

#include <packstone/placement.hpp>

#include <array>
#include <string>

namespace packstone {

namespace {

constexpr std::array<std::string_view, 5> kNames = {"fifo", "lifo", "sorted", "lowest", "run"};

}  // namespace

void Placement::prepare(const BatchDemand& /*demand*/) {}

void Placement::end(StreamIndex /*stream*/) {}

std::span<const std::string_view> placement_names() {
  return kNames;
}

std::unique_ptr<Placement> make_placement(FreeSet& set, const PlacementOptions& options) {
  const std::string& name = options.policy;
  if (options.page_size < 1) {
    throw InvalidArgument("page_size = " + std::to_string(options.page_size) + " is below 1");
  }
  if (name == "fifo") {
    return std::make_unique<ListPlacement>(set, "fifo",
                                           options.page_size == 1
                                               ? ListPlacement::Giving::append
                                               : ListPlacement::Giving::prepend_sorted_unique);
  }
  if (name == "lifo") {
    return std::make_unique<ListPlacement>(set, "lifo", ListPlacement::Giving::push_each);
  }
  if (name == "sorted") return std::make_unique<SortedPlacement>(set, options.page_size);
  if (name == "lowest") return std::make_unique<LowestPlacement>(set);
  if (name == "run") return std::make_unique<RunPlacement>(set, options.page_size);
  std::string known;
  for (const std::string_view each : kNames) known += " " + std::string(each);
  throw InvalidArgument("unknown placement policy '" + name + "'; known:" + known);
}

}  // namespace packstone
