// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// `run`: keeps each sequence in few, long runs.
///
/// A page is found in this order:
///   1. in the room kept ahead of the stream, which starts right behind its last page;
///   2. in the free run behind its last page;
///   3. in a best-fit run for what is asked and room to grow, else for what is asked;
///   4. in the longest runs there are, so that the small holes are filled last;
///   5. in the room of others, half of it at a time, round robin: room is free memory on loan.
///
/// Room is what the owner expects to ask for, and room for tokens to come: half of an even share of
/// the free pages among the streams, at most kGrowthTokens. So it shrinks by itself as the pool
/// fills.
///
/// It is preallocation as in file systems (ext4's mballoc reserves ahead of a growing file), which
/// is what keeps decode adjacency: without it the sequences of a batch interleave slot by slot.

#include "run_index.hpp"

#include <packstone/placement.hpp>

#include <vector>

namespace packstone {

class RunPlacement final : public Placement {
 public:
  RunPlacement(FreeSet& set, std::int64_t page_size);

  [[nodiscard]] std::string_view name() const override { return "run"; }
  void take(const TakeRequest& request, std::span<PageId> out) override;
  void take_exact(PageId page) override;
  void give(std::span<const PageId> pages) override;
  void end(StreamIndex stream) override;
  void rebuild() override;
  void check() const override;

 private:
  static constexpr std::int64_t kGrowthTokens = 1024;

  struct Room {
    PageRun run{};
    std::uint32_t place{0};  // index in holders_, when run.count > 0
  };

  [[nodiscard]] std::size_t take_room(const TakeRequest& request, std::span<PageId> out);
  /// Takes from the front of a free run; what is left of it becomes room if that was the last
  /// piece.
  [[nodiscard]] std::size_t take_run(const TakeRequest& request, PageRun run, PageCount room,
                                     std::span<PageId> out);
  [[nodiscard]] PageCount growth_pages() const;
  void set_room(StreamIndex stream, PageRun run);
  void drop_room(StreamIndex stream);
  void forget_holder(const Room& room);
  void shrink_some_room();

  RunIndex free_;
  PageCount growth_max_;
  std::vector<Room> rooms_;  // [stream]
  std::vector<StreamIndex>
      holders_;                 // streams with room, in no order that matters beyond the calls
  std::size_t next_holder_{0};  // round robin
};

}  // namespace packstone
