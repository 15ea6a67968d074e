// SPDX-License-Identifier: Apache-2.0
#include <packstone/kv_group.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace packstone {

namespace {

std::string name_of(SeqId seq) {
  return "group sequence " + std::to_string(seq.index) + "." + std::to_string(seq.generation);
}

}  // namespace

KvGroup::KvGroup(std::span<const GroupPool> pools)
    : pools_(pools.begin(), pools.end()), state_copies_(pools.size()) {
  if (pools.empty()) throw InvalidArgument("a group without pools");
  for (const GroupPool& pool : pools_) {
    if (pool.kind == GroupKind::window && pool.window < 1) {
      throw InvalidArgument("window = " + std::to_string(pool.window) + " of pool " + pool.name);
    }
    if (pool.kind == GroupKind::state && pool.manager.page_size != 1) {
      throw InvalidArgument("page_size = " + std::to_string(pool.manager.page_size) +
                            " of state pool " + pool.name);
    }
    managers_.push_back(std::make_unique<KvManager>(pool.manager));
  }
}

// ---- small parts ----

bool KvGroup::alive(SeqId seq) const {
  return seq.index < sequences_.size() && sequences_[seq.index].alive &&
         sequences_[seq.index].generation == seq.generation;
}

const KvGroup::Sequence& KvGroup::at(SeqId seq) const {
  if (!alive(seq)) throw SequenceError(seq, name_of(seq) + " is not live");
  return sequences_[seq.index];
}

KvGroup::Sequence& KvGroup::at(SeqId seq) {
  return const_cast<Sequence&>(std::as_const(*this).at(seq));
}

TokenCount KvGroup::pool_length(const Sequence& sequence, std::size_t pool,
                                TokenCount length) const {
  if (pools_[pool].kind == GroupKind::state) return 1;
  return length - sequence.dropped[pool] * pools_[pool].manager.page_size;
}

void KvGroup::require_window(const Sequence& sequence, TokenCount length, const char* verb) const {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind != GroupKind::window) continue;
    const TokenCount seen = std::max<TokenCount>(length - pools_[i].window, 0);
    if (seen / pools_[i].manager.page_size >= sequence.dropped[i]) continue;
    throw InvalidArgument(std::string(verb) + " at " + std::to_string(length) +
                          " tokens sees token " + std::to_string(seen) + ", which pool " +
                          pools_[i].name + " has dropped");
  }
}

SeqId KvGroup::new_place(Sequence&& sequence) {
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<std::uint32_t>(sequences_.size()));
    sequences_.emplace_back();
  }
  const std::uint32_t index = free_places_.back();
  free_places_.pop_back();
  sequence.generation = ++generation_;
  sequence.alive = true;
  sequences_[index] = std::move(sequence);
  live_ += 1;
  return {.index = index, .generation = generation_};
}

void KvGroup::finish_pools(std::span<const SeqId> seqs) {
  for (std::size_t i = 0; i < seqs.size(); ++i) managers_[i]->finish(seqs[i]);
}

// ---- life of a sequence ----

Status KvGroup::create(SeqId& out, TokenCount expected_tokens) {
  if (expected_tokens < -1) {
    throw InvalidArgument("expected_tokens = " + std::to_string(expected_tokens));
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == GroupKind::state && managers_[i]->available_pages() < 1) {
      return Status::out_of_pages;
    }
  }
  Sequence sequence;
  sequence.dropped.assign(pools_.size(), 0);
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const bool state = pools_[i].kind == GroupKind::state;
    SeqId seq;
    const Status status =
        managers_[i]->create({.expected_tokens = state ? 1 : expected_tokens}, seq);
    if (status != Status::ok) {
      finish_pools(sequence.seqs);
      return status;
    }
    sequence.seqs.push_back(seq);
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind != GroupKind::state) continue;
    const Status status = managers_[i]->append(sequence.seqs[i], 1);
    PACKSTONE_ASSERT(status == Status::ok);
  }
  out = new_place(std::move(sequence));
  return Status::ok;
}

Status KvGroup::extend(std::span<const Growth> batch) {
  std::vector<SeqId> seqs;
  for (const Growth& growth : batch) {
    if (growth.length < at(growth.seq).length) {
      throw InvalidArgument("extend of " + name_of(growth.seq) + " from " +
                            std::to_string(at(growth.seq).length) + " to " +
                            std::to_string(growth.length) + " tokens");
    }
    seqs.push_back(growth.seq);
  }
  std::ranges::sort(seqs);
  if (const auto twice = std::ranges::adjacent_find(seqs); twice != seqs.end()) {
    throw InvalidArgument(name_of(*twice) + " stands twice in the batch");
  }
  std::vector<std::vector<Growth>> growths(pools_.size());
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    for (const Growth& growth : batch) {
      const Sequence& sequence = at(growth.seq);
      growths[i].push_back(
          {.seq = sequence.seqs[i], .length = pool_length(sequence, i, growth.length)});
    }
    if (managers_[i]->pages_needed(growths[i]) > managers_[i]->available_pages()) {
      return Status::out_of_pages;
    }
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Status status = managers_[i]->extend(growths[i]);
    PACKSTONE_ASSERT(status == Status::ok);
  }
  for (const Growth& growth : batch) at(growth.seq).length = growth.length;
  return Status::ok;
}

Status KvGroup::append(SeqId seq, TokenCount tokens) {
  const TokenCount length = at(seq).length;
  if (tokens < 0) throw InvalidArgument("append of " + std::to_string(tokens) + " tokens");
  if (tokens > std::numeric_limits<TokenCount>::max() - length) return Status::out_of_pages;
  const Growth growth{.seq = seq, .length = length + tokens};
  return extend({&growth, 1});
}

Status KvGroup::reserve(SeqId seq, TokenCount tokens) {
  const Sequence& sequence = at(seq);
  if (tokens < 0) throw InvalidArgument("reserve of " + std::to_string(tokens) + " tokens");
  if (tokens > std::numeric_limits<TokenCount>::max() - sequence.length) {
    return Status::out_of_pages;
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Growth growth{.seq = sequence.seqs[i],
                        .length = pool_length(sequence, i, sequence.length + tokens)};
    if (managers_[i]->pages_needed({&growth, 1}) > managers_[i]->available_pages()) {
      return Status::out_of_pages;
    }
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == GroupKind::state) continue;
    const Status status = managers_[i]->reserve(sequence.seqs[i], tokens);
    PACKSTONE_ASSERT(status == Status::ok);
  }
  return Status::ok;
}

void KvGroup::commit(SeqId seq, TokenCount tokens) {
  Sequence& sequence = at(seq);
  // Every pool is asked before the first is changed; a tail that was shared since its reserve needs
  // a page that nobody has set aside.
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == GroupKind::state) continue;
    const KvManager& manager = *managers_[i];
    const TokenCount room = manager.capacity(sequence.seqs[i]) - manager.length(sequence.seqs[i]);
    if (tokens < 0 || tokens > room) {
      throw InvalidArgument("commit of " + std::to_string(tokens) + " tokens to " + name_of(seq) +
                            ", for which pool " + pools_[i].name + " has room for " +
                            std::to_string(room));
    }
    const Growth growth{.seq = sequence.seqs[i],
                        .length = manager.length(sequence.seqs[i]) + tokens};
    if (manager.pages_needed({&growth, 1}) > 0) {
      throw InvalidArgument("commit to " + name_of(seq) + ", whose last page in pool " +
                            pools_[i].name + " is shared and was not reserved since");
    }
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind != GroupKind::state) managers_[i]->commit(sequence.seqs[i], tokens);
  }
  sequence.length += tokens;
}

PageCount KvGroup::trim(SeqId seq) {
  const Sequence& sequence = at(seq);
  PageCount pages = 0;
  for (std::size_t i = 0; i < pools_.size(); ++i) pages += managers_[i]->trim(sequence.seqs[i]);
  return pages;
}

void KvGroup::truncate(SeqId seq, TokenCount length) {
  Sequence& sequence = at(seq);
  if (length < 0 || length > sequence.length) {
    throw InvalidArgument("truncate of " + name_of(seq) + " from " +
                          std::to_string(sequence.length) + " to " + std::to_string(length) +
                          " tokens");
  }
  require_window(sequence, length, "truncate");
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == GroupKind::state) continue;
    managers_[i]->truncate(sequence.seqs[i], pool_length(sequence, i, length));
  }
  sequence.length = length;
}

Status KvGroup::fork(SeqId parent, TokenCount tokens, SeqId& out) {
  const Sequence& source = at(parent);
  if (tokens < 0 || tokens > source.length) {
    throw InvalidArgument("fork of " + name_of(parent) + " at " + std::to_string(tokens) + " of " +
                          std::to_string(source.length) + " tokens");
  }
  require_window(source, tokens, "fork");
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind == GroupKind::state && managers_[i]->available_pages() < 1) {
      return Status::out_of_pages;
    }
  }
  Sequence child;
  child.dropped = source.dropped;
  child.length = tokens;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const bool state = pools_[i].kind == GroupKind::state;
    SeqId seq;
    const Status status =
        state ? managers_[i]->create({.expected_tokens = 1}, seq)
              : managers_[i]->fork(source.seqs[i], pool_length(source, i, tokens), seq);
    if (status != Status::ok) {
      finish_pools(child.seqs);
      return status;
    }
    child.seqs.push_back(seq);
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind != GroupKind::state) continue;
    const Status status = managers_[i]->append(child.seqs[i], 1);
    PACKSTONE_ASSERT(status == Status::ok);
    state_copies_[i].push_back({.from = managers_[i]->pages(source.seqs[i])[0],
                                .to = managers_[i]->pages(child.seqs[i])[0],
                                .tokens = 1});
  }
  out = new_place(std::move(child));
  return Status::ok;
}

void KvGroup::finish(SeqId seq) {
  Sequence& sequence = at(seq);
  finish_pools(sequence.seqs);
  sequence = {};
  free_places_.push_back(seq.index);
  live_ -= 1;
}

PageCount KvGroup::release_out_of_window(SeqId seq) {
  Sequence& sequence = at(seq);
  PageCount freed = 0;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].kind != GroupKind::window) continue;
    const TokenCount gone = std::max<TokenCount>(sequence.length - pools_[i].window, 0);
    const std::int64_t pages = gone / pools_[i].manager.page_size - sequence.dropped[i];
    if (pages <= 0) continue;
    freed += managers_[i]->drop_front(sequence.seqs[i], pages);
    sequence.dropped[i] += pages;
  }
  return freed;
}

// ---- views ----

SeqId KvGroup::in_pool(SeqId seq, std::size_t pool) const {
  return at(seq).seqs.at(pool);
}

std::int64_t KvGroup::dropped(SeqId seq, std::size_t pool) const {
  return at(seq).dropped.at(pool);
}

std::vector<PageId> KvGroup::table(SeqId seq, std::size_t pool) const {
  const Sequence& sequence = at(seq);
  std::vector<PageId> result(static_cast<std::size_t>(sequence.dropped.at(pool)), kReservedPage);
  const auto pages = managers_[pool]->pages(sequence.seqs[pool]);
  result.insert(result.end(), pages.begin(), pages.end());
  return result;
}

SlotId KvGroup::slot(SeqId seq, std::size_t pool, TokenCount position) const {
  const Sequence& sequence = at(seq);
  if (pools_.at(pool).kind == GroupKind::state)
    return managers_[pool]->slot(sequence.seqs[pool], 0);
  const TokenCount dropped = sequence.dropped[pool] * pools_[pool].manager.page_size;
  if (position < dropped) {
    throw InvalidArgument("token " + std::to_string(position) + " of " + name_of(seq) +
                          " is not in pool " + pools_[pool].name + ", which begins with token " +
                          std::to_string(dropped));
  }
  return managers_[pool]->slot(sequence.seqs[pool], position - dropped);
}

std::vector<PageCopy> KvGroup::take_copies(std::size_t pool) {
  std::vector<PageCopy> result = managers_.at(pool)->take_copies();
  const std::vector<PageCopy> states = std::exchange(state_copies_[pool], {});
  result.insert(result.end(), states.begin(), states.end());
  return result;
}

std::uint64_t KvGroup::digest() const {
  std::uint64_t digest = 0x9e3779b97f4a7c15ULL;
  for (const auto& manager : managers_) {
    digest = std::rotl(digest ^ manager->digest(), 29) * 0xbf58476d1ce4e5b9ULL;
  }
  return digest;
}

void KvGroup::check() const {
  std::int64_t alive = 0;
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    const Sequence& sequence = sequences_[s];
    if (!sequence.alive) continue;
    alive += 1;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (managers_[i]->length(sequence.seqs[i]) == pool_length(sequence, i, sequence.length)) {
        continue;
      }
      throw InvariantError("group sequence " + std::to_string(s) + " of " +
                           std::to_string(sequence.length) + " tokens has another length in pool " +
                           pools_[i].name);
    }
  }
  for (const auto& manager : managers_) {
    manager->check();
    if (manager->sequences() != alive || alive != live_) {
      throw InvariantError("the pools of a group have different sequences");
    }
  }
}

}  // namespace packstone
