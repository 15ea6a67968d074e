// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The life of a sequence in the oracle's driver; included by model.hpp.

#include "model.hpp"

namespace packstone::test {

// ---- parts ----

inline std::vector<Driver::Value> Driver::content(PageId page) const {
  const auto first = pool_.begin() + static_cast<std::ptrdiff_t>(slot_of(page, page_size_, 0));
  return {first, first + static_cast<std::ptrdiff_t>(page_size_)};
}

inline Driver::PageKey Driver::learn(PageId at, OwnerTag owner) {
  require(index_of(at) >= 1 && index_of(at) < pages_, "a new page is outside the pool or page 0");
  for (const auto& [key, page] : state_.pages) require(page.at != at, "a new page is in use");
  for (const Retired& each : state_.retired) require(each.at != at, "a new page is retired");
  const PageKey key = next_key_++;
  state_.pages[key] = {.at = at, .owner = owner};
  return key;
}

inline Driver::Forecast Driver::forecast(const std::vector<Growing>& batch) const {
  Forecast result;
  std::map<PageKey, std::int32_t> left;  // sharers that have copied earlier in the batch
  for (const Growing& each : batch) {
    const Sequence& s = state_.sequences[each.sequence];
    bool copy = false;
    if (each.length > length(s) && length(s) % page_size_ != 0) {
      const PageKey tail = s.pages[static_cast<std::size_t>(length(s) / page_size_)];
      const Page& page = state_.pages.at(tail);
      copy = page.tables + page.outside - left[tail] > 1;
      if (copy) left[tail] += 1;
    }
    result.copies.push_back(copy);
    const PageCount lacking =
        pages_for(each.length, page_size_) - static_cast<PageCount>(s.pages.size());
    result.pages += std::max<PageCount>(lacking, 0) + (copy ? 1 : 0);
  }
  return result;
}

/// Follows a growth of the tables that succeeded; copies and tokens are still to be written.
inline void Driver::grown(const std::vector<Growing>& batch, const Forecast& forecast) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Sequence& s = state_.sequences[batch[i].sequence];
    const auto table = manager_.pages(s.id);
    if (forecast.copies[i]) {
      const auto tail = static_cast<std::size_t>(length(s) / page_size_);
      const PageKey old = s.pages[tail];
      s.pages[tail] = learn(table[tail], s.owner);
      state_.pages[s.pages[tail]].tables = 1;
      state_.pages[old].tables -= 1;
    }
    const auto wanted = static_cast<std::size_t>(pages_for(batch[i].length, page_size_));
    require(table.size() == std::max(wanted, s.pages.size()), "a table has another size");
    while (s.pages.size() < wanted) {
      s.pages.push_back(learn(table[s.pages.size()], s.owner));
      state_.pages[s.pages.back()].tables = 1;
    }
  }
}

inline void Driver::make_copies() {
  for (const PageCopy& copy : manager_.take_copies()) {
    require(copy.tokens > 0 && copy.tokens < page_size_, "a copy of no token or a whole page");
    for (TokenCount t = 0; t < copy.tokens; ++t) {
      slot(slot_of(copy.to, page_size_, t)) = slot(slot_of(copy.from, page_size_, t));
    }
  }
}

inline void Driver::write_tokens(Sequence& s, TokenCount to) {
  if (length(s) < to) s.drafts.clear();
  while (length(s) < to) {
    slot(manager_.slot(s.id, length(s))) = next_value_;
    s.tokens.push_back(next_value_++);
  }
}

inline void Driver::cut(Sequence& s, std::size_t pages) {
  while (s.pages.size() > pages) {
    state_.pages[s.pages.back()].tables -= 1;
    drop_if_unnamed(s.pages.back());
    s.pages.pop_back();
  }
}

// ---- life of a sequence ----

inline void Driver::create(std::uint32_t expected, std::uint32_t owner, bool with_prefix) {
  Sequence s;
  std::vector<PageId> prefix;
  if (with_prefix) {
    std::set<PageKey> used;
    for (const Outside& each : state_.outside) {
      if (each.content.empty() || !used.insert(each.page).second || prefix.size() > owner % 4) {
        continue;
      }
      prefix.push_back(state_.pages[each.page].at);
      s.pages.push_back(each.page);
      s.tokens.insert(s.tokens.end(), each.content.begin(), each.content.end());
    }
  }
  const TokenCount expected_tokens =
      expected % 4 == 0 ? -1 : static_cast<TokenCount>(expected % 97) * page_size_ / 3;
  const Status status = manager_.create(
      {.owner = owner % 5, .expected_tokens = expected_tokens, .prefix = prefix}, s.id);
  require(status == Status::ok, "create ran short");
  s.owner = owner % 5 != 0 ? owner % 5 : s.id.index + 1;
  for (const PageKey page : s.pages) state_.pages[page].tables += 1;
  state_.sequences.push_back(std::move(s));
}

inline void Driver::extend(const Command& command, bool move_before_copies) {
  if (!some()) return;
  std::vector<Growing> batch;
  std::vector<Growth> growths;
  std::set<std::size_t> used;
  const std::uint32_t count = command.op == Op::extend ? command.b % 4 + 1 : 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at = pick(command.a + i * (command.c % 3 + 1));
    if (!used.insert(at).second) continue;
    const Sequence& s = state_.sequences[at];
    const auto most = static_cast<std::uint32_t>(std::min<std::int64_t>(3 * page_size_ + 2, 80));
    batch.push_back({at, length(s) + (command.c + i * 7) % most});
    growths.push_back({s.id, batch.back().length});
  }
  const Forecast expected = forecast(batch);
  const bool fits = expected.pages <= available();
  std::vector<SlotId> slots;
  const Status status =
      command.op == Op::extend
          ? manager_.extend(growths, &slots)
          : manager_.append(growths[0].seq,
                            growths[0].length - length(state_.sequences[batch[0].sequence]));
  require(status == (fits ? Status::ok : Status::out_of_pages), "extend: another status");
  if (!fits) return;
  grown(batch, expected);
  if (move_before_copies) {
    in_call_ = true;
    move(command);
    in_call_ = false;
  }
  make_copies();
  std::size_t next = 0;
  for (const Growing& each : batch) {
    Sequence& s = state_.sequences[each.sequence];
    for (TokenCount t = length(s); command.op == Op::extend && t < each.length; ++t) {
      require(slots.at(next++) == manager_.slot(s.id, t), "extend: another slot");
    }
    write_tokens(s, each.length);
  }
  require(next == slots.size(), "extend: another number of slots");
}

inline void Driver::decode(const Command& command) {
  if (!some()) return;
  std::vector<Growing> batch;
  std::vector<SeqId> ids;
  for (std::size_t i = 0; i < state_.sequences.size(); ++i) {
    if (command.b % 4 != 0 && (command.a + i) % (command.b % 4 + 1) == 0) continue;
    batch.push_back({i, length(state_.sequences[i]) + 1});
    ids.push_back(state_.sequences[i].id);
  }
  const Forecast expected = forecast(batch);
  const bool fits = expected.pages <= available();
  std::vector<SlotId> slots(command.c % 2 == 0 ? ids.size() : 0);
  const Status status = manager_.decode(ids, slots);
  require(status == (fits ? Status::ok : Status::out_of_pages), "decode: another status");
  if (!fits) return;
  grown(batch, expected);
  make_copies();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Sequence& s = state_.sequences[batch[i].sequence];
    require(slots.empty() || slots[i] == manager_.slot(s.id, length(s)), "decode: another slot");
    write_tokens(s, batch[i].length);
  }
}

inline void Driver::reserve(const Command& command) {
  if (!some()) return;
  const std::size_t at = pick(command.a);
  Sequence& s = state_.sequences[at];
  const auto tokens = static_cast<TokenCount>(command.b % (2 * page_size_ + 3));
  const std::vector<Growing> batch = {{at, length(s) + tokens}};
  const Forecast expected = forecast(batch);
  const bool fits = expected.pages <= available();
  const Status status = manager_.reserve(s.id, tokens);
  require(status == (fits ? Status::ok : Status::out_of_pages), "reserve: another status");
  if (!fits) return;
  grown(batch, expected);
  make_copies();
  if (tokens == 0) return;
  s.drafts.clear();
  for (TokenCount t = 0; t < tokens; ++t) {
    slot(manager_.slot(s.id, length(s) + t)) = next_value_;
    s.drafts.push_back(next_value_++);
  }
}

inline void Driver::commit(const Command& command) {
  if (!some()) return;
  const std::size_t at = pick(command.a);
  Sequence& s = state_.sequences[at];
  const TokenCount tokens = command.b % (capacity(s) - length(s) + 1);
  if (forecast({{at, length(s) + tokens}}).copies[0]) {
    refused<InvalidArgument>([&] { manager_.commit(s.id, tokens); });
    return;
  }
  manager_.commit(s.id, tokens);
  const auto drafts = std::min<std::size_t>(s.drafts.size(), static_cast<std::size_t>(tokens));
  const auto accepted = s.drafts.begin() + static_cast<std::ptrdiff_t>(drafts);
  s.tokens.insert(s.tokens.end(), s.drafts.begin(), accepted);
  s.drafts.erase(s.drafts.begin(), accepted);
  const TokenCount unwritten = tokens - static_cast<TokenCount>(drafts);
  for (TokenCount t = 0; t < unwritten; ++t) {
    slot(manager_.slot(s.id, length(s))) = next_value_;
    s.tokens.push_back(next_value_++);
  }
}

inline void Driver::truncate(const Command& command, bool only_trim) {
  if (!some()) return;
  Sequence& s = state_.sequences[pick(command.a)];
  const TokenCount to = only_trim ? length(s) : command.b % (length(s) + 1);
  const auto keep = static_cast<std::size_t>(pages_for(to, page_size_));
  if (only_trim) {
    const auto dropped = static_cast<PageCount>(s.pages.size() - std::min(keep, s.pages.size()));
    require(manager_.trim(s.id) == dropped, "trim: another number of pages");
  } else {
    manager_.truncate(s.id, to);
  }
  s.tokens.resize(static_cast<std::size_t>(to));
  s.drafts.clear();
  cut(s, keep);
}

inline void Driver::fork(const Command& command) {
  if (!some()) return;
  const std::size_t at = pick(command.a);
  const TokenCount tokens = command.c % 2 == 0 ? length(state_.sequences[at])
                                               : command.b % (length(state_.sequences[at]) + 1);
  Sequence child;
  require(manager_.fork(state_.sequences[at].id, tokens, child.id) == Status::ok, "fork: short");
  const Sequence& parent = state_.sequences[at];
  child.owner = child.id.index + 1;
  child.pages.assign(
      parent.pages.begin(),
      parent.pages.begin() + static_cast<std::ptrdiff_t>(pages_for(tokens, page_size_)));
  child.tokens.assign(parent.tokens.begin(),
                      parent.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
  for (const PageKey page : child.pages) state_.pages[page].tables += 1;
  state_.sequences.push_back(std::move(child));
}

inline void Driver::finish(const Command& command) {
  if (!some()) return;
  const std::size_t at = pick(command.a);
  const SeqId id = state_.sequences[at].id;
  manager_.finish(id);
  cut(state_.sequences[at], 0);
  state_.sequences.erase(state_.sequences.begin() + static_cast<std::ptrdiff_t>(at));
  require(!manager_.alive(id), "a finished sequence is alive");
}

}  // namespace packstone::test
