// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a pool is made of, as data: typed buffers, each repeated for its layers, and where page p
/// of each of them lies. Free of CUDA.
///
/// A *plane* is one buffer of one layer. Whatever the order in memory, everything that moves bytes
/// sees a flat list of planes:
///
/// - a PagePlane says where a whole page lies: base + page * stride, `bytes` long. Planes that are
///   neighbours within a page (page-major order) are merged into one.
/// - a RowPlane says where one token's row lies: base + page * page_stride + offset * row_bytes. A
///   page-shaped buffer (indexer keys: all tokens' keys, then all tokens' scales) has one RowPlane
///   a part, which is why a page of it must never be addressed by token number.
///
/// All products are 64 bits: page 116,508 of a pool of 64-token MLA pages lies past 2^32 elements.

#include <packstone/kv_layout.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace packstone {

enum class PoolOrder : std::uint8_t {
  layer_major,  ///< plane after plane; within a plane, page after page without gaps
  page_major,   ///< page after page; within a page, plane after plane, each 16-byte aligned
};

/// One buffer of the pool.
struct PoolBuffer {
  std::string name;
  /// Bytes that a token keeps in each part, >= 1 each. One part: rows one after another. Several
  /// parts: the buffer is page-shaped, a page holding part 0 of all its tokens, then part 1.
  std::vector<Bytes> parts;
  std::int32_t layers{1};
};

struct PoolLayout {
  std::int64_t page_size{1};  ///< tokens a page, >= 1
  PoolOrder order{PoolOrder::layer_major};
  std::vector<PoolBuffer> buffers;
};

/// Whole pages of one plane. `base` is an offset into the pool's memory, or an address.
struct PagePlane {
  std::uint64_t base{0};
  Bytes stride{0};  ///< between page p and page p + 1
  Bytes bytes{0};   ///< of one page, <= stride
  friend bool operator==(const PagePlane&, const PagePlane&) = default;
};

/// Rows of one part of one plane: token `o` of page p is at base + p * page_stride + o * row_bytes.
struct RowPlane {
  std::uint64_t base{0};
  Bytes page_stride{0};
  Bytes row_bytes{0};
  friend bool operator==(const RowPlane&, const RowPlane&) = default;
};

/// Where everything lies, as offsets from the start of one allocation.
struct PoolPlanes {
  std::vector<PagePlane> pages;   ///< merged where neighbours
  std::vector<RowPlane> rows;     ///< ordered by buffer, layer, part
  std::vector<PagePlane> planes;  ///< ordered by buffer, layer; never merged
  Bytes bytes{0};                 ///< of the allocation
};

/// Starts of layer-major planes are multiples of this, so that any row type may lie there.
inline constexpr Bytes kPlaneAlignment = 256;

/// Bytes of one page of one layer of a buffer.
[[nodiscard]] Bytes page_bytes(const PoolBuffer& buffer, std::int64_t page_size);
/// Bytes of one page in all buffers and layers: what one move copies.
[[nodiscard]] Bytes page_bytes(const PoolLayout& layout);
/// Planes of the layout: the sum of the buffers' layers.
[[nodiscard]] std::int64_t plane_count(const PoolLayout& layout);

/// Places `pages` pages of `layout` in one allocation.
/// @param plane_alignment  of layer-major planes: a power of two >= 16.
/// Throws InvalidArgument naming the buffer for a size, layer count or page size below 1, an empty
/// layout, and a pool of 2^62 bytes or more.
[[nodiscard]] PoolPlanes place(const PoolLayout& layout, PageCount pages,
                               Bytes plane_alignment = kPlaneAlignment);

/// Merges page planes that are neighbours within a page; keeps the order otherwise.
/// @param padding  planes count as neighbours when the next starts where the last one, rounded up
/// to
///                 this, ends; the bytes between are then copied along. 1 for memory whose gaps may
///                 belong to somebody.
[[nodiscard]] std::vector<PagePlane> merged(const std::vector<PagePlane>& planes, Bytes padding);

struct MlaPoolOptions {
  std::int32_t layers{1};
  std::int64_t page_size{1};
  PoolOrder order{PoolOrder::layer_major};
  KvType type{KvType::bf16};  ///< bf16: 1,152 bytes a row; e4m3_tile: 656
  /// Bytes a token of page-shaped indexer keys, and of their scales behind them; 0: no indexer.
  Bytes indexer_key_bytes{0};
  Bytes indexer_scale_bytes{0};
};
[[nodiscard]] PoolLayout mla_layout(const MlaPoolOptions& options);

struct GqaPoolOptions {
  std::int32_t layers{1};
  std::int64_t page_size{1};
  PoolOrder order{PoolOrder::layer_major};
  KvType type{KvType::bf16};
  std::int32_t kv_heads{8};
  std::int32_t head_dim{128};
  Bytes scale_bytes{0};  ///< a token, in a buffer of its own for K and one for V; 0: none
};
[[nodiscard]] PoolLayout gqa_layout(const GqaPoolOptions& options);

}  // namespace packstone
