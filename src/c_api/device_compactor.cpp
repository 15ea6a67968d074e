// SPDX-License-Identifier: Apache-2.0
#include "border.hpp"

#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>

#include <vector>

using namespace packstone;
using namespace packstone::c_api;

namespace {

PoolLayout layout_of(const packstone_compactor_options& options,
                     std::span<const packstone_plane> planes) {
  PoolLayout layout{.page_size = options.page_size, .order = {}, .buffers = {}};
  for (std::size_t i = 0; i < planes.size(); ++i) {
    layout.buffers.push_back(
        {.name = "plane " + std::to_string(i), .parts = {planes[i].token_bytes}});
  }
  return layout;
}

std::vector<cuda::WrappedPlane> wrapped(std::span<const packstone_plane> planes) {
  std::vector<cuda::WrappedPlane> made;
  for (const packstone_plane& plane : planes) made.push_back({plane.data, plane.stride});
  return made;
}

std::vector<cuda::PatchedArray> patched(std::span<const packstone_patched_array> arrays) {
  std::vector<cuda::PatchedArray> made;
  for (const packstone_patched_array& each : arrays) {
    if (each.type < PACKSTONE_INT32 || each.type > PACKSTONE_INT64 ||
        each.kind < PACKSTONE_ARRAY_PAGES || each.kind > PACKSTONE_ARRAY_KEYED_BY_SLOT) {
      throw InvalidArgument("options->arrays: type " + std::to_string(each.type) + ", kind " +
                            std::to_string(each.kind));
    }
    made.push_back({.entries = each.entries,
                    .count = each.count,
                    .type = static_cast<IndexType>(each.type),
                    .kind = static_cast<cuda::PatchedArray::Kind>(each.kind)});
  }
  return made;
}

}  // namespace

struct packstone_compactor {
  packstone_compactor(const packstone_compactor_options& options,
                      std::span<const packstone_plane> planes,
                      std::span<const packstone_patched_array> arrays)
      : pool(layout_of(options, planes), options.pages, wrapped(planes)),
        pools{&pool},
        compactor(pools, patched(arrays),
                  {.moves_max = options.moves_max != 0 ? options.moves_max : 4096}) {}
  packstone_compactor(const packstone_compactor&) = delete;
  packstone_compactor& operator=(const packstone_compactor&) = delete;

  cuda::DevicePool pool;
  const cuda::DevicePool* pools[1];
  cuda::Compactor compactor;
};

packstone_status packstone_compactor_create(const packstone_compactor_options* options,
                                            packstone_compactor** out) {
  return guarded([&] {
    const packstone_compactor_options given = read_struct(options, "options");
    packstone_compactor*& result = required(out, "out");
    result =
        new packstone_compactor(given, array(given.planes, given.plane_count, "options->planes"),
                                array(given.arrays, given.array_count, "options->arrays"));
    return PACKSTONE_OK;
  });
}

void packstone_compactor_destroy(packstone_compactor* compactor) {
  delete compactor;
}

packstone_status packstone_compactor_compact(packstone_compactor* compactor,
                                             const packstone_page_move* moves, size_t count,
                                             struct CUstream_st* stream, int* queued) {
  return guarded([&] {
    packstone_compactor& c = required(compactor, "compactor");
    int& result = required(queued, "queued");
    result = c.compactor.compact(page_moves(moves, count, "moves"), stream) ? 1 : 0;
    return PACKSTONE_OK;
  });
}
