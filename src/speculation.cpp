// SPDX-License-Identifier: Apache-2.0
#include <packstone/speculation.hpp>

#include <algorithm>
#include <string>

namespace packstone {

const char* to_string(SpeculationMode mode) {
  switch (mode) {
    case SpeculationMode::rollback:
      return "rollback";
    case SpeculationMode::reserve_tail:
      return "reserve-tail";
    case SpeculationMode::tree_front:
      return "tree-front";
  }
  return "unknown mode";
}

namespace {

std::string name_of(SeqId seq) {
  return "sequence " + std::to_string(seq.index) + "." + std::to_string(seq.generation);
}

template <typename Item>
void require_distinct(std::span<const Item> batch) {
  std::vector<SeqId> seqs;
  for (const Item& each : batch) seqs.push_back(each.seq);
  std::ranges::sort(seqs);
  const auto twice = std::ranges::adjacent_find(seqs);
  if (twice != seqs.end()) throw InvalidArgument(name_of(*twice) + " stands twice in the batch");
}

}  // namespace

Speculation::Speculation(KvManager& manager, const SpeculationOptions& options)
    : manager_(manager), options_(options) {
  if (options.row_pages_max < 0 || options.tokens_max < 0) {
    throw InvalidArgument("row_pages_max = " + std::to_string(options.row_pages_max) +
                          ", tokens_max = " + std::to_string(options.tokens_max));
  }
}

TokenCount Speculation::wanted(const DraftRequest& request) const {
  const TokenCount length = manager_.length(request.seq);
  const std::string what = std::to_string(request.nodes) + " drafts of " + name_of(request.seq);
  if (request.nodes < 0 || request.nodes > DraftTree::kNodesMax) throw InvalidArgument(what);
  if (request.nodes > options_.tokens_max - length) {
    throw InvalidArgument(what + " behind " + std::to_string(length) + " tokens pass the " +
                          std::to_string(options_.tokens_max) + " of the longest context");
  }
  // A step of reserve_tail leaves room for the next one, so that most steps allocate nothing.
  TokenCount drafts = request.nodes;
  if (options_.mode == SpeculationMode::reserve_tail) {
    drafts = std::min(2 * drafts, options_.tokens_max - length);
  }
  const std::int64_t page = manager_.page_size();
  if (pages_for(length + request.nodes, page) > options_.row_pages_max) {
    throw InvalidArgument(what + " behind " + std::to_string(length) + " tokens take " +
                          std::to_string(pages_for(length + request.nodes, page)) +
                          " pages, a table row has " + std::to_string(options_.row_pages_max));
  }
  if (pages_for(length + drafts, page) > options_.row_pages_max) return request.nodes;
  // Room that is there is not asked for twice.
  const TokenCount room = manager_.capacity(request.seq) - length;
  return room >= request.nodes ? request.nodes : drafts;
}

PageCount Speculation::pages_needed(std::span<const DraftRequest> batch,
                                    std::span<const TokenCount> drafts) const {
  std::vector<Growth> growths;
  growths.reserve(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    growths.push_back({.seq = batch[i].seq, .length = manager_.length(batch[i].seq) + drafts[i]});
  }
  return manager_.pages_needed(growths);
}

std::int64_t Speculation::tail_references(PageId page) const {
  const FreeSet& set = manager_.allocator().set();
  return set.references(page) - set.pins(page);
}

Status Speculation::reserve(std::span<const DraftRequest> batch) {
  require_distinct(batch);
  std::vector<TokenCount> drafts;
  drafts.reserve(batch.size());
  for (const DraftRequest& request : batch) drafts.push_back(wanted(request));
  const PageCount available = manager_.available_pages();
  if (pages_needed(batch, drafts) > available) {
    // Room ahead is welcome, not needed.
    for (std::size_t i = 0; i < batch.size(); ++i) drafts[i] = batch[i].nodes;
    if (pages_needed(batch, drafts) > available) return Status::out_of_pages;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Status status = manager_.reserve(batch[i].seq, drafts[i]);
    PACKSTONE_ASSERT(status == Status::ok);
  }
  return Status::ok;
}

Status Speculation::reserve(SeqId seq, std::int64_t nodes) {
  const DraftRequest request{.seq = seq, .nodes = nodes};
  return reserve({&request, 1});
}

SlotId Speculation::slot(SeqId seq, std::int64_t node) const {
  if (node < 0) throw InvalidArgument("draft " + std::to_string(node) + " of " + name_of(seq));
  return manager_.slot(seq, manager_.length(seq) + node);
}

void Speculation::require_commit(const DraftAcceptance& acceptance) const {
  const SeqId seq = acceptance.seq;
  if (acceptance.tree == nullptr) throw InvalidArgument("no tree for " + name_of(seq));
  acceptance.tree->require_path(acceptance.path);
  const TokenCount length = manager_.length(seq);
  if (acceptance.tree->nodes() > manager_.capacity(seq) - length) {
    throw InvalidArgument("a tree of " + std::to_string(acceptance.tree->nodes()) + " nodes for " +
                          name_of(seq) + ", which has room for " +
                          std::to_string(manager_.capacity(seq) - length));
  }
  if (length % manager_.page_size() == 0 || acceptance.path.empty()) return;
  const PageId last = manager_.pages(seq)[static_cast<std::size_t>(length / manager_.page_size())];
  if (tail_references(last) > 1) {
    throw InvalidArgument("the tail of " + name_of(seq) + " was shared after its drafts were " +
                          "reserved");
  }
}

DraftCommit Speculation::commit_one(const DraftAcceptance& acceptance) {
  const SeqId seq = acceptance.seq;
  const TokenCount length = manager_.length(seq);
  const auto accepted = static_cast<TokenCount>(acceptance.path.size());
  const auto first = static_cast<std::size_t>(length / manager_.page_size());
  const auto drafted = manager_.pages(seq).subspan(std::min(first, manager_.pages(seq).size()));
  const std::vector<PageId> before(drafted.begin(), drafted.end());
  DraftCommit result;
  if (options_.mode == SpeculationMode::rollback && manager_.page_size() == 1) {
    std::vector<std::int64_t> kept;
    for (const std::int32_t node : acceptance.path) kept.push_back(length + node);
    manager_.keep(seq, kept);
    manager_.commit(seq, accepted);
  } else {
    // Nodes ascend along a path and the k-th is at least k, so each row moves down, past no row
    // that has yet to move.
    for (TokenCount k = 0; k < accepted; ++k) {
      const std::int32_t node = acceptance.path[static_cast<std::size_t>(k)];
      if (node == k) continue;
      result.moves.push_back(
          {.from = manager_.slot(seq, length + node), .to = manager_.slot(seq, length + k)});
    }
    manager_.commit(seq, accepted);
    if (options_.mode != SpeculationMode::reserve_tail) manager_.trim(seq);
  }
  const auto left = manager_.pages(seq).subspan(std::min(first, manager_.pages(seq).size()));
  std::vector<PageId> now(left.begin(), left.end());
  std::ranges::sort(now);
  for (const PageId page : before) {
    if (!std::ranges::binary_search(now, page)) result.released.push_back(page);
  }
  result.length = manager_.length(seq);
  if (result.length > 0) result.tail = manager_.slot(seq, result.length - 1);
  return result;
}

std::vector<DraftCommit> Speculation::commit(std::span<const DraftAcceptance> batch) {
  require_distinct(batch);
  for (const DraftAcceptance& acceptance : batch) require_commit(acceptance);
  std::vector<DraftCommit> result;
  result.reserve(batch.size());
  for (const DraftAcceptance& acceptance : batch) result.push_back(commit_one(acceptance));
  return result;
}

DraftCommit Speculation::commit(SeqId seq, const DraftTree& tree,
                                std::span<const std::int32_t> path) {
  const DraftAcceptance acceptance{.seq = seq, .tree = &tree, .path = path};
  return std::move(commit({&acceptance, 1}).front());
}

}  // namespace packstone
