// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A naive oracle of KvManager and a driver that holds the two side by side.
///
/// The oracle knows nothing of placement. It keeps *logical* pages with counts, learns from the
/// manager where each lies, and insists that a logical page stays there until a move. Each token is
/// a unique value written into a fake pool at the slot that the manager names, with copies on write
/// and moves carried out on that pool, so two sequences that alias show as a wrong value. The same
/// driver serves the random, the exhaustive and the fuzz test; a mismatch throws `Mismatch`.

#include <packstone/kv_manager.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace packstone::test {

class Mismatch : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Mismatch(what);
}

enum class Op : std::uint8_t {
  create,
  create_with_prefix,
  append,
  extend,
  decode,
  reserve,
  commit,
  trim,
  truncate,
  fork,
  finish,
  pin,
  unpin,
  move,
  append_then_move,  // the copies on write are taken after the moves
  reclaim,
  checkpoint,
  restore,
  hold,
  forfeit,
  allocate_from_hold,
  retain,
  release,
  mistake,
};
inline constexpr std::uint32_t kOps = 24;

/// An operation and three numbers that choose its operands, modulo what there is.
struct Command {
  Op op;
  std::uint32_t a;
  std::uint32_t b;
  std::uint32_t c;
};

class Driver {
 public:
  explicit Driver(const KvManagerOptions& options)
      : pages_(options.pages),
        page_size_(options.page_size),
        manager_(options),
        pool_(static_cast<std::size_t>(options.pages * options.page_size), 0) {}

  [[nodiscard]] const KvManager& manager() const { return manager_; }

  void step(const Command& command);
  /// Everything, also what only O(pool) work finds. `contents` off spares the look at every token.
  void check(bool contents = true) const;
  /// What two managers that saw the same calls must agree about.
  [[nodiscard]] std::vector<std::uint64_t> fingerprint() const;

 private:
  using Value = std::uint64_t;
  struct Page {
    PageId at{kNoPage};
    OwnerTag owner{0};
    std::int32_t tables{0};
    std::int32_t outside{0};
    std::int32_t pins{0};
    [[nodiscard]] std::int32_t references() const { return tables + outside + pins; }
  };
  using PageKey = int;
  struct Sequence {
    SeqId id;
    OwnerTag owner{0};
    std::vector<PageKey> pages;
    std::vector<Value> tokens;
    std::vector<Value> drafts;  // written at the positions behind the last token
  };
  struct Outside {
    PageKey page;
    std::vector<Value> content;  // empty: never written
  };
  struct Retired {
    PageId at;
    Epoch epoch;
    std::vector<Value> content;
  };
  /// All that a checkpoint must bring back.
  struct State {
    std::map<PageKey, Page> pages;
    std::vector<Sequence> sequences;
    std::vector<Outside> outside;
    std::vector<PageKey> pins;
    std::vector<Retired> retired;
    PageCount held{0};
    Epoch epoch{1};
  };
  struct Growing {
    std::size_t sequence;
    TokenCount length;  // to come to
  };
  struct Forecast {
    PageCount pages{0};
    std::vector<bool> copies;  // [batch]
  };

  [[nodiscard]] PageCount available() const {
    return pages_ - 1 - static_cast<PageCount>(state_.pages.size() + state_.retired.size()) -
           state_.held;
  }
  [[nodiscard]] TokenCount length(const Sequence& s) const {
    return static_cast<TokenCount>(s.tokens.size());
  }
  [[nodiscard]] TokenCount capacity(const Sequence& s) const {
    return static_cast<TokenCount>(s.pages.size()) * page_size_;
  }
  [[nodiscard]] bool some() const { return !state_.sequences.empty(); }
  [[nodiscard]] std::size_t pick(std::uint32_t number) const {
    return number % state_.sequences.size();
  }
  Value& slot(SlotId slot) { return pool_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] const Value& slot(SlotId slot) const {
    return pool_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] std::vector<Value> content(PageId page) const;

  void drop_if_unnamed(PageKey key) {
    if (state_.pages.at(key).references() == 0) state_.pages.erase(key);
  }
  PageKey learn(PageId at, OwnerTag owner);
  [[nodiscard]] Forecast forecast(const std::vector<Growing>& batch) const;
  void grown(const std::vector<Growing>& batch, const Forecast& forecast);
  void make_copies();
  void write_tokens(Sequence& s, TokenCount to);
  void cut(Sequence& s, std::size_t pages);

  void create(std::uint32_t expected, std::uint32_t owner, bool with_prefix);
  void extend(const Command& command, bool move_before_copies);
  void decode(const Command& command);
  void reserve(const Command& command);
  void commit(const Command& command);
  void truncate(const Command& command, bool only_trim);
  void fork(const Command& command);
  void finish(const Command& command);
  void pin(const Command& command);
  void unpin(const Command& command);
  void move(const Command& command);
  void reclaim(const Command& command);
  void checkpoint();
  void restore();
  void hold(const Command& command);
  void retain(const Command& command);
  void release(const Command& command);
  void mistake(const Command& command);
  template <typename Exception, typename Call>
  void refused(Call&& call);

  PageCount pages_;
  std::int64_t page_size_;
  KvManager manager_;
  std::vector<Value> pool_;
  State state_;
  PageKey next_key_{0};
  Value next_value_{1};
  bool in_call_{false};  // the manager has grown a sequence whose tokens are still to be written
  struct Saved {
    KvManager::Checkpoint checkpoint;
    State state;
    std::vector<Value> pool;
  };
  std::optional<Saved> saved_;
};

}  // namespace packstone::test

#include "model_operations.hpp"
#include "model_whole.hpp"
