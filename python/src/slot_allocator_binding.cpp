// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

namespace packstone::python {
namespace {

using OutSlots = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MaybeSlots = std::optional<Int64s>;

MaybeSlots to_slots(std::optional<SlotAllocator::Slots>&& slots) {
  if (!slots) return std::nullopt;
  return to_array(std::move(*slots));
}

/// As Ints, but written to.
using MutableInts = nb::ndarray<nb::ndim<1>, nb::device::cpu>;

IntView view_of(const MutableInts& array) {
  const bool wide = array.dtype() == nb::dtype<std::int64_t>();
  if (!wide && array.dtype() != nb::dtype<std::int32_t>()) {
    throw InvalidArgument("an array of slots is neither int32 nor int64");
  }
  return {.data = array.data(),
          .count = static_cast<std::int64_t>(array.shape(0)),
          .stride = array.stride(0),
          .wide = wide};
}

template <typename T>
void rename_slots(const MutableInts& array, const std::vector<std::int32_t>& to,
                  std::int64_t size) {
  T* data = static_cast<T*>(array.data());
  for (std::size_t i = 0; i < array.shape(0); ++i) {
    T& slot = data[static_cast<std::int64_t>(i) * array.stride(0)];
    const std::int32_t page = to[static_cast<std::size_t>(slot / size)];
    if (page != 0) slot = static_cast<T>(page * size + slot % size);
  }
}

/// (tgt, src) slots of the moves; the arrays are rewritten.
nb::tuple defrag(SlotAllocator& self, const std::vector<MutableInts>& tables,
                 const std::vector<MutableInts>& values, PageCount moves_max, Epoch epoch) {
  std::vector<IntView> table_views;
  std::vector<IntView> value_views;
  for (const MutableInts& each : tables) table_views.push_back(view_of(each));
  for (const MutableInts& each : values) value_views.push_back(view_of(each));
  const std::vector<PageMove> moves = self.defrag(table_views, value_views, moves_max, epoch);
  std::vector<std::int32_t> to(static_cast<std::size_t>(self.pages()) + 1, 0);
  std::vector<std::int64_t> sources;
  std::vector<std::int64_t> targets;
  for (const PageMove& move : moves) {
    to[static_cast<std::size_t>(index_of(move.from))] = index_of(move.to);
    for (std::int64_t i = 0; i < self.page_size(); ++i) {
      sources.push_back(slot_of(move.from, self.page_size(), i));
      targets.push_back(slot_of(move.to, self.page_size(), i));
    }
  }
  for (const std::vector<MutableInts>& arrays : {tables, values}) {
    for (const MutableInts& array : arrays) {
      if (view_of(array).wide) {
        rename_slots<std::int64_t>(array, to, self.page_size());
      } else {
        rename_slots<std::int32_t>(array, to, self.page_size());
      }
    }
  }
  return nb::make_tuple(to_array(std::move(targets)), to_array(std::move(sources)));
}

}  // namespace

void bind_slot_allocator(nb::module_& m) {
  nb::class_<SlotAllocator>(
      m, "SlotAllocator",
      "Token slots over pages: the engine of packstone.sglang.\n\n"
      "Slots are int64, page * page_size + offset; page 0 is reserved. alloc, alloc_extend and\n"
      "alloc_decode return None on shortage and then consume nothing. Arrays are int32 or int64\n"
      "[n], of any stride, NumPy or DLPack, and are not copied.")
      .def(nb::init<PageCount, std::int64_t, const std::string&>(), nb::arg("pages"),
           nb::arg("page_size"), nb::arg("policy"),
           "pages: usable ones, page 0 not counted. Raises InvalidArgument.")
      .def_prop_ro("available_tokens", &SlotAllocator::available_tokens)
      .def_prop_ro("pages", &SlotAllocator::pages)
      .def_prop_ro("page_size", &SlotAllocator::page_size)
      .def(
          "alloc",
          [](SlotAllocator& self, std::int64_t need_size) {
            return to_slots(self.alloc(need_size));
          },
          nb::arg("need_size"), "int64 [need_size // page_size * page_size], or None.")
      .def(
          "alloc_into",
          [](SlotAllocator& self, const OutSlots& out) {
            return self.alloc({out.data(), out.shape(0)});
          },
          nb::arg("out"),
          "As alloc, to int64 [n] in host memory, n a multiple of the page size; False on "
          "shortage.")
      .def(
          "alloc_extend",
          [](SlotAllocator& self, const Ints& prefix, const Ints& seq, const Ints& last,
             std::int64_t tokens) {
            return to_slots(self.extend(int_view(prefix, "prefix_lens"), int_view(seq, "seq_lens"),
                                        int_view(last, "last_loc"), tokens));
          },
          nb::arg("prefix_lens"), nb::arg("seq_lens"), nb::arg("last_loc"),
          nb::arg("extend_num_tokens"), "int64 [extend_num_tokens], or None.")
      .def(
          "alloc_decode",
          [](SlotAllocator& self, const Ints& seq, const Ints& last) {
            return to_slots(self.decode(int_view(seq, "seq_lens"), int_view(last, "last_loc")));
          },
          nb::arg("seq_lens"), nb::arg("last_loc"), "int64 [batch], or None.")
      .def(
          "free",
          [](SlotAllocator& self, const Ints& slots) { self.free(int_view(slots, "free_index")); },
          nb::arg("slots"),
          "Frees the pages of these slots, each once. Raises PageError for a page that is not "
          "live.")
      .def(
          "_free_at",
          [](SlotAllocator& self, std::uintptr_t address, std::int64_t count) {
            if (count < 0 || (count > 0 && address == 0)) {
              throw InvalidArgument("free_at of " + std::to_string(count) + " slots");
            }
            // The caller holds the tensor: that is what an address means in Python.
            self.free({.data = reinterpret_cast<const void*>(address), .count = count});  // NOLINT
          },
          nb::arg("address"), nb::arg("count"),
          "free of int64 [count] that lie densely in host memory, as `data_ptr()` names them.")
      .def(
          "free_segment",
          [](SlotAllocator& self, const Ints& slots, std::int64_t start) {
            self.free_segment(int_view(slots, "free_index"), start);
          },
          nb::arg("slots"), nb::arg("start_pos"))
      .def(
          "representatives",
          [](const SlotAllocator& self, const Ints& slots, std::int64_t start) {
            return to_array(self.representatives(int_view(slots, "free_index"), start));
          },
          nb::arg("slots"), nb::arg("start_pos"), "int64: the first slot of each page.")
      .def("defrag", &defrag, nb::arg("tables"), nb::arg("values"), nb::arg("moves_max"),
           nb::arg("epoch"), "See packstone.sglang: (tgt_loc, src_loc), int64.")
      .def("reclaim", &SlotAllocator::reclaim, nb::arg("reached"))
      .def("merge_and_sort", &SlotAllocator::merge_and_sort)
      .def("clear", &SlotAllocator::clear)
      .def("check", &SlotAllocator::check, nb::call_guard<nb::gil_scoped_release>(),
           "O(pool): raises InvariantError.")
      .def(
          "free_list", [](SlotAllocator& self) { return to_array(self.free_list()); },
          "int64: free pages in the order in which they will be handed out. O(pool)")
      .def(
          "release_list", [](const SlotAllocator& self) { return to_array(self.release_list()); },
          "int64: freed pages that `sorted` has not merged yet.")
      .def(
          "restore",
          [](SlotAllocator& self, const Ints& free, const Ints& released) {
            self.restore(int_view(free, "free_pages"), int_view(released, "release_pages"));
          },
          nb::arg("free_pages"), nb::arg("release_pages"),
          "Back to these lists; raises InvalidArgument when a page was freed since. O(pool)");
}

}  // namespace packstone::python
