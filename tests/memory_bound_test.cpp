// SPDX-License-Identifier: Apache-2.0
// At most 16 bytes a page beside the bitmaps, counted by a replaced operator new.
#include <packstone/page_allocator.hpp>

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

std::atomic<std::int64_t> bytes_in_use{0};

}  // namespace

// Not inlined: GCC 12 would take the pair of a seen `new` and an unseen `free` for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  bytes_in_use += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  bytes_in_use -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept {
  operator delete(memory);
}

namespace packstone {
namespace {

TEST(MemoryBound, APageCostsAtMost16BytesBesideTheBitmaps) {
  constexpr PageCount kPages = 1 << 20;
  // A bitmap with its summaries is (1 + 1/63) bits a page. Two say the state of a page; `run` has
  // one by head, one by tail, and one for each power of two of run length that has occurred.
  const std::map<std::string_view, std::int64_t> bitmaps = {
      {"fifo", 2}, {"lifo", 2}, {"lowest", 2 + 1}, {"sorted", 2 + 2}, {"run", 2 + 2 + 21}};
  for (const std::string_view policy : placement_names()) {
    const std::int64_t before = bytes_in_use;
    PageAllocator allocator({.pages = kPages, .placement = {.policy = std::string(policy)}});
    std::mt19937_64 random(1);
    std::vector<std::vector<PageId>> live;
    std::int64_t own = 0;
    for (int step = 0; step < 4000; ++step) {
      std::vector<PageId> extent(1 + random() % 1000);
      if (allocator.allocate({.owner = 1}, extent) == Status::ok) {
        live.push_back(std::move(extent));
      }
      if (step % 2 == 0) continue;
      std::swap(live[random() % live.size()], live.back());
      allocator.release(live.back());
      live.pop_back();
    }
    // With what the first move has the lists keep.
    const PageId from = live.back().front();
    std::int32_t to = 1;
    while (allocator.set().state(PageId{to}) != PageState::free) ++to;
    allocator.move({from, PageId{to}}, 1);
    allocator.reclaim(1);
    for (const auto& extent : live)
      own += static_cast<std::int64_t>(malloc_usable_size(const_cast<PageId*>(extent.data())));
    own += static_cast<std::int64_t>(live.capacity() * sizeof(live[0]));
    const std::int64_t used = bytes_in_use - before - own;
    const std::int64_t allowed =
        16 * kPages + bitmaps.at(policy) * (kPages / 8 * 65 / 64) + 64 * 1024;
    EXPECT_LE(used, allowed) << policy;
    RecordProperty(std::string(policy), std::to_string(used));
    std::printf("%-7.*s %.2f bytes a page, bitmaps included\n", static_cast<int>(policy.size()),
                policy.data(), static_cast<double>(used) / static_cast<double>(kPages));
  }
}

}  // namespace
}  // namespace packstone
