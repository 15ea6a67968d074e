// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/verify_checks.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace packstone {
namespace {

constexpr std::int32_t kHeadsMax = 128;
constexpr std::int32_t kHeadDimMax = 1024;

[[noreturn]] void reject(const std::string& message) {
  throw InvalidArgument("tree_verify: " + message);
}

std::string named(const char* name, std::int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

void require(bool holds, const std::string& message) {
  if (!holds) reject(message);
}

bool aligned(const void* pointer, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

/// A tensor part of `extent` rows at `stride`, each of `bytes` bytes.
void check_stride(const char* name, std::int64_t stride, std::int64_t bytes, std::int64_t extent) {
  if (extent <= 1) return;
  if (stride < bytes || stride % kRowAlignment != 0) {
    reject(named(name, stride) + " bytes, but must be a multiple of " +
           std::to_string(kRowAlignment) + " and hold a row of " + std::to_string(bytes) +
           " bytes");
  }
}

void check_base(const char* name, const void* pointer) {
  require(pointer != nullptr, std::string(name) + " is null");
  require(aligned(pointer, kRowAlignment),
          std::string(name) + " is not aligned to " + std::to_string(kRowAlignment) + " bytes");
}

void check_geometry(const VerifyParams& p) {
  require(p.heads >= 1 && p.heads <= kHeadsMax,
          named("heads", p.heads) + ", but 1 to 128 are supported");
  require(p.kv_heads >= 1 && p.heads % p.kv_heads == 0,
          named("kv_heads", p.kv_heads) + " does not divide " + named("heads", p.heads));
  require(p.batch >= 0, named("batch", p.batch));
  require(p.tokens >= 0, named("tokens", p.tokens));
  if (p.kind == AttentionKind::mla) {
    require(p.kv_heads == 1, named("kv_heads", p.kv_heads) + ", but MLA has 1");
    require(p.rope_dim == 0 || p.rope_dim == kMlaRopeDim,
            named("rope_dim", p.rope_dim) + ", but MLA has 64 or 0");
    require(p.head_dim_v == kMlaLatentDim, named("head_dim_v", p.head_dim_v) + ", but MLA has 512");
    require(p.head_dim_k == kMlaLatentDim + p.rope_dim,
            named("head_dim_k", p.head_dim_k) + ", but MLA has 512 + rope_dim");
  } else {
    require(p.rope_dim == 0, named("rope_dim", p.rope_dim) + ", but GQA has 0");
    require(p.head_dim_k >= 16 && p.head_dim_k <= kHeadDimMax && p.head_dim_k % 16 == 0,
            named("head_dim_k", p.head_dim_k) + ", but a multiple of 16 up to 1024 is needed");
    require(p.head_dim_v == p.head_dim_k, named("head_dim_v", p.head_dim_v) + " differs from " +
                                              named("head_dim_k", p.head_dim_k));
    require(p.kv_type != KvType::e4m3_tile, "kv_type e4m3_tile is an MLA row");
  }
}

void check_numbers(const VerifyParams& p) {
  require(std::isfinite(p.scale), "scale is not finite");
  require(std::isfinite(p.logit_cap) && p.logit_cap >= 0.0F, "logit_cap is negative or not finite");
  require(std::isfinite(p.k_scale), "k_scale is not finite");
  require(std::isfinite(p.v_scale), "v_scale is not finite");
  require(p.q.type != FloatType::fp32, "q.type is fp32, but bf16 or fp16 is needed");
  const bool q_is_bf16 = p.q.type == FloatType::bf16;
  require((p.kv_type != KvType::bf16 || q_is_bf16) && (p.kv_type != KvType::fp16 || !q_is_bf16),
          std::string("q.type ") + to_string(p.q.type) + " differs from kv_type " +
              to_string(p.kv_type));
}

void check_rows(const std::string& name, const VerifyParams& p, const KvRows& rows) {
  const bool mla = p.kind == AttentionKind::mla;
  const bool apart = mla && p.rope_dim > 0 && rows.k_rope != nullptr;
  std::int64_t k_bytes = mla ? mla_latent_bytes(p.kv_type) : value_bytes(p.kv_type, p.head_dim_k);
  if (mla && p.rope_dim > 0 && !apart) k_bytes += mla_rope_bytes(p.kv_type);
  check_base((name + ".k").c_str(), rows.k);
  check_stride((name + ".k_stride_row").c_str(), rows.k_stride_row, k_bytes, rows.rows);
  check_stride((name + ".k_stride_head").c_str(), rows.k_stride_head, k_bytes, p.kv_heads);
  if (apart) {
    check_base((name + ".k_rope").c_str(), rows.k_rope);
    check_stride((name + ".k_rope_stride_row").c_str(), rows.k_rope_stride_row,
                 mla_rope_bytes(p.kv_type), rows.rows);
  }
  if (mla) {
    require(rows.v == nullptr, name + ".v is set, but the V of MLA is its latent part");
  } else {
    const std::int64_t v_bytes = value_bytes(p.kv_type, p.head_dim_v);
    check_base((name + ".v").c_str(), rows.v);
    check_stride((name + ".v_stride_row").c_str(), rows.v_stride_row, v_bytes, rows.rows);
    check_stride((name + ".v_stride_head").c_str(), rows.v_stride_head, v_bytes, p.kv_heads);
  }
}

void check_tensors(const VerifyParams& p) {
  if (p.tokens > 0) {
    check_base("q.data", p.q.data);
    const std::int64_t q_bytes = p.head_dim_k * bytes_of(p.q.type);
    check_stride("q.stride_token", p.q.stride_token, q_bytes, p.tokens);
    check_stride("q.stride_head", p.q.stride_head, q_bytes, p.heads);
    check_base("output.out", p.output.out);
    const std::int64_t out_bytes = p.head_dim_v * bytes_of(p.output.type);
    check_stride("output.stride_token", p.output.stride_token, out_bytes, p.tokens);
    check_stride("output.stride_head", p.output.stride_head, out_bytes, p.heads);
    if (p.output.lse != nullptr) {
      require(aligned(p.output.lse, sizeof(float)), "output.lse is not aligned to 4 bytes");
      require(p.tokens == 1 || (p.output.lse_stride_token >= std::int64_t{4} * p.heads &&
                                p.output.lse_stride_token % 4 == 0),
              named("output.lse_stride_token", p.output.lse_stride_token) +
                  " bytes does not hold the heads");
    }
  }
  require(p.pool.rows >= 0, named("pool.rows", p.pool.rows));
  if (p.pool.rows > 0) check_rows("pool", p, p.pool);
  if (p.tail_place == TailPlace::separate && p.tokens > 0) {
    require(p.tail.rows >= p.tokens,
            named("tail.rows", p.tail.rows) + " is less than " + named("tokens", p.tokens));
    check_rows("tail", p, p.tail);
  }
}

void check_arrays(const VerifyParams& p) {
  require(p.batch == 0 || p.prefix_lens != nullptr, "prefix_lens is null");
  require(p.batch == 0 || p.q_indptr != nullptr, "q_indptr is null");
  require(p.table.page_size >= 1, named("table.page_size", p.table.page_size));
  require(p.table.indptr != nullptr || p.table.row_stride >= 0,
          named("table.row_stride", p.table.row_stride));
  if (p.tail_place != TailPlace::none && p.tokens > 0) {
    require(p.mask.kind != MaskKind::parents || p.mask.parents != nullptr, "mask.parents is null");
    require(p.mask.kind != MaskKind::words || p.mask.words != nullptr, "mask.words is null");
    require(p.mask.kind != MaskKind::words || p.mask.words_stride >= 0,
            named("mask.words_stride", p.mask.words_stride));
  }
  if (p.sparse.entries != nullptr) {
    require(p.sparse.topk >= 0, named("sparse.topk", p.sparse.topk));
    require(p.sparse.stride >= p.sparse.topk, named("sparse.stride", p.sparse.stride) +
                                                  " is less than " +
                                                  named("sparse.topk", p.sparse.topk));
  }
}

void check_extent(const char* name, std::int64_t count, std::int64_t needed) {
  if (count >= 0 && count < needed) {
    reject(std::string(name) + " has " + std::to_string(count) + " elements, but " +
           std::to_string(needed) + " are needed");
  }
}

std::string in_sequence(std::int32_t b) {
  return " (sequence " + std::to_string(b) + ")";
}

void check_lengths(const VerifyParams& p, const HostView& view) {
  check_extent("prefix_lens", view.prefix_lens.count, p.batch);
  check_extent("q_indptr", view.q_indptr.count, std::int64_t{p.batch} + 1);
  if (p.batch == 0) return;
  if (const std::int32_t* lens = view.prefix_lens.data; lens != nullptr) {
    for (std::int32_t b = 0; b < p.batch; ++b) {
      require(lens[b] >= 0, named("prefix_lens", lens[b]) + in_sequence(b));
    }
  }
  if (const std::int32_t* indptr = view.q_indptr.data; indptr != nullptr) {
    require(indptr[0] >= 0, named("q_indptr[0]", indptr[0]));
    for (std::int32_t b = 0; b < p.batch; ++b) {
      require(indptr[b] <= indptr[b + 1], "q_indptr decreases from " + std::to_string(indptr[b]) +
                                              " to " + std::to_string(indptr[b + 1]) +
                                              in_sequence(b));
    }
    require(indptr[p.batch] <= p.tokens,
            named("q_indptr[batch]", indptr[p.batch]) + " passes " + named("tokens", p.tokens));
  }
}

std::int64_t entry_at(const VerifyParams& p, const void* entries, std::int64_t index) {
  return p.table.type == IndexType::int64
             ? static_cast<const std::int64_t*>(entries)[index]
             : std::int64_t{static_cast<const std::int32_t*>(entries)[index]};
}

/// Tokens of sequence b that go through the table; sparse slots bypass it.
std::int64_t table_tokens(const VerifyParams& p, const HostView& view, std::int32_t b) {
  const std::int64_t q_len = std::int64_t{view.q_indptr.data[b + 1]} - view.q_indptr.data[b];
  if (q_len == 0) return 0;
  const bool by_slot = p.sparse.entries != nullptr && p.sparse.unit == SparseUnit::slot;
  // A tail in the pool lies behind the prefix, so its entries end the row whatever happens to the
  // prefix.
  if (p.tail_place == TailPlace::pool) return view.prefix_lens.data[b] + q_len;
  return by_slot ? 0 : std::int64_t{view.prefix_lens.data[b]};
}

void check_page(const VerifyParams& p, std::int64_t page, std::int64_t column, std::int32_t b) {
  const std::int64_t pages = p.pool.rows / p.table.page_size;
  if (page >= 0 && page < pages) return;
  const bool fits = page >= INT32_MIN && page <= INT32_MAX;
  throw PageError(PageError::Kind::out_of_range,
                  fits ? static_cast<PageId>(static_cast<std::int32_t>(page)) : kNoPage, 0,
                  "tree_verify: table entry " + std::to_string(column) + in_sequence(b) +
                      " names page " + std::to_string(page) + " of a pool of " +
                      std::to_string(pages));
}

void check_table(const VerifyParams& p, const HostView& view) {
  const bool csr = p.table.indptr != nullptr;
  if (csr) check_extent("table.indptr", view.table_indptr.count, std::int64_t{p.batch} + 1);
  if (view.prefix_lens.data == nullptr || view.q_indptr.data == nullptr) return;
  if (csr && view.table_indptr.data == nullptr) return;
  const std::int32_t* starts = view.table_indptr.data;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    if (csr) {
      require(starts[b] >= 0 && starts[b] <= starts[b + 1],
              "table.indptr decreases from " + std::to_string(starts[b]) + " to " +
                  std::to_string(starts[b + 1]) + in_sequence(b));
    }
    const std::int64_t begin = csr ? std::int64_t{starts[b]} : b * p.table.row_stride;
    const std::int64_t width = csr ? std::int64_t{starts[b + 1]} - starts[b] : p.table.row_stride;
    const std::int64_t length = table_tokens(p, view, b);
    const std::int64_t needed = pages_for(length, p.table.page_size);
    require(needed <= width, "a table row of " + std::to_string(width) + " entries of " +
                                 std::to_string(p.table.page_size) + " tokens does not hold " +
                                 std::to_string(length) + " tokens" + in_sequence(b));
    if (needed == 0) continue;
    require(p.table.entries != nullptr, "table.entries is null");
    check_extent("table.entries", view.table.count, begin + needed);
    if (view.table.data == nullptr) continue;
    // With lists or a tail apart some of these entries may go unread, but a live token names a real
    // page all the same.
    for (std::int64_t i = 0; i < needed; ++i)
      check_page(p, entry_at(p, view.table.data, begin + i), i, b);
  }
}

void check_parents(const HostView& view, std::int32_t b) {
  const std::int32_t first = view.q_indptr.data[b];
  for (std::int32_t t = first; t < view.q_indptr.data[b + 1]; ++t) {
    const std::int32_t parent = view.parents.data[t];
    const std::int32_t node = t - first;
    if (parent < -1 || parent >= node) {
      throw TreeError(node, "tree_verify: node " + std::to_string(node) + in_sequence(b) +
                                " has parent " + std::to_string(parent) +
                                ", which is not -1 and not before it");
    }
  }
}

void check_mask(const VerifyParams& p, const HostView& view) {
  if (p.tail_place == TailPlace::none) return;
  const std::int32_t* indptr = view.q_indptr.data;
  const std::int64_t live = (indptr != nullptr && p.batch > 0) ? indptr[p.batch] : p.tokens;
  if (p.mask.kind == MaskKind::parents) {
    check_extent("mask.parents", view.parents.count, live);
    if (view.parents.data == nullptr || indptr == nullptr) return;
    for (std::int32_t b = 0; b < p.batch; ++b) check_parents(view, b);
  } else if (p.mask.kind == MaskKind::words && live > 0) {
    std::int64_t last_needed = 0;
    for (std::int32_t b = 0; indptr != nullptr && b < p.batch; ++b) {
      const std::int64_t q_len = std::int64_t{indptr[b + 1]} - indptr[b];
      const std::int64_t needed = (q_len + 63) / 64;
      require(needed <= p.mask.words_stride,
              named("mask.words_stride", p.mask.words_stride) + ", but " + std::to_string(q_len) +
                  " nodes need " + std::to_string(needed) + " words" + in_sequence(b));
      if (q_len > 0) last_needed = needed;
    }
    check_extent("mask.words", view.words.count, (live - 1) * p.mask.words_stride + last_needed);
  }
}

void check_sparse(const VerifyParams& p, const HostView& view) {
  if (p.sparse.entries == nullptr || p.tokens == 0) return;
  const std::int32_t* indptr = view.q_indptr.data;
  const std::int64_t live = (indptr != nullptr && p.batch > 0) ? indptr[p.batch] : p.tokens;
  if (live > 0)
    check_extent("sparse.entries", view.sparse.count, (live - 1) * p.sparse.stride + p.sparse.topk);
  if (view.sparse.data == nullptr || indptr == nullptr || view.prefix_lens.data == nullptr) return;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    const bool by_slot = p.sparse.unit == SparseUnit::slot;
    const std::int64_t limit = by_slot ? p.pool.rows : std::int64_t{view.prefix_lens.data[b]};
    for (std::int64_t t = indptr[b]; t < indptr[b + 1]; ++t) {
      const std::int32_t* row = view.sparse.data + t * p.sparse.stride;
      for (std::int32_t i = 0; i < p.sparse.topk; ++i) {
        require(row[i] >= -1 && row[i] < limit,
                "sparse entry " + std::to_string(i) + " of query token " + std::to_string(t) +
                    " is " + std::to_string(row[i]) + ", but must be -1 or below " +
                    std::to_string(limit));
      }
    }
  }
}

}  // namespace

HostView host_view_of(const VerifyParams& params) {
  return {.prefix_lens = {params.prefix_lens},
          .q_indptr = {params.q_indptr},
          .table = {params.table.entries},
          .table_indptr = {params.table.indptr},
          .parents = {params.mask.parents},
          .words = {params.mask.words},
          .sparse = {params.sparse.entries}};
}

void validate(const VerifyParams& params, const HostView& view) {
  check_geometry(params);
  check_numbers(params);
  check_tensors(params);
  check_arrays(params);
  check_lengths(params, view);
  check_table(params, view);
  check_mask(params, view);
  check_sparse(params, view);
}

}  // namespace packstone
