// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Readers, moves, holders outside, the mistakes of callers and the check of the oracle's driver;
/// included by model.hpp.

#include "model.hpp"

namespace packstone::test {

// ---- readers, moves, holders outside ----

inline void Driver::pin(const Command& command) {
  if (!some()) return;
  const Sequence& s = state_.sequences[pick(command.a)];
  const auto first = static_cast<std::int64_t>(command.b % (s.pages.size() + 1));
  const auto count =
      static_cast<std::int64_t>(command.c % (s.pages.size() + 1 - static_cast<std::size_t>(first)));
  manager_.pin(s.id, first, count);
  for (std::int64_t i = first; i < first + count; ++i) {
    const PageKey page = s.pages[static_cast<std::size_t>(i)];
    state_.pages[page].pins += 1;
    state_.pins.push_back(page);
  }
}

inline void Driver::unpin(const Command& command) {
  if (state_.pins.empty()) return;
  const std::size_t at = command.a % state_.pins.size();
  const PageKey key = state_.pins[at];
  const PageId page = state_.pages[key].at;
  bool done = false;
  for (const Sequence& s : state_.sequences) {
    const auto entry = std::ranges::find(s.pages, key);
    if (done || entry == s.pages.end()) continue;
    manager_.unpin(s.id, entry - s.pages.begin(), 1);
    done = true;
  }
  if (!done) manager_.allocator().unpin(page);
  state_.pins.erase(state_.pins.begin() + static_cast<std::ptrdiff_t>(at));
  state_.pages[key].pins -= 1;
  drop_if_unnamed(key);
}

inline void Driver::move(const Command& command) {
  std::vector<PageMove> moves;
  std::vector<TablePatch> patches;
  std::vector<PageKey> keys;
  std::int64_t destination = command.b % pages_;
  std::uint32_t skip =
      state_.pages.empty() ? 0 : command.a % static_cast<std::uint32_t>(state_.pages.size());
  for (const auto& [key, page] : state_.pages) {
    if (skip > 0) {
      skip -= 1;
      continue;
    }
    if (page.pins > 0 || moves.size() > command.c % 3) continue;
    std::int64_t looked = 0;
    const auto is_free = [&] {
      return manager_.allocator().set().state(PageId{static_cast<std::int32_t>(destination)}) ==
             PageState::free;
    };
    while (looked < pages_ && !is_free()) {
      destination = (destination + 1) % pages_;
      looked += 1;
    }
    if (looked == pages_) break;
    const PageMove each{page.at, PageId{static_cast<std::int32_t>(destination)}};
    if (std::ranges::find(moves, each.to, &PageMove::to) != moves.end()) break;
    destination = (destination + 1) % pages_;
    moves.push_back(each);
    keys.push_back(key);
    for (const Sequence& s : state_.sequences) {
      const auto entry = std::ranges::find(s.pages, key);
      if (entry == s.pages.end()) continue;
      patches.push_back({.seq = s.id, .index = entry - s.pages.begin(), .move = each});
    }
  }
  if (moves.empty()) return;
  state_.epoch += command.b % 2;
  if (static_cast<PageCount>(moves.size()) > available()) {
    refused<InvalidArgument>([&] { manager_.apply(moves, patches, state_.epoch); });
    return;
  }
  if (!patches.empty()) {
    std::vector<TablePatch> too_few(patches.begin(), patches.end() - 1);
    refused<Error>([&] { manager_.apply(moves, too_few, state_.epoch); });
  }
  try {
    manager_.apply(moves, patches, state_.epoch);
  } catch (const PageError& error) {
    // Only a copy on write that waits for its page may still refuse it.
    require(error.kind() == PageError::Kind::pinned && command.op == Op::append_then_move,
            "apply: refused");
    return;
  }
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const std::vector<Value> rows = content(moves[i].from);
    std::ranges::copy(
        rows, pool_.begin() + static_cast<std::ptrdiff_t>(slot_of(moves[i].to, page_size_, 0)));
    state_.retired.push_back({.at = moves[i].from, .epoch = state_.epoch, .content = rows});
    state_.pages[keys[i]].at = moves[i].to;
  }
}

inline void Driver::reclaim(const Command& command) {
  const Epoch reached = state_.epoch - std::min<Epoch>(command.a % 3, state_.epoch);
  const auto expected =
      std::erase_if(state_.retired, [&](const Retired& each) { return each.epoch <= reached; });
  require(manager_.reclaim(reached) == static_cast<PageCount>(expected), "reclaim: another count");
  require(manager_.reclaim(reached) == 0, "reclaim: the same pages twice");
}

inline void Driver::retain(const Command& command) {
  if (!some()) return;
  const Sequence& s = state_.sequences[pick(command.a)];
  const auto full = static_cast<std::size_t>(length(s) / page_size_);
  const std::size_t count = std::min<std::size_t>(full, command.b % 4);
  manager_.allocator().retain(manager_.pages(s.id).first(count));
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = s.tokens.begin() + static_cast<std::ptrdiff_t>(i) * page_size_;
    state_.outside.push_back({.page = s.pages[i], .content = {first, first + page_size_}});
    state_.pages[s.pages[i]].outside += 1;
  }
}

inline void Driver::release(const Command& command) {
  if (state_.outside.empty()) return;
  const std::size_t at = command.a % state_.outside.size();
  const PageKey key = state_.outside[at].page;
  const PageId page = state_.pages[key].at;
  const bool last = state_.pages[key].references() == 1;
  const PageCount freed = manager_.allocator().release({&page, 1}, state_.pages[key].owner);
  require(freed == (last ? 1 : 0), "release: another number of pages");
  state_.outside.erase(state_.outside.begin() + static_cast<std::ptrdiff_t>(at));
  state_.pages[key].outside -= 1;
  drop_if_unnamed(key);
}

inline void Driver::hold(const Command& command) {
  PageAllocator& allocator = manager_.allocator();
  const auto count = static_cast<PageCount>(command.a % 4);
  if (command.op == Op::hold) {
    const bool fits = count <= available();
    require(allocator.hold(count) == (fits ? Status::ok : Status::out_of_pages), "hold: status");
    state_.held += fits ? count : 0;
  } else if (command.op == Op::forfeit) {
    const PageCount back = std::min(count, state_.held);
    allocator.forfeit(back);
    state_.held -= back;
  } else {
    std::vector<PageId> pages(static_cast<std::size_t>(count));
    const bool fits = count <= state_.held;
    const Status status = allocator.allocate({.owner = 77, .from_hold = true}, pages);
    require(status == (fits ? Status::ok : Status::out_of_pages), "allocate from hold: status");
    if (!fits) return;
    state_.held -= count;
    for (const PageId page : pages) {
      state_.outside.push_back({.page = learn(page, 77), .content = {}});
      state_.pages[state_.outside.back().page].outside = 1;
    }
  }
}

// ---- the whole ----

inline void Driver::checkpoint() {
  if (!state_.outside.empty() || !state_.pins.empty() || !state_.retired.empty() ||
      state_.held > 0) {
    refused<InvalidArgument>([&] { (void)manager_.checkpoint(); });
    return;
  }
  saved_ = Saved{.checkpoint = manager_.checkpoint(), .state = state_, .pool = pool_};
}

inline void Driver::restore() {
  if (!saved_) return;
  const std::vector<Sequence> now = state_.sequences;
  manager_.restore(saved_->checkpoint);
  require(manager_.digest() == saved_->checkpoint.digest, "restore: another digest");
  state_ = saved_->state;
  pool_ = saved_->pool;
  for (const Sequence& s : now) {
    const bool saved =
        std::ranges::find(state_.sequences, s.id, &Sequence::id) != state_.sequences.end();
    require(manager_.alive(s.id) == saved, "restore: a handle lives or dies that should not");
  }
}

template <typename Exception, typename Call>
void Driver::refused(Call&& call) {
  const std::vector<std::uint64_t> before = fingerprint();
  try {
    call();
  } catch (const Exception&) {
    require(fingerprint() == before, "a refused call changed something");
    if (!in_call_) check(false);
    return;
  }
  throw Mismatch("a call that must be refused was not");
}

inline void Driver::mistake(const Command& command) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  PageAllocator& allocator = manager_.allocator();
  const auto release = [&](std::vector<PageId> pages) {
    return [&, pages] { allocator.release(pages); };
  };
  const PageId past{static_cast<std::int32_t>(pages_)};
  switch (command.a % 4) {
    case 0:
      refused<PageError>(release({kReservedPage}));
      break;
    case 1:
      refused<PageError>(release({kNoPage}));
      break;
    case 2:
      refused<PageError>(release({past}));
      break;
    default:
      refused<InvalidArgument>([&] { allocator.forfeit(state_.held + 1); });
      break;
  }
  SeqId out;
  refused<SequenceError>([&] { (void)manager_.append({.index = 0, .generation = 0}, 1); });
  refused<InvalidArgument>([&] { (void)manager_.create({.expected_tokens = -2}, out); });
  if (!some()) return;
  const Sequence& s = state_.sequences[pick(command.b)];
  const std::vector<Growth> twice = {{s.id, length(s) + 1}, {s.id, length(s) + 2}};
  const std::vector<SeqId> ids = {s.id, s.id};
  const auto size = static_cast<std::int64_t>(s.pages.size());
  switch (command.c % 10) {
    case 0:
      refused<InvalidArgument>([&] { (void)manager_.append(s.id, -1); });
      break;
    case 1:
      refused<InvalidArgument>([&] { (void)manager_.extend(twice); });
      break;
    case 2:
      refused<InvalidArgument>([&] { (void)manager_.decode(ids); });
      break;
    case 3:
      refused<InvalidArgument>([&] { manager_.truncate(s.id, length(s) + 1); });
      break;
    case 4:
      refused<InvalidArgument>([&] { manager_.commit(s.id, capacity(s) - length(s) + 1); });
      break;
    case 5:
      refused<InvalidArgument>([&] { (void)manager_.fork(s.id, length(s) + 1, out); });
      break;
    case 6:
      refused<InvalidArgument>([&] { manager_.pin(s.id, size, 1); });
      break;
    case 7:
      require(manager_.append(s.id, kMost) == Status::out_of_pages, "too many fit");
      break;
    case 8:
      require(manager_.reserve(s.id, kMost) == Status::out_of_pages, "too many fit");
      break;
    default:
      if (s.pages.empty()) break;
      const PageId page = state_.pages[s.pages[0]].at;
      refused<PageError>(release({page, kReservedPage}));
      refused<PageError>([&] { (void)manager_.create({.prefix = std::vector{page, page}}, out); });
      refused<PageError>([&] { allocator.release({&page, 1}, OwnerTag{0xdead}); });
      const PageMove move{page, page};
      refused<PageError>([&] { manager_.apply({&move, 1}, {}, state_.epoch); });
  }
}

inline std::vector<std::uint64_t> Driver::fingerprint() const {
  std::vector<std::uint64_t> result = {manager_.digest(),
                                       static_cast<std::uint64_t>(manager_.available_pages())};
  for (const Sequence& s : state_.sequences) {
    result.push_back(static_cast<std::uint64_t>(manager_.length(s.id)));
    for (const PageId page : manager_.pages(s.id)) {
      result.push_back(static_cast<std::uint64_t>(index_of(page)));
    }
  }
  return result;
}

inline void Driver::check(bool contents) const {
  std::vector<PageId> outside;
  for (const Outside& each : state_.outside) outside.push_back(state_.pages.at(each.page).at);
  manager_.check(outside);
  require(manager_.available_pages() == available(), "another number of available pages");
  require(manager_.allocator().held() == state_.held, "another number of held pages");
  require(manager_.sequences() == static_cast<std::int64_t>(state_.sequences.size()),
          "another number of sequences");
  const FreeSet& set = manager_.allocator().set();
  for (const auto& [key, page] : state_.pages) {
    require(set.references(page.at) == page.references(), "another reference count");
    require(set.pins(page.at) == page.pins, "another number of pins");
    require(set.owner(page.at) == page.owner, "another owner");
  }
  for (const Sequence& s : state_.sequences) {
    require(manager_.length(s.id) == length(s), "another length");
    require(manager_.owner(s.id) == s.owner, "another owner of a sequence");
    const auto table = manager_.pages(s.id);
    require(table.size() == s.pages.size(), "another table size");
    for (std::size_t i = 0; i < table.size(); ++i) {
      require(table[i] == state_.pages.at(s.pages[i]).at, "a page lies elsewhere");
    }
    for (TokenCount t = 0; contents && t < length(s); ++t) {
      require(slot(manager_.slot(s.id, t)) == s.tokens[static_cast<std::size_t>(t)],
              "a token was overwritten");
    }
  }
  for (const Retired& each : state_.retired) {
    require(set.state(each.at) == PageState::retired, "a retired page is not retired");
    require(content(each.at) == each.content, "a retired page was written");
  }
  for (const Outside& each : state_.outside) {
    require(each.content.empty() || content(state_.pages.at(each.page).at) == each.content,
            "a page held outside was written");
  }
}

inline void Driver::step(const Command& command) {
  switch (command.op) {
    case Op::create:
      return create(command.a, command.b, false);
    case Op::create_with_prefix:
      return create(command.a, command.b, true);
    case Op::append:
      return extend(command, false);
    case Op::append_then_move:
      return extend(command, true);
    case Op::extend:
      return extend(command, false);
    case Op::decode:
      return decode(command);
    case Op::reserve:
      return reserve(command);
    case Op::commit:
      return commit(command);
    case Op::trim:
      return truncate(command, true);
    case Op::truncate:
      return truncate(command, false);
    case Op::fork:
      return fork(command);
    case Op::finish:
      return finish(command);
    case Op::pin:
      return pin(command);
    case Op::unpin:
      return unpin(command);
    case Op::move:
      return move(command);
    case Op::reclaim:
      return reclaim(command);
    case Op::checkpoint:
      return checkpoint();
    case Op::restore:
      return restore();
    case Op::hold:
    case Op::forfeit:
    case Op::allocate_from_hold:
      return hold(command);
    case Op::retain:
      return retain(command);
    case Op::release:
      return release(command);
    case Op::mistake:
      return mistake(command);
  }
}

}  // namespace packstone::test
