// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The hot path of the SGLang drop-in: token slots in and out, over a PageAllocator.
///
/// Slots are int64, `page * page_size + offset`; page 0 is never handed out. With the policies
/// `fifo` and `sorted` the ids are those of SGLang's TokenToKVPoolAllocator (page size 1) and
/// PagedTokenToKVPoolAllocator, need_sort off and on, in the same order for the same calls.

#include <packstone/page_allocator.hpp>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace packstone::python {

/// One dimension of int32 or int64 in host memory, of any stride.
struct IntView {
  const void* data{nullptr};
  std::int64_t count{0};
  std::int64_t stride{1};  // elements
  bool wide{true};         // int64

  [[nodiscard]] std::int64_t operator[](std::int64_t i) const {
    const std::int64_t at = i * stride;
    return wide ? static_cast<const std::int64_t*>(data)[at]
                : std::int64_t{static_cast<const std::int32_t*>(data)[at]};
  }
};

/// Leaves new elements as they are: slots are written once, not zeroed first.
template <typename T>
struct Unwritten : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Unwritten<U>;
  };
  template <typename U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
  }
};

class SlotAllocator {
 public:
  using Slots = std::vector<std::int64_t, Unwritten<std::int64_t>>;

  /// @param pages  usable ones: the pool has one more, the reserved page 0
  SlotAllocator(PageCount pages, std::int64_t page_size, const std::string& policy);

  [[nodiscard]] std::int64_t available_tokens() const {
    return allocator_.available() * page_size_;
  }
  [[nodiscard]] std::int64_t page_size() const { return page_size_; }
  [[nodiscard]] PageCount pages() const { return allocator_.set().pages() - 1; }

  /// need_size / page_size whole pages. None on shortage, and then nothing is consumed.
  std::optional<Slots> alloc(std::int64_t need_size);
  /// The same to memory of the caller: out.size() is a multiple of the page size. False on
  /// shortage.
  bool alloc(std::span<std::int64_t> out);
  /// Row i grows from prefix[i] to seq[i] tokens behind slot last[i] (-1: it has none); slots in
  /// batch order. Throws InvalidArgument when the rows do not add up to `tokens`.
  std::optional<Slots> extend(const IntView& prefix, const IntView& seq, const IntView& last,
                              std::int64_t tokens);
  /// One token for each row, whose length seq[i] already counts it.
  std::optional<Slots> decode(const IntView& seq, const IntView& last);

  /// The pages of these slots, each once however many of its slots are named.
  void free(const IntView& slots);
  /// Slots of consecutive tokens of one row from token `start`: each page by its first slot.
  [[nodiscard]] Slots representatives(const IntView& slots, std::int64_t start) const;
  void free_segment(const IntView& slots, std::int64_t start);

  void merge_and_sort();
  void clear();
  void check() const;

  /// The order in which free pages will be handed out, without those set aside by `sorted`. O(pool)
  [[nodiscard]] Slots free_list();
  /// Freed pages that `sorted` has not merged yet.
  [[nodiscard]] Slots release_list() const;
  /// Goes back to these lists. Pages allocated since are free again; throws InvalidArgument when a
  /// page that is free now is in neither list. O(pool)
  void restore(const IntView& free, const IntView& released);

  /// Plans and makes moves that straighten the tables.
  /// @param tables  slots of consecutive tokens of one row each, from a page boundary on
  /// @param values  other arrays that name live slots (of tree nodes)
  /// Pages that neither names stay where they are. The caller renames the slots of `from` pages in
  /// every array that names them. Sources are free again after `reclaim(epoch)`.
  std::vector<PageMove> defrag(std::span<const IntView> tables, std::span<const IntView> values,
                               PageCount moves_max, Epoch epoch);
  PageCount reclaim(Epoch reached);

 private:
  [[nodiscard]] bool sorts() const { return policy_ == Policy::sorted; }
  /// Mirrors when the sorted policy merges what was set aside.
  void note_demand(PageCount estimate);
  void release(std::span<const PageId> pages);
  void list_in_order(std::span<const PageId> pages);
  [[nodiscard]] PageId page_of(std::int64_t slot) const;
  /// The view itself where it is dense and int64, else a copy that lasts until the next call.
  [[nodiscard]] std::span<const std::int64_t> dense(const IntView& view);
  void append_page(Slots& out, PageId page, std::int64_t count) const;
  /// Whether so many pages are there; then scratch_ has them.
  bool take_pages(PageCount pages);

  enum class Policy : std::uint8_t { fifo, lifo, sorted, other };
  std::int64_t page_size_;
  int shift_{-1};  // log2 of page_size, or -1
  Policy policy_;
  PageAllocator allocator_;
  std::vector<PageId> released_;  // of the sorted policy
  std::vector<PageId> scratch_;
  std::vector<std::int64_t> gathered_;
};

}  // namespace packstone::python
