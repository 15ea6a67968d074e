// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"
#include "handles.hpp"

using namespace packstone;
using namespace packstone::c_api;

namespace {

KvManager& at(packstone_manager* manager) {
  return required(manager, "manager").manager;
}

}  // namespace

packstone_status packstone_manager_create(const packstone_manager_options* options,
                                          packstone_manager** out) {
  return guarded([&] {
    const packstone_manager_options given = read_struct(options, "options");
    KvManagerOptions made{.pages = given.pages};
    if (given.page_size != 0) made.page_size = given.page_size;
    if (given.policy != nullptr) made.policy = given.policy;
    if (given.sequences_max != 0) made.sequences_max = given.sequences_max;
    packstone_manager*& result = required(out, "out");
    result = new packstone_manager{KvManager(made), {}};
    return PACKSTONE_OK;
  });
}

void packstone_manager_destroy(packstone_manager* manager) {
  delete manager;
}

packstone_status packstone_manager_open(packstone_manager* manager,
                                        const packstone_create_options* options,
                                        packstone_seq* out) {
  return guarded([&] {
    KvManager::CreateOptions made;
    if (options != nullptr) {
      const packstone_create_options given = read_struct(options, "options");
      made.owner = given.owner;
      if (given.expected_tokens != 0) made.expected_tokens = given.expected_tokens;
      made.prefix = page_ids(given.prefix, given.prefix_pages, "options->prefix");
    }
    packstone_seq& result = required(out, "out");
    SeqId seq;
    const Status status = at(manager).create(made, seq);
    if (status == Status::ok) result = seq_of(seq);
    return status_of(status);
  });
}

packstone_status packstone_manager_append(packstone_manager* manager, packstone_seq seq,
                                          int64_t tokens) {
  return guarded([&] { return status_of(at(manager).append(seq_of(seq), tokens)); });
}

packstone_status packstone_manager_extend(packstone_manager* manager, const packstone_growth* batch,
                                          size_t count, int64_t* slots, size_t slot_capacity) {
  return guarded([&] {
    KvManager& kv = at(manager);
    std::vector<Growth> growths;
    std::uint64_t wanted = 0;
    for (const packstone_growth& each : array(batch, count, "batch")) {
      growths.push_back({.seq = seq_of(each.seq), .length = each.length});
      const TokenCount length = kv.length(seq_of(each.seq));
      if (each.length > length) wanted += static_cast<std::uint64_t>(each.length - length);
    }
    if (slots == nullptr) return status_of(kv.extend(growths));
    if (wanted > slot_capacity) return fail(PACKSTONE_BUFFER_TOO_SMALL, "slots is too small");
    std::vector<SlotId> found;
    const Status status = kv.extend(growths, &found);
    std::copy(found.begin(), found.end(), slots);
    return status_of(status);
  });
}

packstone_status packstone_manager_decode(packstone_manager* manager, const packstone_seq* batch,
                                          size_t count, int64_t* slots) {
  return guarded([&] {
    std::vector<SeqId> seqs;
    for (const packstone_seq seq : array(batch, count, "batch")) seqs.push_back(seq_of(seq));
    return status_of(at(manager).decode(seqs, {slots, slots != nullptr ? count : 0}));
  });
}

packstone_status packstone_manager_reserve(packstone_manager* manager, packstone_seq seq,
                                           int64_t tokens) {
  return guarded([&] { return status_of(at(manager).reserve(seq_of(seq), tokens)); });
}

packstone_status packstone_manager_commit(packstone_manager* manager, packstone_seq seq,
                                          int64_t tokens) {
  return guarded([&] {
    at(manager).commit(seq_of(seq), tokens);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_trim(packstone_manager* manager, packstone_seq seq,
                                        int64_t* released) {
  return guarded([&] {
    const PageCount pages = at(manager).trim(seq_of(seq));
    if (released != nullptr) *released = pages;
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_truncate(packstone_manager* manager, packstone_seq seq,
                                            int64_t length) {
  return guarded([&] {
    at(manager).truncate(seq_of(seq), length);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_fork(packstone_manager* manager, packstone_seq parent,
                                        int64_t tokens, packstone_seq* out) {
  return guarded([&] {
    packstone_seq& result = required(out, "out");
    SeqId seq;
    const Status status = at(manager).fork(seq_of(parent), tokens, seq);
    if (status == Status::ok) result = seq_of(seq);
    return status_of(status);
  });
}

packstone_status packstone_manager_finish(packstone_manager* manager, packstone_seq seq) {
  return guarded([&] {
    at(manager).finish(seq_of(seq));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_take_copies(packstone_manager* manager,
                                               packstone_page_copy* copies, size_t capacity,
                                               size_t* count) {
  return guarded([&] {
    packstone_manager& handle = required(manager, "manager");
    (void)required(count, "count");
    if (capacity > 0) (void)required(copies, "copies");
    const std::vector<PageCopy> taken = handle.manager.take_copies();
    handle.copies.insert(handle.copies.end(), taken.begin(), taken.end());
    const packstone_status status = give(
        handle.copies.size(),
        [&](std::size_t i) {
          const PageCopy& copy = handle.copies[i];
          return packstone_page_copy{index_of(copy.from), index_of(copy.to), copy.tokens};
        },
        copies, capacity, count);
    if (status == PACKSTONE_OK) handle.copies.clear();
    return status;
  });
}

packstone_status packstone_manager_pin(packstone_manager* manager, packstone_seq seq, int64_t first,
                                       int64_t count) {
  return guarded([&] {
    at(manager).pin(seq_of(seq), first, count);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_unpin(packstone_manager* manager, packstone_seq seq,
                                         int64_t first, int64_t count) {
  return guarded([&] {
    at(manager).unpin(seq_of(seq), first, count);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_retain(packstone_manager* manager, const int32_t* pages,
                                          size_t count) {
  return guarded([&] {
    at(manager).allocator().retain(page_ids(pages, count, "pages"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_release(packstone_manager* manager, const int32_t* pages,
                                           size_t count) {
  return guarded([&] {
    at(manager).allocator().release(page_ids(pages, count, "pages"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_apply(packstone_manager* manager,
                                         const packstone_page_move* moves, size_t move_count,
                                         const packstone_table_patch* patches, size_t patch_count,
                                         uint64_t epoch) {
  return guarded([&] {
    require_copies_taken(manager);
    std::vector<TablePatch> made;
    for (const packstone_table_patch& patch : array(patches, patch_count, "patches")) {
      made.push_back({.seq = seq_of(patch.seq),
                      .index = patch.index,
                      .move = {PageId{patch.move.from}, PageId{patch.move.to}}});
    }
    at(manager).apply(page_moves(moves, move_count, "moves"), made, epoch);
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_reclaim(packstone_manager* manager, uint64_t reached,
                                           int64_t* freed) {
  return guarded([&] {
    const PageCount pages = at(manager).reclaim(reached);
    if (freed != nullptr) *freed = pages;
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_restore(packstone_manager* manager,
                                           const packstone_checkpoint* checkpoint) {
  return guarded([&] {
    require_copies_taken(manager);
    at(manager).restore(required(checkpoint, "checkpoint").checkpoint);
    return PACKSTONE_OK;
  });
}
