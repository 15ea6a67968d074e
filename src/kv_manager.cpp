// SPDX-License-Identifier: Apache-2.0
#include "kv_operations.hpp"

#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace packstone {

namespace {

std::string name_of(SeqId seq) {
  return "sequence " + std::to_string(seq.index) + "." + std::to_string(seq.generation);
}

std::int64_t saturated_sum(std::int64_t a, std::int64_t b) {
  return a > std::numeric_limits<std::int64_t>::max() - b ? std::numeric_limits<std::int64_t>::max()
                                                          : a + b;
}

PageAllocatorOptions allocator_options(const KvManagerOptions& options) {
  return {.pages = options.pages,
          .placement = {.policy = options.policy, .page_size = options.page_size}};
}

}  // namespace

KvManager::KvManager(const KvManagerOptions& options)
    : page_size_(options.page_size),
      sequences_max_(options.sequences_max),
      allocator_(allocator_options(options)) {
  if (sequences_max_ < 1) {
    throw InvalidArgument("sequences_max = " + std::to_string(sequences_max_) + " is below 1");
  }
}

// ---- small parts ----

KvManager::Sequence& KvManager::at(SeqId seq) {
  return const_cast<Sequence&>(std::as_const(*this).at(seq));
}

const KvManager::Sequence& KvManager::at(SeqId seq) const {
  if (!alive(seq)) throw SequenceError(seq, name_of(seq) + " is not live");
  return sequences_[seq.index];
}

bool KvManager::alive(SeqId seq) const {
  return seq.index < sequences_.size() && sequences_[seq.index].alive &&
         sequences_[seq.index].generation == seq.generation;
}

void KvManager::note(std::uint64_t operation, std::uint64_t a, std::uint64_t b) {
  // The finaliser of splitmix64 (Steele, Lea, Flood 2014) over the running state.
  std::uint64_t x = digest_ ^ (operation << 56U) ^ std::rotl(a, 17) ^ (b * 0x9e3779b97f4a7c15ULL);
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  digest_ = (x ^ (x >> 31U)) + 0x9e3779b97f4a7c15ULL;
}

Status KvManager::shortage(Status status) {
  if (status != Status::ok) counters_.shortages += 1;
  return status;
}

SeqId KvManager::new_place(OwnerTag owner, TokenCount expected) {
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<std::uint32_t>(sequences_.size()));
    sequences_.emplace_back();
  }
  const std::uint32_t index = free_places_.back();
  free_places_.pop_back();
  Sequence& sequence = sequences_[index];
  sequence.pages.clear();
  sequence.length = 0;
  sequence.expected = expected;
  sequence.owner = owner != 0 ? owner : index + 1;
  sequence.generation = ++generation_;
  sequence.alive = true;
  live_ += 1;
  counters_.sequences_created += 1;
  return {.index = index, .generation = sequence.generation};
}

void KvManager::stamp(SeqId seq, Sequence& sequence) {
  if (sequence.batch == batch_) throw InvalidArgument(name_of(seq) + " stands twice in the batch");
  sequence.batch = batch_;
}

PageId KvManager::last_written(const Sequence& sequence) const {
  return sequence.pages[static_cast<std::size_t>(sequence.length / page_size_)];
}

KvManager::Need KvManager::need(const Sequence& sequence, TokenCount length) const {
  Need result;
  const auto have = static_cast<PageCount>(sequence.pages.size());
  result.pages = std::max<PageCount>(pages_for(length, page_size_) - have, 0);
  if (length > sequence.length && sequence.length % page_size_ != 0) {
    const PageId last = last_written(sequence);
    const FreeSet& set = allocator_.set();
    result.copy = set.references(last) - set.pins(last) > 1;
    result.pages += result.copy ? 1 : 0;
  }
  return result;
}

void KvManager::grow(std::uint32_t index, TokenCount length, const Need& need) {
  Sequence& sequence = sequences_[index];
  PageAllocator::Request request{
      .take = {.stream = index, .after = kNoPage, .expected = -1},
      .owner = sequence.owner,
  };
  const auto allocate = [&](PageId after, std::span<PageId> out) {
    request.take.after = after;
    const Status status = allocator_.allocate(request, out);
    PACKSTONE_ASSERT(status == Status::ok);
  };
  if (sequence.expected >= 0) {
    request.take.expected = std::max<PageCount>(
        pages_for(sequence.expected, page_size_) - pages_for(length, page_size_), 0);
  }
  if (need.copy) {
    const auto last = static_cast<std::size_t>(sequence.length / page_size_);
    const PageId shared = sequence.pages[last];
    PageId own = kNoPage;
    allocate(last > 0 ? sequence.pages[last - 1] : kNoPage, {&own, 1});
    copies_.push_back({.from = shared, .to = own, .tokens = sequence.length % page_size_});
    sequence.pages[last] = own;
    allocator_.release({&shared, 1});
    counters_.copies_on_write += 1;
  }
  if (const PageCount fresh = need.pages - (need.copy ? 1 : 0); fresh > 0) {
    const std::size_t before = sequence.pages.size();
    const PageId after = before > 0 ? sequence.pages.back() : kNoPage;
    sequence.pages.resize(before + static_cast<std::size_t>(fresh));
    allocate(after, std::span(sequence.pages).subspan(before));
  }
  counters_.pages_allocated += need.pages;
}

void KvManager::release_from(Sequence& sequence, std::int64_t first_page) {
  const auto first = static_cast<std::size_t>(first_page);
  if (first >= sequence.pages.size()) return;
  counters_.pages_released += allocator_.release(std::span(sequence.pages).subspan(first));
  sequence.pages.resize(first);
}

// ---- life of a sequence ----

Status KvManager::create(const CreateOptions& options, SeqId& out) {
  if (options.expected_tokens < -1) {
    throw InvalidArgument("expected_tokens = " + std::to_string(options.expected_tokens) +
                          " is below -1");
  }
  std::vector<PageId> sorted(options.prefix.begin(), options.prefix.end());
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    const OwnerTag owner = allocator_.set().owner(*twice);
    throw PageError(PageError::Kind::duplicate, *twice, owner,
                    "page " + std::to_string(index_of(*twice)) + " stands twice in a prefix, " +
                        "owner tag " + std::to_string(owner));
  }
  if (live_ >= sequences_max_) return shortage(Status::out_of_sequences);
  allocator_.retain(options.prefix);
  out = new_place(options.owner, options.expected_tokens);
  Sequence& sequence = sequences_[out.index];
  sequence.pages.assign(options.prefix.begin(), options.prefix.end());
  sequence.length = static_cast<TokenCount>(options.prefix.size()) * page_size_;
  note(detail::kCreate, (std::uint64_t{sequence.owner} << 32U) | out.index,
       static_cast<std::uint64_t>(sequence.expected));
  for (const PageId page : options.prefix) {
    note(detail::kPrefix, out.index, static_cast<std::uint64_t>(index_of(page)));
  }
  return Status::ok;
}

Status KvManager::append(SeqId seq, TokenCount tokens) {
  Sequence& sequence = at(seq);
  if (tokens < 0) {
    throw InvalidArgument("append of " + std::to_string(tokens) + " tokens to " + name_of(seq));
  }
  if (tokens > std::numeric_limits<TokenCount>::max() - sequence.length) {
    return shortage(Status::out_of_pages);
  }
  const Growth growth{.seq = seq, .length = sequence.length + tokens};
  return extend({&growth, 1});
}

PageCount KvManager::spared_copies(std::vector<PageId>& shared) const {
  std::ranges::sort(shared);
  PageCount spared = 0;
  const FreeSet& set = allocator_.set();
  for (std::size_t i = 0; i < shared.size();) {
    const std::size_t first = i;
    while (i < shared.size() && shared[i] == shared[first]) ++i;
    const auto writers = static_cast<std::int32_t>(i - first);
    if (writers == set.references(shared[first]) - set.pins(shared[first])) spared += 1;
  }
  return spared;
}

Status KvManager::extend(std::span<const Growth> batch, std::vector<SlotId>* slots) {
  batch_ += 1;
  BatchDemand demand{.sequences = static_cast<std::int64_t>(batch.size())};
  std::vector<PageId> shared;
  for (const Growth& growth : batch) {
    Sequence& sequence = at(growth.seq);
    if (growth.length < sequence.length) {
      throw InvalidArgument("extend of " + name_of(growth.seq) + " from " +
                            std::to_string(sequence.length) + " to " +
                            std::to_string(growth.length) + " tokens");
    }
    stamp(growth.seq, sequence);
    const Need wanted = need(sequence, growth.length);
    if (wanted.copy) shared.push_back(last_written(sequence));
    demand.pages = saturated_sum(demand.pages, wanted.pages);
    demand.tokens = saturated_sum(demand.tokens, growth.length - sequence.length);
  }
  demand.pages -= spared_copies(shared);
  allocator_.prepare(demand);
  if (demand.pages > allocator_.available()) return shortage(Status::out_of_pages);

  note(detail::kBatch, batch.size(), 0);
  for (const Growth& growth : batch) {
    Sequence& sequence = sequences_[growth.seq.index];
    grow(growth.seq.index, growth.length, need(sequence, growth.length));
    if (slots != nullptr) {
      for (TokenCount t = sequence.length; t < growth.length; ++t) {
        slots->push_back(slot_of(sequence.pages[static_cast<std::size_t>(t / page_size_)],
                                 page_size_, t % page_size_));
      }
    }
    sequence.length = growth.length;
    note(detail::kGrow, growth.seq.index, static_cast<std::uint64_t>(growth.length));
  }
  return Status::ok;
}

Status KvManager::decode(std::span<const SeqId> batch, std::span<SlotId> slots) {
  if (!slots.empty() && slots.size() != batch.size()) {
    throw InvalidArgument("decode of " + std::to_string(batch.size()) + " sequences into " +
                          std::to_string(slots.size()) + " slots");
  }
  batch_ += 1;
  BatchDemand demand{.tokens = static_cast<TokenCount>(batch.size()),
                     .sequences = static_cast<std::int64_t>(batch.size()),
                     .decode = true};
  std::vector<PageId> shared;
  for (const SeqId seq : batch) {
    Sequence& sequence = at(seq);
    stamp(seq, sequence);
    const Need wanted = need(sequence, sequence.length + 1);
    if (wanted.copy) shared.push_back(last_written(sequence));
    demand.pages += wanted.pages;
  }
  demand.pages -= spared_copies(shared);
  allocator_.prepare(demand);
  if (demand.pages > allocator_.available()) return shortage(Status::out_of_pages);

  note(detail::kBatch, batch.size(), 1);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Sequence& sequence = sequences_[batch[i].index];
    const Need wanted = need(sequence, sequence.length + 1);
    if (wanted.pages > 0) grow(batch[i].index, sequence.length + 1, wanted);
    if (!slots.empty()) {
      slots[i] = slot_of(sequence.pages[static_cast<std::size_t>(sequence.length / page_size_)],
                         page_size_, sequence.length % page_size_);
    }
    sequence.length += 1;
    note(detail::kGrow, batch[i].index, static_cast<std::uint64_t>(sequence.length));
  }
  return Status::ok;
}

Status KvManager::reserve(SeqId seq, TokenCount tokens) {
  Sequence& sequence = at(seq);
  if (tokens < 0) {
    throw InvalidArgument("reserve of " + std::to_string(tokens) + " tokens for " + name_of(seq));
  }
  if (tokens > std::numeric_limits<TokenCount>::max() - sequence.length) {
    return shortage(Status::out_of_pages);
  }
  const TokenCount length = sequence.length + tokens;
  const Need wanted = need(sequence, length);
  allocator_.prepare({.pages = wanted.pages, .tokens = tokens, .sequences = 1});
  if (wanted.pages > allocator_.available()) return shortage(Status::out_of_pages);
  grow(seq.index, length, wanted);
  note(detail::kReserve, seq.index, static_cast<std::uint64_t>(length));
  return Status::ok;
}

void KvManager::commit(SeqId seq, TokenCount tokens) {
  Sequence& sequence = at(seq);
  if (tokens < 0 || tokens > capacity(seq) - sequence.length) {
    throw InvalidArgument("commit of " + std::to_string(tokens) + " tokens to " + name_of(seq) +
                          ", whose capacity has " +
                          std::to_string(capacity(seq) - sequence.length) + " left");
  }
  if (need(sequence, sequence.length + tokens).copy) {
    throw InvalidArgument("commit of " + std::to_string(tokens) + " tokens to " + name_of(seq) +
                          ", whose last page is shared and was not reserved since");
  }
  sequence.length += tokens;
  note(detail::kCommit, seq.index, static_cast<std::uint64_t>(sequence.length));
}

PageCount KvManager::trim(SeqId seq) {
  Sequence& sequence = at(seq);
  const auto before = static_cast<PageCount>(sequence.pages.size());
  release_from(sequence, pages_for(sequence.length, page_size_));
  note(detail::kTrim, seq.index, static_cast<std::uint64_t>(sequence.length));
  return before - static_cast<PageCount>(sequence.pages.size());
}

void KvManager::truncate(SeqId seq, TokenCount length) {
  Sequence& sequence = at(seq);
  if (length < 0 || length > sequence.length) {
    throw InvalidArgument("truncate of " + name_of(seq) + " from " +
                          std::to_string(sequence.length) + " to " + std::to_string(length) +
                          " tokens");
  }
  release_from(sequence, pages_for(length, page_size_));
  sequence.length = length;
  note(detail::kTruncate, seq.index, static_cast<std::uint64_t>(length));
}

Status KvManager::fork(SeqId parent, TokenCount tokens, SeqId& out) {
  const Sequence& source = at(parent);
  if (tokens < 0 || tokens > source.length) {
    throw InvalidArgument("fork of " + name_of(parent) + " at " + std::to_string(tokens) + " of " +
                          std::to_string(source.length) + " tokens");
  }
  if (live_ >= sequences_max_) return shortage(Status::out_of_sequences);
  const auto pages = static_cast<std::size_t>(pages_for(tokens, page_size_));
  const std::vector<PageId> shared(source.pages.begin(),
                                   source.pages.begin() + static_cast<std::ptrdiff_t>(pages));
  allocator_.retain(shared);
  out = new_place(0, -1);
  sequences_[out.index].pages = shared;
  sequences_[out.index].length = tokens;
  counters_.forks += 1;
  note(detail::kFork, parent.index, static_cast<std::uint64_t>(tokens));
  return Status::ok;
}

void KvManager::finish(SeqId seq) {
  Sequence& sequence = at(seq);
  allocator_.end_stream(seq.index);
  release_from(sequence, 0);
  sequence.alive = false;
  sequence.length = 0;
  free_places_.push_back(seq.index);
  live_ -= 1;
  counters_.sequences_finished += 1;
  note(detail::kFinish, seq.index, 0);
}

std::vector<PageCopy> KvManager::take_copies() {
  return std::exchange(copies_, {});
}

// ---- views ----

TokenCount KvManager::capacity(SeqId seq) const {
  return static_cast<TokenCount>(at(seq).pages.size()) * page_size_;
}

SlotId KvManager::slot(SeqId seq, TokenCount position) const {
  if (position < 0 || position >= capacity(seq)) {
    throw InvalidArgument("position " + std::to_string(position) + " of " + name_of(seq) +
                          ", whose capacity is " + std::to_string(capacity(seq)));
  }
  return slot_of(at(seq).pages[static_cast<std::size_t>(position / page_size_)], page_size_,
                 position % page_size_);
}

std::vector<SeqId> KvManager::live_sequences() const {
  std::vector<SeqId> result;
  result.reserve(static_cast<std::size_t>(live_));
  for (std::uint32_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].alive) result.push_back({i, sequences_[i].generation});
  }
  return result;
}

}  // namespace packstone
