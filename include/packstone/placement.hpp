// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Placement policies: which free pages an allocation gets.
///
/// - `fifo`: takes the head of a list. Page size 1: freed pages are appended, in the order given;
///   larger: the ascending pages of each call are prepended (SGLang's default).
/// - `lifo`: takes the head of a list; freed pages are pushed there, last one first out.
/// - `sorted`: takes ascending pages; freed ones are set aside, and merged when a batch could run
///   short (SGLang's need_sort).
/// - `lowest`: takes the lowest addresses (first fit); freed pages go back at once.
/// - `run`: takes the owner's room, then the pages behind its last one, then a best-fit run; freed
///   pages join their free neighbours.
///
/// `fifo` and `sorted` hand out the ids of SGLang's TokenToKVPoolAllocator and
/// PagedTokenToKVPoolAllocator (need_sort off and on), in the same order, for the same stream of
/// calls. That contract has `sorted` merge also when the batch is refused for want of pages.
///
/// A policy owns the order of the free pages and the room kept ahead of sequences; it moves pages
/// between *free* and *reserved* in the FreeSet. It decides from the stream of calls alone: no
/// clock, pointer or hash order.

#include <packstone/free_set.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace packstone {

/// A place for a policy to remember room by: a sequence's index, or kNoStream.
using StreamIndex = std::uint32_t;
inline constexpr StreamIndex kNoStream = 0xffffffffU;

/// What one batched call will ask for in all, told before the first `take` of the batch.
struct BatchDemand {
  PageCount pages{0};         ///< pages that the takes of this batch add up to
  TokenCount tokens{0};       ///< tokens by which the batch grows
  std::int64_t sequences{0};  ///< sequences in the batch
  bool decode{false};         ///< one token each
};

struct TakeRequest {
  StreamIndex stream{kNoStream};  ///< whose room to use and to renew; small numbers
  PageId after{kNoPage};          ///< the page to continue, or kNoPage for a new sequence
  PageCount expected{-1};  ///< pages the owner will ask for after these; -1 when it cannot tell
};

class Placement {
 public:
  virtual ~Placement() = default;
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Free pages, room included: what `take` can hand out.
  [[nodiscard]] PageCount available() const {
    return set_.count(PageState::free) + set_.count(PageState::reserved);
  }
  /// Tells of a batch before its takes, also of one that turns out to be short of pages.
  virtual void prepare(const BatchDemand& demand);
  /// Fills `out` with distinct free or reserved pages, which the caller makes live at once.
  /// Requires out.size() <= available().
  virtual void take(const TakeRequest& request, std::span<PageId> out) = 0;
  /// Takes this very page, which is free (the destination of a move).
  virtual void take_exact(PageId page) = 0;
  /// Pages that have just become free, in the order in which the caller released them.
  virtual void give(std::span<const PageId> pages) = 0;
  /// The stream has ended: its room goes back. Called before the `give` of its pages.
  virtual void end(StreamIndex stream);
  /// Forgets the order and the room, and lists every free page of the set, ascending.
  virtual void rebuild() = 0;
  /// O(pool): the policy's own lists agree with the FreeSet; throws InvariantError.
  virtual void check() const = 0;

 protected:
  explicit Placement(FreeSet& set) : set_(set) {}
  FreeSet& set_;
};

struct PlacementOptions {
  std::string policy{"run"};
  std::int64_t page_size{1};
};

/// Names that `make_placement` knows, in the order of the table above.
[[nodiscard]] std::span<const std::string_view> placement_names();

/// The policy of that name over `set`, which must outlive it. Throws InvalidArgument for an unknown
/// name.
[[nodiscard]] std::unique_ptr<Placement> make_placement(FreeSet& set,
                                                        const PlacementOptions& options);

}  // namespace packstone
