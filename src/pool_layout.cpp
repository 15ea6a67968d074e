// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/pool_layout.hpp>

#include <bit>
#include <limits>
#include <numeric>

namespace packstone {

namespace {

// Far above any machine, and far enough below 2^63 that no sum of two such figures wraps.
constexpr Bytes kPoolBytesMax = Bytes{1} << 62;

Bytes round_up(Bytes value, Bytes unit) {
  return (value + unit - 1) / unit * unit;
}

Bytes checked_product(Bytes a, Bytes b, const std::string& what) {
  if (a != 0 && b > kPoolBytesMax / a) {
    throw InvalidArgument(what + ": " + std::to_string(a) + " x " + std::to_string(b) +
                          " bytes exceed 2^62");
  }
  return a * b;
}

void validate(const PoolLayout& layout, PageCount pages) {
  if (layout.page_size < 1 || layout.page_size > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument("page size " + std::to_string(layout.page_size) +
                          " is not 1 .. 2^31 - 1");
  }
  if (pages < 1 || pages > kPagesMax) {
    throw InvalidArgument("a pool of " + std::to_string(pages) + " pages");
  }
  if (layout.buffers.empty()) throw InvalidArgument("a pool without buffers");
  for (const PoolBuffer& buffer : layout.buffers) {
    if (buffer.layers < 1) {
      throw InvalidArgument("buffer " + buffer.name + " has " + std::to_string(buffer.layers) +
                            " layers");
    }
    if (buffer.parts.empty()) throw InvalidArgument("buffer " + buffer.name + " has no parts");
    for (const Bytes part : buffer.parts) {
      if (part < 1 || part > std::numeric_limits<std::int32_t>::max()) {
        throw InvalidArgument("buffer " + buffer.name + " has a part of " + std::to_string(part) +
                              " bytes a token");
      }
    }
  }
}

}  // namespace

Bytes page_bytes(const PoolBuffer& buffer, std::int64_t page_size) {
  return std::accumulate(buffer.parts.begin(), buffer.parts.end(), Bytes{0}) * page_size;
}

Bytes page_bytes(const PoolLayout& layout) {
  Bytes sum = 0;
  for (const PoolBuffer& buffer : layout.buffers) {
    sum += page_bytes(buffer, layout.page_size) * buffer.layers;
  }
  return sum;
}

std::int64_t plane_count(const PoolLayout& layout) {
  std::int64_t sum = 0;
  for (const PoolBuffer& buffer : layout.buffers) sum += buffer.layers;
  return sum;
}

PoolPlanes place(const PoolLayout& layout, PageCount pages, Bytes plane_alignment) {
  validate(layout, pages);
  if (plane_alignment < kRowAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(plane_alignment))) {
    throw InvalidArgument("plane alignment " + std::to_string(plane_alignment) +
                          " is no power of two >= 16");
  }
  const bool page_major = layout.order == PoolOrder::page_major;
  PoolPlanes result;
  Bytes record = 0;  // page-major: of one page in all planes
  for (const PoolBuffer& buffer : layout.buffers) {
    const Bytes bytes = page_bytes(buffer, layout.page_size);
    for (std::int32_t layer = 0; layer < buffer.layers; ++layer) {
      if (page_major) {
        result.planes.push_back({static_cast<std::uint64_t>(record), 0, bytes});
        record = round_up(record + bytes, kRowAlignment);
      } else {
        result.planes.push_back({static_cast<std::uint64_t>(result.bytes), bytes, bytes});
        const Bytes plane = checked_product(bytes, pages, "buffer " + buffer.name);
        result.bytes = round_up(result.bytes + plane, plane_alignment);
        if (result.bytes > kPoolBytesMax) throw InvalidArgument("the pool exceeds 2^62 bytes");
      }
    }
  }
  if (page_major) {
    for (PagePlane& plane : result.planes) plane.stride = record;
    result.bytes = checked_product(record, pages, "the page-major pool");
  }
  std::size_t index = 0;
  for (const PoolBuffer& buffer : layout.buffers) {
    for (std::int32_t layer = 0; layer < buffer.layers; ++layer, ++index) {
      const PagePlane& plane = result.planes[index];
      std::uint64_t base = plane.base;
      for (const Bytes part : buffer.parts) {
        result.rows.push_back({base, plane.stride, part});
        base += static_cast<std::uint64_t>(part * layout.page_size);
      }
    }
  }
  result.pages = merged(result.planes, kRowAlignment);
  return result;
}

std::vector<PagePlane> merged(const std::vector<PagePlane>& planes, Bytes padding) {
  std::vector<PagePlane> result;
  for (const PagePlane& plane : planes) {
    // Where pages follow each other without gaps, nothing lies between planes within a page.
    if (!result.empty() && plane.stride > plane.bytes && plane.stride == result.back().stride) {
      PagePlane& last = result.back();
      const Bytes together = static_cast<Bytes>(plane.base - last.base) + plane.bytes;
      if (plane.base == last.base + static_cast<std::uint64_t>(round_up(last.bytes, padding)) &&
          together <= plane.stride) {
        last.bytes = together;
        continue;
      }
    }
    result.push_back(plane);
  }
  // The padding behind the last plane of a record too, so that whole vectors are copied.
  for (PagePlane& plane : result) {
    if (round_up(plane.bytes, padding) == plane.stride) plane.bytes = plane.stride;
  }
  return result;
}

PoolLayout mla_layout(const MlaPoolOptions& options) {
  PoolLayout layout{.page_size = options.page_size, .order = options.order, .buffers = {}};
  layout.buffers.push_back({"mla", {mla_row_bytes(options.type)}, options.layers});
  if (options.indexer_key_bytes > 0) {
    PoolBuffer indexer{"indexer", {options.indexer_key_bytes}, options.layers};
    if (options.indexer_scale_bytes > 0) indexer.parts.push_back(options.indexer_scale_bytes);
    layout.buffers.push_back(std::move(indexer));
  }
  return layout;
}

PoolLayout gqa_layout(const GqaPoolOptions& options) {
  PoolLayout layout{.page_size = options.page_size, .order = options.order, .buffers = {}};
  const Bytes row = options.kv_heads * value_bytes(options.type, options.head_dim);
  layout.buffers.push_back({"k", {row}, options.layers});
  layout.buffers.push_back({"v", {row}, options.layers});
  if (options.scale_bytes > 0) {
    layout.buffers.push_back({"k_scale", {options.scale_bytes}, options.layers});
    layout.buffers.push_back({"v_scale", {options.scale_bytes}, options.layers});
  }
  return layout;
}

}  // namespace packstone
