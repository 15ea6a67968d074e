// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/device_pool.hpp>

#include <algorithm>
#include <string>

namespace packstone::cuda {

namespace {

// Of every device so far; a device with other granules would only waste a part of each.
constexpr Bytes kGranuleBytes = Bytes{2} << 20;

void rebase(PoolPlanes& planes, std::uint64_t base) {
  for (PagePlane& plane : planes.pages) plane.base += base;
  for (PagePlane& plane : planes.planes) plane.base += base;
  for (RowPlane& plane : planes.rows) plane.base += base;
}

}  // namespace

DevicePool::DevicePool(const PoolLayout& layout, const DevicePoolOptions& options)
    : layout_(layout), pages_(options.pages), device_(current_device_limits().device) {
  // Planes that start on a granule of their own empty whole granules, as the planner counts them.
  planes_ = place(layout, options.pages, options.virtual_memory ? kGranuleBytes : kPlaneAlignment);
  std::uint64_t base = 0;
  if (options.virtual_memory) {
    arena_.emplace(planes_.bytes, options.cached_granules_max);
    arena_->commit(0, arena_->granules());
    base = arena_->base();
  } else {
    memory_ = DeviceMemory(planes_.bytes);
    base = reinterpret_cast<std::uint64_t>(memory_.data());
  }
  rebase(planes_, base);
  for (const PagePlane& plane : planes_.planes) {
    PACKSTONE_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(plane.base), 0,
                                         static_cast<std::size_t>(plane.bytes), nullptr));
  }
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

DevicePool::DevicePool(const PoolLayout& layout, PageCount pages,
                       std::span<const WrappedPlane> planes)
    : layout_(layout), pages_(pages), device_(current_device_limits().device) {
  planes_ = place(layout, pages);  // validates, and gives the order; the places are replaced
  if (planes.size() != planes_.planes.size()) {
    throw InvalidArgument(std::to_string(planes.size()) + " planes for a layout of " +
                          std::to_string(planes_.planes.size()));
  }
  std::size_t row = 0;
  std::size_t index = 0;
  for (const PoolBuffer& buffer : layout.buffers) {
    for (std::int32_t layer = 0; layer < buffer.layers; ++layer, ++index) {
      PagePlane& plane = planes_.planes[index];
      if (planes[index].data == nullptr || planes[index].stride < plane.bytes) {
        throw InvalidArgument("plane " + std::to_string(index) + " (" + buffer.name + ", layer " +
                              std::to_string(layer) + "): null, or a stride of " +
                              std::to_string(planes[index].stride) + " below " +
                              std::to_string(plane.bytes) + " bytes a page");
      }
      plane.base = reinterpret_cast<std::uint64_t>(planes[index].data);
      plane.stride = planes[index].stride;
      std::uint64_t base = plane.base;
      for (const Bytes part : buffer.parts) {
        planes_.rows[row++] = {base, plane.stride, part};
        base += static_cast<std::uint64_t>(part * layout.page_size);
      }
    }
  }
  planes_.pages = merged(planes_.planes, 1);
  planes_.bytes = 0;
}

PagePlane DevicePool::plane(std::size_t buffer, std::int32_t layer) const {
  if (buffer >= layout_.buffers.size() || layer < 0 || layer >= layout_.buffers[buffer].layers) {
    throw InvalidArgument("buffer " + std::to_string(buffer) + ", layer " + std::to_string(layer) +
                          " of a pool of " + std::to_string(layout_.buffers.size()) + " buffers");
  }
  std::size_t index = static_cast<std::size_t>(layer);
  for (std::size_t b = 0; b < buffer; ++b) {
    index += static_cast<std::size_t>(layout_.buffers[b].layers);
  }
  return planes_.planes[index];
}

PoolMemory DevicePool::memory() const {
  if (arena_) {
    return {.reserved = arena_->reserved(),
            .committed = arena_->committed(),
            .cached = arena_->cached()};
  }
  return {.reserved = memory_.bytes(), .committed = memory_.bytes(), .cached = 0};
}

std::optional<Bytes> DevicePool::release_unused(std::span<const std::uint8_t> live,
                                                EventFence& fence) {
  if (static_cast<PageCount>(live.size()) != pages_) {
    throw InvalidArgument("liveness of " + std::to_string(live.size()) + " pages for a pool of " +
                          std::to_string(pages_));
  }
  if (!arena_) return 0;
  if (!fence.drained()) return std::nullopt;
  std::vector<std::uint8_t> needed(static_cast<std::size_t>(arena_->granules()), 0);
  const auto granule = static_cast<std::uint64_t>(arena_->granule_bytes());
  for (const PagePlane& plane : planes_.pages) {
    const std::uint64_t start = plane.base - arena_->base();
    for (std::size_t page = 0; page < live.size(); ++page) {
      if (live[page] == 0 && page != 0) continue;
      const std::uint64_t first = start + page * static_cast<std::uint64_t>(plane.stride);
      const std::uint64_t last = first + static_cast<std::uint64_t>(plane.bytes) - 1;
      for (std::uint64_t g = first / granule; g <= last / granule; ++g) needed[g] = 1;
    }
  }
  Bytes released = 0;
  for (std::size_t g = 0; g < needed.size(); ++g) {
    const auto index = static_cast<std::int64_t>(g);
    if (needed[g] == 0) released += arena_->decommit(index, index + 1);
  }
  return released;
}

void DevicePool::commit(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    if (index_of(page) < 0 || index_of(page) >= pages_) {
      throw PageError(PageError::Kind::out_of_range, page, 0,
                      "commit of page " + std::to_string(index_of(page)));
    }
  }
  if (!arena_) return;
  std::vector<std::uint8_t> needed(static_cast<std::size_t>(arena_->granules()) + 1, 0);
  const auto granule = static_cast<std::uint64_t>(arena_->granule_bytes());
  for (const PagePlane& plane : planes_.pages) {
    const std::uint64_t start = plane.base - arena_->base();
    for (const PageId page : pages) {
      const std::uint64_t first = start + static_cast<std::uint64_t>(index_of(page)) *
                                              static_cast<std::uint64_t>(plane.stride);
      const std::uint64_t last = first + static_cast<std::uint64_t>(plane.bytes) - 1;
      for (std::uint64_t g = first / granule; g <= last / granule; ++g) needed[g] = 1;
    }
  }
  // Whole stretches at once; the last entry is 0 and ends the last one.
  for (std::size_t g = 0; g < needed.size(); ++g) {
    if (needed[g] == 0) continue;
    const std::size_t first = g;
    while (needed[g] != 0) ++g;
    arena_->commit(static_cast<std::int64_t>(first), static_cast<std::int64_t>(g));
  }
}

}  // namespace packstone::cuda
