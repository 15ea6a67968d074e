// SPDX-License-Identifier: Apache-2.0
// What can be asked of a manager without changing it.
#include "border.hpp"
#include "handles.hpp"

using namespace packstone;
using namespace packstone::c_api;

namespace {

const KvManager& at(const packstone_manager* manager) {
  return required(manager, "manager").manager;
}

}  // namespace

packstone_status packstone_manager_alive(const packstone_manager* manager, packstone_seq seq,
                                         int* alive) {
  return guarded([&] {
    required(alive, "alive") = at(manager).alive(seq_of(seq)) ? 1 : 0;
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_length(const packstone_manager* manager, packstone_seq seq,
                                          int64_t* length, int64_t* capacity) {
  return guarded([&] {
    const KvManager& kv = at(manager);
    const TokenCount found = kv.length(seq_of(seq));
    if (length != nullptr) *length = found;
    if (capacity != nullptr) *capacity = kv.capacity(seq_of(seq));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_table(const packstone_manager* manager, packstone_seq seq,
                                         int32_t* pages, size_t capacity, size_t* count) {
  return guarded([&] {
    const std::span<const PageId> table = at(manager).pages(seq_of(seq));
    return give(
        table.size(), [&](std::size_t i) { return index_of(table[i]); }, pages, capacity, count);
  });
}

packstone_status packstone_manager_slots(const packstone_manager* manager, packstone_seq seq,
                                         int64_t first, size_t count, int64_t* slots) {
  return guarded([&] {
    const KvManager& kv = at(manager);
    const std::span<int64_t> out = array(slots, count, "slots");
    const TokenCount capacity = kv.capacity(seq_of(seq));
    if (first < 0 || first > capacity || count > static_cast<std::uint64_t>(capacity - first)) {
      throw InvalidArgument("slots of " + std::to_string(count) + " tokens from " +
                            std::to_string(first) + ", capacity " + std::to_string(capacity));
    }
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = kv.slot(seq_of(seq), first + static_cast<TokenCount>(i));
    }
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_sequences(const packstone_manager* manager, packstone_seq* seqs,
                                             size_t capacity, size_t* count) {
  return guarded([&] {
    const std::vector<SeqId> live = at(manager).live_sequences();
    return give(
        live.size(), [&](std::size_t i) { return seq_of(live[i]); }, seqs, capacity, count);
  });
}

packstone_status packstone_manager_statistics(const packstone_manager* manager,
                                              packstone_statistics* out) {
  return guarded([&] {
    const KvManager& kv = at(manager);
    const FreeSet& set = kv.allocator().set();
    const KvCounters& counters = kv.counters();
    write_struct(packstone_statistics{.size = 0,
                                      .pages = set.pages(),
                                      .page_size = kv.page_size(),
                                      .free = set.count(PageState::free),
                                      .reserved = set.count(PageState::reserved),
                                      .live = set.count(PageState::live),
                                      .retired = set.count(PageState::retired),
                                      .held = kv.allocator().held(),
                                      .pinned = set.pinned_pages(),
                                      .available = kv.available_pages(),
                                      .sequences = kv.sequences(),
                                      .sequences_created = counters.sequences_created,
                                      .sequences_finished = counters.sequences_finished,
                                      .forks = counters.forks,
                                      .pages_allocated = counters.pages_allocated,
                                      .pages_released = counters.pages_released,
                                      .pages_moved = counters.pages_moved,
                                      .copies_on_write = counters.copies_on_write,
                                      .shortages = counters.shortages},
                 out, "out");
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_digest(const packstone_manager* manager, uint64_t* digest) {
  return guarded([&] {
    required(digest, "digest") = at(manager).digest();
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_check(const packstone_manager* manager, const int32_t* held,
                                         size_t count) {
  return guarded([&] {
    at(manager).check(page_ids(held, count, "held"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_manager_checkpoint(const packstone_manager* manager,
                                              packstone_checkpoint** out) {
  return guarded([&] {
    require_copies_taken(manager);
    packstone_checkpoint*& result = required(out, "out");
    result = new packstone_checkpoint{at(manager).checkpoint()};
    return PACKSTONE_OK;
  });
}

void packstone_checkpoint_destroy(packstone_checkpoint* checkpoint) {
  delete checkpoint;
}
