// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"
#include "handles.hpp"

#include <packstone/speculation.hpp>

using namespace packstone;
using namespace packstone::c_api;

struct packstone_tree {
  DraftTree tree;
};

packstone_status packstone_tree_create(const int32_t* parents, size_t nodes, packstone_tree** out) {
  return guarded([&] {
    packstone_tree*& result = required(out, "out");
    result = new packstone_tree{DraftTree(array(parents, nodes, "parents"))};
    return PACKSTONE_OK;
  });
}

void packstone_tree_destroy(packstone_tree* tree) {
  delete tree;
}

packstone_status packstone_tree_positions(const packstone_tree* tree, int64_t prefix,
                                          int64_t* positions, size_t count) {
  return guarded([&]() -> packstone_status {
    const DraftTree& t = required(tree, "tree").tree;
    const auto nodes = static_cast<std::size_t>(t.nodes());
    if (count < nodes) return fail(PACKSTONE_BUFFER_TOO_SMALL, "positions is too small");
    t.positions(prefix, array(positions, nodes, "positions"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_tree_mask(const packstone_tree* tree, uint64_t* words, int64_t stride) {
  return guarded([&] {
    const DraftTree& t = required(tree, "tree").tree;
    if (stride < t.mask_words()) {
      throw InvalidArgument("stride = " + std::to_string(stride) + " words, a row takes " +
                            std::to_string(t.mask_words()));
    }
    const auto count = static_cast<std::size_t>(t.nodes()) * static_cast<std::size_t>(stride);
    t.ancestor_mask(array(words, count, "words"), stride);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_draft(packstone_manager* manager,
                                         const packstone_draft_request* batch, size_t count) {
  return guarded([&] {
    std::vector<DraftRequest> requests;
    for (const packstone_draft_request& each : array(batch, count, "batch")) {
      requests.push_back({.seq = seq_of(each.seq), .nodes = each.nodes});
    }
    return status_of(Speculation(required(manager, "manager").manager, {}).reserve(requests));
  });
}

packstone_status packstone_manager_draft_slot(const packstone_manager* manager, packstone_seq seq,
                                              int64_t node, int64_t* slot) {
  return guarded([&] {
    const KvManager& kv = required(manager, "manager").manager;
    const TokenCount length = kv.length(seq_of(seq));
    if (node < 0 || node >= kv.capacity(seq_of(seq)) - length) {
      throw InvalidArgument("draft node " + std::to_string(node) + " has no room");
    }
    required(slot, "slot") = kv.slot(seq_of(seq), length + node);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_accept(packstone_manager* manager, int32_t mode,
                                          packstone_seq seq, const packstone_tree* tree,
                                          const int32_t* path, size_t path_count,
                                          packstone_slot_move* moves, size_t capacity,
                                          size_t* count, packstone_draft_commit* out) {
  return guarded([&]() -> packstone_status {
    if (mode < PACKSTONE_ROLLBACK || mode > PACKSTONE_TREE_FRONT) {
      throw InvalidArgument("mode = " + std::to_string(mode));
    }
    // Everything about the results is tested first: the commit itself cannot be taken back.
    required(count, "count") = path_count;
    if (path_count > capacity) return fail(PACKSTONE_BUFFER_TOO_SMALL, "moves is too small");
    (void)array(moves, path_count, "moves");
    packstone_draft_commit result{};
    if (out != nullptr) write_struct(result, out, "out");
    Speculation speculation(required(manager, "manager").manager,
                            {.mode = static_cast<SpeculationMode>(mode)});
    const DraftCommit commit = speculation.commit(seq_of(seq), required(tree, "tree").tree,
                                                  array(path, path_count, "path"));
    PACKSTONE_ASSERT(commit.moves.size() <= path_count);
    for (std::size_t i = 0; i < commit.moves.size(); ++i) {
      moves[i] = {commit.moves[i].from, commit.moves[i].to};
    }
    *count = commit.moves.size();
    result.length = commit.length;
    result.tail = commit.tail;
    result.released = std::ssize(commit.released);
    if (out != nullptr) write_struct(result, out, "out");
    return PACKSTONE_OK;
  });
}
