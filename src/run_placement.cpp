// SPDX-License-Identifier: Apache-2.0
#include "run_placement.hpp"

#include <algorithm>
#include <string>

namespace packstone {

RunPlacement::RunPlacement(FreeSet& set, std::int64_t page_size)
    : Placement(set), free_(set.pages()), growth_max_(pages_for(kGrowthTokens, page_size)) {
  RunPlacement::rebuild();
}

PageCount RunPlacement::growth_pages() const {
  const auto streams = static_cast<PageCount>(holders_.size()) + 1;
  return std::min(growth_max_, free_.pages() / streams / 2);
}

void RunPlacement::set_room(StreamIndex stream, PageRun run) {
  if (stream >= rooms_.size()) rooms_.resize(std::size_t{stream} + 1);
  Room& room = rooms_[stream];
  PACKSTONE_ASSERT(room.run.count == 0);
  set_.reserve(run);
  room = {.run = run, .place = static_cast<std::uint32_t>(holders_.size())};
  holders_.push_back(stream);
}

void RunPlacement::forget_holder(const Room& room) {
  holders_[room.place] = holders_.back();
  rooms_[holders_.back()].place = room.place;
  holders_.pop_back();
}

void RunPlacement::drop_room(StreamIndex stream) {
  if (stream >= rooms_.size() || rooms_[stream].run.count == 0) return;
  Room& room = rooms_[stream];
  set_.forfeit(room.run);
  free_.insert(room.run);
  forget_holder(room);
  room.run.count = 0;
}

void RunPlacement::shrink_some_room() {
  PACKSTONE_ASSERT(!holders_.empty());
  if (next_holder_ >= holders_.size()) next_holder_ = 0;
  Room& room = rooms_[holders_[next_holder_++]];
  const std::int32_t back = (room.run.count + 1) / 2;
  const PageRun upper{page_after(room.run.first, room.run.count - back), back};
  set_.forfeit(upper);
  free_.insert(upper);
  room.run.count -= back;
  if (room.run.count == 0) forget_holder(room);
}

std::size_t RunPlacement::take_room(const TakeRequest& request, std::span<PageId> out) {
  if (request.stream >= rooms_.size()) return 0;
  Room& room = rooms_[request.stream];
  if (room.run.count == 0) return 0;
  if (request.after == kNoPage || room.run.first != page_after(request.after)) {
    drop_room(request.stream);
    return 0;
  }
  const auto count = std::min<std::int32_t>(room.run.count, static_cast<std::int32_t>(out.size()));
  for (std::int32_t i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] = page_after(room.run.first, i);
  }
  room.run = {page_after(room.run.first, count), room.run.count - count};
  if (room.run.count == 0) forget_holder(room);
  return static_cast<std::size_t>(count);
}

std::size_t RunPlacement::take_run(const TakeRequest& request, PageRun run, PageCount room,
                                   std::span<PageId> out) {
  const auto count = std::min<std::int32_t>(run.count, static_cast<std::int32_t>(out.size()));
  const bool last = static_cast<std::size_t>(count) == out.size();
  const auto rest =
      last ? static_cast<std::int32_t>(std::min<PageCount>(run.count - count, room)) : 0;
  free_.take_front(run, count + rest);
  for (std::int32_t i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] = page_after(run.first, i);
  }
  if (rest > 0) set_room(request.stream, {page_after(run.first, count), rest});
  return static_cast<std::size_t>(count);
}

void RunPlacement::take(const TakeRequest& request, std::span<PageId> out) {
  std::size_t filled = take_room(request, out);
  if (filled == out.size()) return;

  PageCount room = 0;
  if (request.stream != kNoStream) {
    room = std::clamp<PageCount>(request.expected, 0, set_.pages()) + growth_pages();
  }
  const PageId last = filled > 0 ? out[filled - 1] : request.after;
  if (last != kNoPage) {
    if (const PageRun behind = free_.at(page_after(last)); behind.count > 0) {
      filled += take_run(request, behind, room, out.subspan(filled));
    }
  }
  while (filled < out.size()) {
    const auto lacking = static_cast<PageCount>(out.size() - filled);
    PageRun run = free_.best_fit(lacking + room);
    if (run.count == 0) run = free_.best_fit(lacking);
    if (run.count == 0) run = free_.longest();
    if (run.count == 0) {
      shrink_some_room();
      continue;
    }
    filled += take_run(request, run, room, out.subspan(filled));
  }
}

void RunPlacement::take_exact(PageId page) {
  free_.take_exact(page);
}

void RunPlacement::give(std::span<const PageId> pages) {
  if (pages.size() == 1) set_.prefetch(pages[0]);  // mostly the next to be taken
  for (std::size_t i = 0; i < pages.size();) {
    std::int32_t count = 1;
    while (i + static_cast<std::size_t>(count) < pages.size() &&
           pages[i + static_cast<std::size_t>(count)] == page_after(pages[i], count)) {
      count += 1;
    }
    free_.insert({pages[i], count});
    i += static_cast<std::size_t>(count);
  }
}

void RunPlacement::end(StreamIndex stream) {
  drop_room(stream);
}

void RunPlacement::rebuild() {
  for (const StreamIndex stream : holders_) set_.forfeit(rooms_[stream].run);
  rooms_.clear();
  holders_.clear();
  next_holder_ = 0;
  free_ = RunIndex(set_.pages());
  for (std::int32_t i = 1; i < set_.pages(); ++i) {
    std::int32_t count = 0;
    while (i + count < set_.pages() && set_.state(PageId{i + count}) == PageState::free) ++count;
    if (count > 0) free_.insert({PageId{i}, count});
    i += count;
  }
}

void RunPlacement::check() const {
  PageCount listed = 0;
  std::int32_t previous_end = 0;
  for (const PageRun& run : free_.runs()) {
    if (index_of(run.first) <= previous_end && previous_end > 0) {
      throw InvariantError("free run at page " + std::to_string(index_of(run.first)) +
                           " touches or overlaps the one before it");
    }
    for (std::int32_t i = 0; i < run.count; ++i) {
      if (set_.state(page_after(run.first, i)) != PageState::free) {
        throw InvariantError("page " + std::to_string(index_of(run.first) + i) +
                             " is in a free run but is not free");
      }
    }
    previous_end = index_of(run.first) + run.count;
    listed += run.count;
  }
  PageCount room = 0;
  for (const StreamIndex stream : holders_) {
    const PageRun run = rooms_[stream].run;
    room += run.count;
    for (std::int32_t i = 0; i < run.count; ++i) {
      if (set_.state(page_after(run.first, i)) != PageState::reserved) {
        throw InvariantError("page " + std::to_string(index_of(run.first) + i) +
                             " is in the room of stream " + std::to_string(stream) +
                             " but is not reserved");
      }
    }
  }
  if (listed != set_.count(PageState::free) || room != set_.count(PageState::reserved)) {
    throw InvariantError("free runs and rooms do not add up to the free and reserved pages");
  }
}

}  // namespace packstone
