// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "border.hpp"

#include <packstone/verify_params.hpp>

namespace packstone::c_api {

/// An enumerator by its number; throws InvalidArgument past `last`.
template <typename Enum>
Enum enumerator(int32_t value, Enum last, const char* name) {
  if (value < 0 || value > static_cast<int32_t>(last)) {
    throw InvalidArgument(std::string(name) + " = " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

inline KvRows rows_of(const packstone_rows& rows) {
  return {.k = rows.k,
          .k_rope = rows.k_rope,
          .v = rows.v,
          .k_stride_row = rows.k_stride_row,
          .k_rope_stride_row = rows.k_rope_stride_row,
          .v_stride_row = rows.v_stride_row,
          .k_stride_head = rows.k_stride_head,
          .v_stride_head = rows.v_stride_head,
          .rows = rows.rows};
}

/// The C++ twin of the struct. Throws InvalidArgument for an unknown enumerator; everything else
/// is for `validate` to judge.
inline VerifyParams verify_params(const packstone_verify_params* params) {
  const packstone_verify_params p = read_struct(params, "params");
  VerifyParams made;
  made.kind = enumerator(p.kind, AttentionKind::gqa, "kind");
  made.heads = p.heads;
  made.kv_heads = p.kv_heads;
  made.head_dim_k = p.head_dim_k;
  made.head_dim_v = p.head_dim_v;
  made.rope_dim = p.rope_dim;
  made.batch = p.batch;
  made.tokens = p.tokens;
  made.prefix_lens = p.prefix_lens;
  made.q_indptr = p.q_indptr;
  made.q = {.data = p.q,
            .type = enumerator(p.q_type, FloatType::fp32, "q_type"),
            .stride_token = p.q_stride_token,
            .stride_head = p.q_stride_head};
  made.kv_type = enumerator(p.kv_type, KvType::e4m3_tile, "kv_type");
  made.pool = rows_of(p.pool);
  made.table = {.entries = p.table,
                .type = enumerator(p.table_type, IndexType::int64, "table_type"),
                .page_size = p.page_size,
                .row_stride = p.table_stride,
                .indptr = p.table_indptr};
  made.tail_place = enumerator(p.tail_place, TailPlace::none, "tail_place");
  made.tail = rows_of(p.tail);
  made.mask = {.kind = enumerator(p.mask_kind, MaskKind::full, "mask_kind"),
               .parents = p.parents,
               .words = p.words,
               .words_stride = p.words_stride};
  made.sparse = {.entries = p.sparse,
                 .stride = p.sparse_stride,
                 .topk = p.sparse_topk,
                 .unit = enumerator(p.sparse_of_slots, SparseUnit::slot, "sparse_of_slots")};
  made.scale = p.scale;
  made.logit_cap = p.logit_cap;
  made.k_scale = p.k_scale != 0.0F ? p.k_scale : 1.0F;
  made.v_scale = p.v_scale != 0.0F ? p.v_scale : 1.0F;
  made.output = {.out = p.out,
                 .type = enumerator(p.out_type, FloatType::fp32, "out_type"),
                 .stride_token = p.out_stride_token,
                 .stride_head = p.out_stride_head,
                 .lse = p.lse,
                 .lse_stride_token = p.lse_stride_token,
                 .lse_base = enumerator(p.lse_base, LseBase::two, "lse_base")};
  return made;
}

}  // namespace packstone::c_api
