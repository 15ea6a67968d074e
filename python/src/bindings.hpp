// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the parts of the extension module share: arrays in and out, and one `bind_` a part.

#include "slot_allocator.hpp"

#include <packstone/error.hpp>
#include <packstone/kv_manager.hpp>
#include <packstone/units.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace packstone::python {

namespace nb = nanobind;

/// One dimension of integers in host memory: NumPy or anything that speaks DLPack; not copied.
using Ints = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;
using Int64s = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
using Int32s = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

/// Throws InvalidArgument for an array that is neither int32 nor int64.
inline IntView int_view(const Ints& array, const char* name) {
  const bool wide = array.dtype() == nb::dtype<std::int64_t>();
  if (!wide && array.dtype() != nb::dtype<std::int32_t>()) {
    throw InvalidArgument(std::string(name) + " is neither int32 nor int64");
  }
  return {.data = array.data(),
          .count = static_cast<std::int64_t>(array.shape(0)),
          .stride = array.stride(0),
          .wide = wide};
}

inline std::vector<PageId> page_list(const Ints& array, const char* name) {
  const IntView view = int_view(array, name);
  std::vector<PageId> pages(static_cast<std::size_t>(view.count));
  for (std::int64_t i = 0; i < view.count; ++i) {
    const std::int64_t page = view[i];
    if (page != static_cast<std::int32_t>(page)) {
      throw InvalidArgument(std::string(name) + " names page " + std::to_string(page));
    }
    pages[static_cast<std::size_t>(i)] = PageId{static_cast<std::int32_t>(page)};
  }
  return pages;
}

/// Hands a vector over to NumPy without a copy.
template <typename T, typename Allocator>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(std::vector<T, Allocator>&& values) {
  using Values = std::vector<T, Allocator>;
  auto owned = std::make_unique<Values>(std::move(values));
  T* data = owned->data();
  const std::size_t count = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<Values*>(p); });
  (void)owned.release();
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {count}, owner);
}

inline Int32s to_array(std::span<const PageId> pages) {
  std::vector<std::int32_t> ids;
  ids.reserve(pages.size());
  for (const PageId page : pages) ids.push_back(index_of(page));
  return to_array(std::move(ids));
}

void bind_errors(nb::module_& m);
void bind_page_allocator(nb::module_& m);
/// Binds the manager, and after it what is bound to it.
void bind_kv_manager(nb::module_& m);
void bind_planning(nb::module_& m, nb::class_<KvManager>& manager);
void bind_slot_allocator(nb::module_& m);
void bind_verify(nb::module_& m);

/// Throws OutOfPages or OutOfSequences for a status other than ok.
void require_ok(Status status, const char* call);

}  // namespace packstone::python
