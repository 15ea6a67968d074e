// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the host can find wrong with an attention call before anything is launched.

#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone {

/// One array of a call as far as the host knows it. Both members may be unknown.
template <typename T>
struct HostArray {
  const T* data{nullptr};  ///< host memory with the same content; null: content unknown
  std::int64_t count{-1};  ///< elements that the array has; -1: extent unknown
};

/// What the host knows of the arrays that VerifyParams points to. Content that only the device has
/// (graph replays, lengths computed there) stays unknown; extents usually are known, and a too
/// short array is found by them alone.
struct HostView {
  HostArray<std::int32_t> prefix_lens;   ///< [batch]
  HostArray<std::int32_t> q_indptr;      ///< [batch + 1]
  HostArray<void> table;                 ///< entries of params.table.type; count in entries
  HostArray<std::int32_t> table_indptr;  ///< [batch + 1], CSR only
  HostArray<std::int32_t> parents;       ///< [tokens]
  HostArray<std::uint64_t> words;        ///< [tokens, words_stride]
  HostArray<std::int32_t> sparse;        ///< [tokens, stride]
};

/// A view for parameters whose pointers are all to host memory, extents unknown.
HostView host_view_of(const VerifyParams& params);

/// Throws on the first thing wrong, naming argument, place and value; launches and changes nothing:
///
/// - `InvalidArgument`: head counts that do not divide, a null, misaligned or overlapping-by-stride
/// tensor, lengths below
///   0, decreasing offsets, a table row, mask or list too short for the lengths, a scale that is
///   not finite.
/// - `PageError` (out_of_range): an entry among those that a live token needs names no page of the
/// pool. Entries past
///   the live ones are not looked at.
/// - `TreeError`: a parent that is not before its node within the same tree.
///
/// O(1) without a view; with content, O(batch + live table entries + query tokens + list entries).
void validate(const VerifyParams& params, const HostView& view = {});

}  // namespace packstone
