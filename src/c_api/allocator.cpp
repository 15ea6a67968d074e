// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"

#include <packstone/page_allocator.hpp>

#include <memory>

using namespace packstone;
using namespace packstone::c_api;

struct packstone_allocator {
  PageAllocator allocator;
};

packstone_status packstone_allocator_create(const packstone_allocator_options* options,
                                            packstone_allocator** out) {
  return guarded([&] {
    const packstone_allocator_options given = read_struct(options, "options");
    packstone_allocator*& result = required(out, "out");
    result = new packstone_allocator{
        PageAllocator({.pages = given.pages,
                       .placement = {.policy = given.policy != nullptr ? given.policy : "run",
                                     .page_size = given.page_size != 0 ? given.page_size : 1}})};
    return PACKSTONE_OK;
  });
}

void packstone_allocator_destroy(packstone_allocator* allocator) {
  delete allocator;
}

packstone_status packstone_allocator_available(const packstone_allocator* allocator,
                                               int64_t* pages) {
  return guarded([&] {
    required(pages, "pages") = required(allocator, "allocator").allocator.available();
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_alloc(packstone_allocator* allocator, uint32_t owner,
                                           int32_t after, int32_t* pages, size_t count) {
  return guarded([&] {
    const std::span<PageId> out = page_ids(pages, count, "pages");
    return status_of(
        required(allocator, "allocator")
            .allocator.allocate({.take = {.after = PageId{after}}, .owner = owner}, out));
  });
}

packstone_status packstone_allocator_retain(packstone_allocator* allocator, const int32_t* pages,
                                            size_t count) {
  return guarded([&] {
    required(allocator, "allocator").allocator.retain(page_ids(pages, count, "pages"));
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_free(packstone_allocator* allocator, const int32_t* pages,
                                          size_t count, int64_t* freed) {
  return guarded([&] {
    const PageCount became_free =
        required(allocator, "allocator").allocator.release(page_ids(pages, count, "pages"));
    if (freed != nullptr) *freed = became_free;
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_pin(packstone_allocator* allocator, int32_t page) {
  return guarded([&] {
    required(allocator, "allocator").allocator.pin(PageId{page});
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_unpin(packstone_allocator* allocator, int32_t page) {
  return guarded([&] {
    required(allocator, "allocator").allocator.unpin(PageId{page});
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_check(const packstone_allocator* allocator) {
  return guarded([&] {
    required(allocator, "allocator").allocator.check();
    return PACKSTONE_OK;
  });
}

packstone_status packstone_allocator_clear(packstone_allocator* allocator) {
  return guarded([&] {
    required(allocator, "allocator").allocator.clear();
    return PACKSTONE_OK;
  });
}
