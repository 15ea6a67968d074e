// SPDX-License-Identifier: Apache-2.0
#include "verify_call.hpp"

namespace packstone::python {
namespace {

bool is_type(const Tensor& tensor, nb::dlpack::dtype_code code, int bits) {
  const nb::dlpack::dtype type = tensor.dtype();
  return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
}

bool is_int(const Tensor& tensor, int bits) {
  return is_type(tensor, nb::dlpack::dtype_code::Int, bits);
}

std::int32_t extent(const Tensor& tensor, std::size_t d) {
  return static_cast<std::int32_t>(tensor.shape(d));
}

KvType kv_type_of(const Tensor& kv, bool mla, const char* name) {
  switch (element_of(kv)) {
    case Element::bf16:
      return KvType::bf16;
    case Element::fp16:
      return KvType::fp16;
    case Element::byte:
      return mla && kv.shape(kv.ndim() - 1) == static_cast<std::size_t>(kMlaTileRowBytes)
                 ? KvType::e4m3_tile
                 : KvType::e4m3;
    default:
      throw InvalidArgument(std::string(name) +
                            " is neither bf16 (uint16 in NumPy), float16 nor a byte type");
  }
}

/// int32 [n], contiguous.
const std::int32_t* int32_of(const Tensor& array, const char* name) {
  require_dims(array, 1, name);
  if (!is_int(array, 32)) {
    throw InvalidArgument(std::string(name) + " is not a contiguous int32 array");
  }
  return static_cast<const std::int32_t*>(array.data());
}

/// Elements between the rows of [rows, columns], which may be a slice of wider ones.
std::int64_t row_stride(const Tensor& tensor, const char* name) {
  const auto columns = static_cast<std::int64_t>(tensor.shape(1));
  if (tensor.shape(0) <= 1) return columns;  // one row says nothing of others
  if (tensor.stride(0) < columns) {
    throw InvalidArgument(std::string(name) + ": rows overlap or stand in reverse");
  }
  return tensor.stride(0);
}

MaskKind mask_kind(const std::string& name) {
  if (name == "causal") return MaskKind::causal;
  if (name == "full") return MaskKind::full;
  throw InvalidArgument("mask = '" + name + "'; give causal, full, parents= or words=");
}

void set_rows(VerifyParams& params, const Tensor& k, const std::optional<Tensor>& v) {
  const bool mla = params.kind == AttentionKind::mla;
  require_dims(k, mla ? 2 : 3, "k");
  params.kv_type = kv_type_of(k, mla, "k");
  params.pool.k = k.data();
  params.pool.k_stride_row = k.stride(0) * bytes_per(k);
  params.pool.rows = static_cast<std::int64_t>(k.shape(0));
  const std::int32_t width = extent(k, mla ? 1 : 2);
  if (mla) {
    if (v) throw InvalidArgument("v is given, but MLA has its V in k");
    if (params.kv_type != KvType::e4m3_tile && width < params.head_dim_k) {
      throw InvalidArgument("rows of k have " + std::to_string(width) + " values, those of q " +
                            std::to_string(params.head_dim_k));
    }
    return;
  }
  if (!v) throw InvalidArgument("GQA needs v");
  require_dims(*v, 3, "v");
  if (v->shape(0) != k.shape(0) || v->shape(1) != k.shape(1) || v->shape(2) != k.shape(2) ||
      v->dtype() != k.dtype()) {
    throw InvalidArgument("k and v differ in rows, heads, head_dim or type");
  }
  if (width != params.head_dim_k) {
    throw InvalidArgument("head_dim is " + std::to_string(width) + " in k, " +
                          std::to_string(params.head_dim_k) + " in q");
  }
  params.kv_heads = extent(k, 1);
  params.pool.k_stride_head = k.stride(1) * bytes_per(k);
  params.pool.v = v->data();
  params.pool.v_stride_row = v->stride(0) * bytes_per(*v);
  params.pool.v_stride_head = v->stride(1) * bytes_per(*v);
}

void set_query(VerifyParams& params, const Tensor& q) {
  require_dims(q, 3, "q");
  params.tokens = extent(q, 0);
  params.heads = extent(q, 1);
  params.head_dim_k = extent(q, 2);
  const Element element = element_of(q);
  if (element != Element::bf16 && element != Element::fp16) {
    throw InvalidArgument("q is neither bf16 (uint16 in NumPy) nor float16");
  }
  params.q = {.data = q.data(),
              .type = element == Element::bf16 ? FloatType::bf16 : FloatType::fp16,
              .stride_token = q.stride(0) * bytes_per(q),
              .stride_head = q.stride(1) * bytes_per(q)};
}

void set_table(VerifyParams& params, const Tensor& table, const std::optional<Tensor>& indptr,
               std::int32_t page_size) {
  require_dims(table, indptr ? 1 : 2, "table");
  if (!is_int(table, 64) && !is_int(table, 32)) {
    throw InvalidArgument("table is neither int32 nor int64");
  }
  params.table = {.entries = table.data(),
                  .type = is_int(table, 64) ? IndexType::int64 : IndexType::int32,
                  .page_size = page_size};
  if (indptr) {
    params.table.indptr = int32_of(*indptr, "table_indptr");
    if (indptr->shape(0) != static_cast<std::size_t>(params.batch) + 1) {
      throw InvalidArgument("table_indptr is not [batch + 1]");
    }
    return;
  }
  if (table.shape(0) != static_cast<std::size_t>(params.batch)) {
    throw InvalidArgument("table is not [batch, pages]");
  }
  params.table.row_stride = row_stride(table, "table");
}

void set_mask(VerifyParams& params, const VerifyArguments& a) {
  if (a.parents && a.words) throw InvalidArgument("parents and words are both given");
  if (a.parents) {
    if (a.parents->ndim() != 1 || a.parents->shape(0) < static_cast<std::size_t>(params.tokens)) {
      throw InvalidArgument("parents is not [tokens]");
    }
    params.mask = {.kind = MaskKind::parents, .parents = int32_of(*a.parents, "parents")};
  } else if (a.words) {
    require_dims(*a.words, 2, "words");
    const bool bits = is_int(*a.words, 64) || is_type(*a.words, nb::dlpack::dtype_code::UInt, 64);
    if (!bits || a.words->shape(0) < static_cast<std::size_t>(params.tokens)) {
      throw InvalidArgument("words is not uint64 or int64 [tokens, words]");
    }
    params.mask = {.kind = MaskKind::words,
                   .words = static_cast<const std::uint64_t*>(a.words->data()),
                   .words_stride = row_stride(*a.words, "words")};
  } else {
    params.mask.kind = mask_kind(a.mask);
  }
}

SparseUnit sparse_unit(const std::string& name) {
  if (name == "position") return SparseUnit::position;
  if (name == "slot") return SparseUnit::slot;
  throw InvalidArgument("sparse_unit = '" + name + "'; give position or slot");
}

void set_sparse(VerifyParams& params, const Tensor& lists, const std::string& unit) {
  require_dims(lists, 2, "sparse");
  if (!is_int(lists, 32) || lists.shape(0) < static_cast<std::size_t>(params.tokens)) {
    throw InvalidArgument("sparse is not int32 [tokens, topk]");
  }
  if (lists.shape(1) == 0) throw InvalidArgument("sparse has rows of no entries");
  params.sparse = {.entries = static_cast<const std::int32_t*>(lists.data()),
                   .stride = row_stride(lists, "sparse"),
                   .topk = extent(lists, 1),
                   .unit = sparse_unit(unit)};
}

std::int64_t span_of(const Tensor& tensor) {
  if (tensor.size() == 0) return 0;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < tensor.ndim(); ++d) {
    last += (static_cast<std::int64_t>(tensor.shape(d)) - 1) * tensor.stride(d);
  }
  return last + 1;
}

}  // namespace

Element element_of(const Tensor& tensor) {
  const nb::dlpack::dtype type = tensor.dtype();
  if (is_type(tensor, nb::dlpack::dtype_code::Bfloat, 16) ||
      is_type(tensor, nb::dlpack::dtype_code::UInt, 16)) {
    return Element::bf16;
  }
  if (is_type(tensor, nb::dlpack::dtype_code::Float, 16)) return Element::fp16;
  if (is_type(tensor, nb::dlpack::dtype_code::Float, 32)) return Element::fp32;
  return type.lanes == 1 && type.bits == 8 ? Element::byte : Element::other;
}

std::int64_t bytes_per(const Tensor& tensor) {
  return tensor.dtype().bits / 8;
}

void require_dims(const Tensor& tensor, std::size_t dims, const char* name) {
  if (tensor.ndim() != dims) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(tensor.ndim()) +
                          " dimensions, not " + std::to_string(dims));
  }
  if (tensor.size() > 0 && tensor.shape(dims - 1) > 1 && tensor.stride(dims - 1) != 1) {
    throw InvalidArgument(std::string(name) + ": the last dimension is not contiguous");
  }
  for (std::size_t d = 0; d < dims; ++d) {
    if (tensor.shape(d) > static_cast<std::size_t>(kPagesMax)) {
      throw InvalidArgument(std::string(name) + " is too large");
    }
  }
}

void require_on(const Tensor& tensor, int device_type, int device_id, const char* name) {
  const bool there = tensor.device_type() == device_type &&
                     (device_type == nb::device::cpu::value || tensor.device_id() == device_id);
  if (there) return;
  throw InvalidArgument(std::string(name) + " is not " +
                        (device_type == nb::device::cpu::value
                             ? std::string("in host memory")
                             : "on CUDA device " + std::to_string(device_id)));
}

VerifyParams verify_params(const VerifyArguments& a) {
  const auto beside = [&](const Tensor& tensor, const char* name) {
    require_on(tensor, a.q.device_type(), a.q.device_id(), name);
  };
  beside(a.k, "k");
  beside(a.table, "table");
  beside(a.prefix_lens, "prefix_lens");
  beside(a.q_indptr, "q_indptr");
  if (a.v) beside(*a.v, "v");
  if (a.table_indptr) beside(*a.table_indptr, "table_indptr");
  if (a.parents) beside(*a.parents, "parents");
  if (a.words) beside(*a.words, "words");
  if (a.sparse) beside(*a.sparse, "sparse");

  VerifyParams params;
  if (a.kind != "mla" && a.kind != "gqa") throw InvalidArgument("kind = '" + a.kind + "'");
  params.kind = a.kind == "mla" ? AttentionKind::mla : AttentionKind::gqa;
  set_query(params, a.q);
  set_rows(params, a.k, a.v);
  params.head_dim_v = params.kind == AttentionKind::mla ? kMlaLatentDim : params.head_dim_k;
  params.rope_dim = params.kind == AttentionKind::mla ? params.head_dim_k - kMlaLatentDim : 0;
  params.prefix_lens = int32_of(a.prefix_lens, "prefix_lens");
  params.q_indptr = int32_of(a.q_indptr, "q_indptr");
  params.batch = extent(a.prefix_lens, 0);
  if (a.q_indptr.shape(0) != a.prefix_lens.shape(0) + 1) {
    throw InvalidArgument("q_indptr is not [batch + 1]");
  }
  set_table(params, a.table, a.table_indptr, a.page_size);
  set_mask(params, a);
  if (a.sparse) set_sparse(params, *a.sparse, a.sparse_unit);
  params.tail_place = a.tail ? TailPlace::pool : TailPlace::none;
  params.scale = a.scale;
  params.logit_cap = a.logit_cap;
  params.k_scale = a.k_scale;
  params.v_scale = a.v_scale;
  return params;
}

HostView extents_of(const VerifyArguments& a) {
  HostView view;
  view.prefix_lens.count = span_of(a.prefix_lens);
  view.q_indptr.count = span_of(a.q_indptr);
  view.table.count = span_of(a.table);
  if (a.table_indptr) view.table_indptr.count = span_of(*a.table_indptr);
  if (a.parents) view.parents.count = span_of(*a.parents);
  if (a.words) view.words.count = span_of(*a.words);
  if (a.sparse) view.sparse.count = span_of(*a.sparse);
  return view;
}

const char* const kVerifyArgumentsText =
    "q: [tokens, heads, head_dim_k], bf16 (NumPy: its bits as uint16) or float16.\n"
    "k: the pool. MLA: [rows, 576 or 512] bf16 or float16, [rows, 656] bytes (e4m3 with tile\n"
    "scales) or [rows, 576] bytes (e4m3, k_scale). GQA: [rows, kv_heads, head_dim], and v alike.\n"
    "table: [batch, pages] int32 or int64, page ids, or one row after another with table_indptr\n"
    "(int32 [batch + 1], entries); token t of a sequence is row\n"
    "table[b, t // page_size] * page_size + t % page_size.\n"
    "prefix_lens: int32 [batch], tokens. q_indptr: int32 [batch + 1]; the nodes of sequence b\n"
    "are query tokens q_indptr[b] .. q_indptr[b + 1] - 1, and their rows follow the prefix in\n"
    "the table (tail=False: nodes attend the prefix alone).\n"
    "parents: int32 [tokens], the parent's number within its tree or -1; words: uint64 (or\n"
    "int64) [tokens, words], bit j of a row: the node sees node j; else mask 'causal' or 'full'.\n"
    "sparse: int32 [tokens, topk], -1 is none: the prefix tokens that a query token attends, by\n"
    "sparse_unit 'position' (number in the prefix) or 'slot' (row of k), instead of all of them.\n"
    "Arrays may be slices with rows apart; within a row (and in one dimension) values are side by\n"
    "side, and what is not raises InvalidArgument.\n";

}  // namespace packstone::python
