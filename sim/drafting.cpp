// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/drafting.hpp>

#include <algorithm>
#include <string>

namespace packstone::sim {

namespace {

::packstone::SpeculationMode library_mode(SpeculationMode mode) {
  switch (mode) {
    case SpeculationMode::rollback:
      return ::packstone::SpeculationMode::rollback;
    case SpeculationMode::reserve_tail:
      return ::packstone::SpeculationMode::reserve_tail;
    case SpeculationMode::tree_front:
      return ::packstone::SpeculationMode::tree_front;
    case SpeculationMode::none:
      break;
  }
  throw InvalidArgument("no mode of speculation");
}

DraftTree binary_tree(std::int32_t nodes) {
  if (nodes < 1 || nodes > DraftTree::kNodesMax) {
    throw InvalidArgument("a draft of " + std::to_string(nodes) + " nodes is not between 1 and " +
                          std::to_string(DraftTree::kNodesMax));
  }
  std::vector<std::int32_t> parents;
  parents.reserve(static_cast<std::size_t>(nodes));
  for (std::int32_t node = 0; node < nodes; ++node) {
    parents.push_back(node == 0 ? -1 : (node - 1) / 2);
  }
  return DraftTree(parents);
}

}  // namespace

Drafting::Drafting(KvManager& kv, const DraftingOptions& options)
    : options_(options),
      tree_(binary_tree(options.nodes)),
      speculation_(kv, {.mode = library_mode(options.mode)}),
      random_(Prng::stream(options.seed, "acceptance")) {
  if (!(options.acceptance >= 0.0 && options.acceptance <= 1.0)) {
    throw InvalidArgument("an acceptance of " + std::to_string(options.acceptance) +
                          " is not in [0, 1]");
  }
}

Status Drafting::reserve(std::span<const SeqId> batch) {
  requests_.clear();
  for (const SeqId seq : batch) requests_.push_back({.seq = seq, .nodes = options_.nodes});
  return speculation_.reserve(requests_);
}

void Drafting::commit(std::span<const SeqId> batch, std::span<const TokenCount> left,
                      std::vector<TokenCount>& grown) {
  paths_.resize(std::max(paths_.size(), batch.size()));
  grown.clear();
  std::vector<DraftAcceptance> accepted;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    // The draws do not depend on what is left, so that a preemption does not shift later ones.
    std::vector<std::int32_t>& path = paths_[i];
    path.assign(1, 0);
    const std::int64_t more = random_.geometric(options_.acceptance, options_.accepted_max);
    for (std::int64_t k = 0; k < more; ++k) {
      const std::int32_t child = 2 * path.back() + 1 + static_cast<std::int32_t>(random_.below(2));
      if (child >= options_.nodes) break;
      path.push_back(child);
    }
    if (static_cast<TokenCount>(path.size()) > left[i]) {
      path.resize(static_cast<std::size_t>(left[i]));
    }
    grown.push_back(static_cast<TokenCount>(path.size()));
    counters_.drafted += options_.nodes;
    counters_.accepted += grown.back();
    accepted.push_back({.seq = batch[i], .tree = &tree_, .path = path});
  }
  for (const DraftCommit& commit : speculation_.commit(accepted)) {
    counters_.row_moves += static_cast<std::int64_t>(commit.moves.size());
  }
}

}  // namespace packstone::sim
