// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

#include <packstone/page_allocator.hpp>

namespace packstone::python {
namespace {

nb::dict counts(const FreeSet& set) {
  nb::dict result;
  for (const PageState state :
       {PageState::free, PageState::reserved, PageState::live, PageState::retired}) {
    result[to_string(state)] = set.count(state);
  }
  return result;
}

}  // namespace

void bind_page_allocator(nb::module_& m) {
  nb::class_<PageAllocator>(
      m, "PageAllocator",
      "Pages of a pool under a placement policy, for a server that keeps its own tables.\n\n"
      "Page ids are int32; page 0 is reserved and never handed out. Not thread-safe.")
      .def(
          "__init__",
          [](PageAllocator* self, PageCount pages, std::int64_t page_size,
             const std::string& policy) {
            new (self) PageAllocator(
                {.pages = pages, .placement = {.policy = policy, .page_size = page_size}});
          },
          nb::arg("pages"), nb::kw_only(), nb::arg("page_size") = 1, nb::arg("policy") = "run",
          "pages: of the pool, page 0 included. policy: fifo, lifo, sorted, lowest or run.\n"
          "Raises InvalidArgument.")
      .def_prop_ro("available", &PageAllocator::available, "Pages that can be had now.")
      .def_prop_ro(
          "pages", [](const PageAllocator& self) { return self.set().pages(); },
          "Pages of the pool, page 0 included.")
      .def_prop_ro(
          "counts", [](const PageAllocator& self) { return counts(self.set()); },
          "Pages by state: free, reserved, live, retired.")
      .def(
          "alloc",
          [](PageAllocator& self, std::size_t count, OwnerTag owner, std::int32_t after) {
            if (count > static_cast<std::size_t>(kPagesMax)) {
              throw InvalidArgument("alloc of " + std::to_string(count) + " pages");
            }
            // Before memory for them is taken.
            if (count > static_cast<std::size_t>(self.set().pages())) {
              require_ok(Status::out_of_pages, "alloc");
            }
            std::vector<PageId> pages(count);
            require_ok(self.allocate({.take = {.after = PageId{after}}, .owner = owner}, pages),
                       "alloc");
            return to_array(std::span<const PageId>(pages));
          },
          nb::arg("count"), nb::kw_only(), nb::arg("owner") = 0, nb::arg("after") = -1,
          "int32 [count]: pages of one reference each.\n\n"
          "owner: tag for errors and leak reports. after: the page to continue, or -1.\n"
          "Raises OutOfPages, and then nothing was consumed; PageError for `after`.")
      .def(
          "retain",
          [](PageAllocator& self, const Ints& pages) { self.retain(page_list(pages, "pages")); },
          nb::arg("pages"), "One more reference each. pages: int32 or int64 [n]. Raises PageError.")
      .def(
          "free",
          [](PageAllocator& self, const Ints& pages) {
            return self.release(page_list(pages, "pages"));
          },
          nb::arg("pages"),
          "One reference less each; returns how many pages became free.\n\n"
          "Raises PageError (double free, page 0, outside the pool), and then nothing changed.")
      .def(
          "pin", [](PageAllocator& self, std::int32_t page) { self.pin(PageId{page}); },
          nb::arg("page"), "The page stays where it is, and live, until unpinned. Nests.")
      .def(
          "unpin", [](PageAllocator& self, std::int32_t page) { self.unpin(PageId{page}); },
          nb::arg("page"), "Undoes one pin. Raises PageError without one.")
      .def("clear", &PageAllocator::clear, "Everything free again, in ascending order.")
      .def("check", &PageAllocator::check, nb::call_guard<nb::gil_scoped_release>(),
           "O(pool): raises InvariantError for a broken invariant.");
}

}  // namespace packstone::python
