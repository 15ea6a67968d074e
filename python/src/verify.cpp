// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

#include <packstone/reference_verify.hpp>

namespace packstone::python {
namespace {

/// Any tensor in host memory, by NumPy or DLPack.
using Tensor = nb::ndarray<nb::ro, nb::device::cpu>;
using Floats = nb::ndarray<nb::numpy, float>;

enum class Element : std::uint8_t { bf16, fp16, fp32, byte, other };

/// NumPy has no bf16, so uint16 stands for its bits.
Element element_of(const Tensor& tensor) {
  const nb::dlpack::dtype type = tensor.dtype();
  if (type.lanes != 1) return Element::other;
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits;
  };
  if (is(nb::dlpack::dtype_code::Bfloat, 16) || is(nb::dlpack::dtype_code::UInt, 16)) {
    return Element::bf16;
  }
  if (is(nb::dlpack::dtype_code::Float, 16)) return Element::fp16;
  if (is(nb::dlpack::dtype_code::Float, 32)) return Element::fp32;
  return type.bits == 8 ? Element::byte : Element::other;
}

std::int64_t bytes_per(const Tensor& tensor) {
  return tensor.dtype().bits / 8;
}

void require_dims(const Tensor& tensor, std::size_t dims, const char* name) {
  if (tensor.ndim() != dims) {
    throw InvalidArgument(std::string(name) + " has " + std::to_string(tensor.ndim()) +
                          " dimensions, not " + std::to_string(dims));
  }
  if (tensor.shape(dims - 1) > 1 && tensor.stride(dims - 1) != 1) {
    throw InvalidArgument(std::string(name) + ": the last dimension is not contiguous");
  }
  for (std::size_t d = 0; d < dims; ++d) {
    if (tensor.shape(d) > static_cast<std::size_t>(kPagesMax)) {
      throw InvalidArgument(std::string(name) + " is too large");
    }
  }
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
const std::int32_t* int32_of(const Ints& array, const char* name) {
  if (array.dtype() != nb::dtype<std::int32_t>() || (array.shape(0) > 1 && array.stride(0) != 1)) {
    throw InvalidArgument(std::string(name) + " is not a contiguous int32 array");
  }
  return static_cast<const std::int32_t*>(array.data());
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
  if (mla) {
    if (v) throw InvalidArgument("v is given, but MLA has its V in k");
    return;
  }
  if (!v) throw InvalidArgument("GQA needs v");
  require_dims(*v, 3, "v");
  if (v->shape(0) != k.shape(0) || v->shape(1) != k.shape(1) || v->dtype() != k.dtype()) {
    throw InvalidArgument("k and v differ in rows, heads or type");
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

void set_table(VerifyParams& params, const Tensor& table, std::int32_t page_size) {
  require_dims(table, 2, "table");
  const bool wide = table.dtype() == nb::dtype<std::int64_t>();
  if (!wide && table.dtype() != nb::dtype<std::int32_t>()) {
    throw InvalidArgument("table is neither int32 nor int64");
  }
  params.table = {.entries = table.data(),
                  .type = wide ? IndexType::int64 : IndexType::int32,
                  .page_size = page_size,
                  .row_stride = table.stride(0)};
  if (table.shape(0) != static_cast<std::size_t>(params.batch) ||
      (table.shape(0) > 1 && table.stride(0) < static_cast<std::int64_t>(table.shape(1)))) {
    throw InvalidArgument("table is not [batch, pages] with rows apart");
  }
  if (table.shape(0) == 1) params.table.row_stride = static_cast<std::int64_t>(table.shape(1));
}

void set_mask(VerifyParams& params, const std::string& mask, const std::optional<Ints>& parents,
              const std::optional<Tensor>& words) {
  if (parents && words) throw InvalidArgument("parents and words are both given");
  if (parents) {
    if (parents->shape(0) < static_cast<std::size_t>(params.tokens)) {
      throw InvalidArgument("parents is shorter than q");
    }
    params.mask = {.kind = MaskKind::parents, .parents = int32_of(*parents, "parents")};
  } else if (words) {
    require_dims(*words, 2, "words");
    if (words->dtype() != nb::dtype<std::uint64_t>() ||
        words->shape(0) < static_cast<std::size_t>(params.tokens)) {
      throw InvalidArgument("words is not uint64 [tokens, words]");
    }
    params.mask = {.kind = MaskKind::words,
                   .words = static_cast<const std::uint64_t*>(words->data()),
                   .words_stride = words->stride(0)};
  } else {
    params.mask.kind = mask_kind(mask);
  }
}

Floats new_floats(std::vector<std::size_t> shape) {
  std::size_t count = 1;
  for (const std::size_t each : shape) count *= each;
  // A spare float keeps `new` from giving back null-sized memory; rows need 16 bytes of alignment,
  // which `new` has.
  auto data = std::make_unique<float[]>(count + 1);
  nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Floats(data.release(), shape.size(), shape.data(), owner);
}

nb::tuple verify(const Tensor& q, const Tensor& k, const Tensor& table, const Ints& prefix_lens,
                 const Ints& q_indptr, const std::optional<Tensor>& v, const std::string& kind,
                 std::int32_t page_size, const std::string& mask,
                 const std::optional<Ints>& parents, const std::optional<Tensor>& words,
                 float scale, float logit_cap, float k_scale, float v_scale, bool tail,
                 std::int32_t threads) {
  VerifyParams params;
  if (kind != "mla" && kind != "gqa") throw InvalidArgument("kind = '" + kind + "'");
  params.kind = kind == "mla" ? AttentionKind::mla : AttentionKind::gqa;
  set_query(params, q);
  set_rows(params, k, v);
  params.head_dim_v = params.kind == AttentionKind::mla ? kMlaLatentDim : params.head_dim_k;
  params.rope_dim = params.kind == AttentionKind::mla ? params.head_dim_k - kMlaLatentDim : 0;
  params.batch = static_cast<std::int32_t>(prefix_lens.shape(0));
  if (q_indptr.shape(0) != prefix_lens.shape(0) + 1) {
    throw InvalidArgument("q_indptr is not [batch + 1]");
  }
  params.prefix_lens = int32_of(prefix_lens, "prefix_lens");
  params.q_indptr = int32_of(q_indptr, "q_indptr");
  set_table(params, table, page_size);
  set_mask(params, mask, parents, words);
  params.tail_place = tail ? TailPlace::pool : TailPlace::none;
  params.scale = scale;
  params.logit_cap = logit_cap;
  params.k_scale = k_scale;
  params.v_scale = v_scale;

  const auto tokens = static_cast<std::size_t>(params.tokens);
  const auto heads = static_cast<std::size_t>(params.heads);
  Floats out = new_floats({tokens, heads, static_cast<std::size_t>(params.head_dim_v)});
  Floats lse = new_floats({tokens, heads});
  params.output = {.out = out.data(),
                   .type = FloatType::fp32,
                   .stride_token = std::int64_t{4} * params.heads * params.head_dim_v,
                   .stride_head = std::int64_t{4} * params.head_dim_v,
                   .lse = lse.data(),
                   .lse_stride_token = std::int64_t{4} * params.heads};
  {
    const nb::gil_scoped_release unlocked;
    reference_verify(params, {.threads = threads});
  }
  return nb::make_tuple(out, lse);
}

using PartsOut = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using PartsLse = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::tuple merge(const PartsOut& out, const PartsLse& lse) {
  if (out.shape(0) != lse.shape(0) || out.shape(1) != lse.shape(1)) {
    throw InvalidArgument("out is not [parts, rows, dim] beside lse [parts, rows]");
  }
  Floats merged_out = new_floats({out.shape(1), out.shape(2)});
  Floats merged_lse = new_floats({lse.shape(1)});
  if (out.shape(0) < 1 || out.shape(2) < 1) throw InvalidArgument("no parts, or rows of no width");
  const StateParts parts{.out = out.data(),
                         .lse = lse.data(),
                         .parts = static_cast<std::int32_t>(out.shape(0)),
                         .rows = static_cast<std::int64_t>(out.shape(1)),
                         .dim = static_cast<std::int32_t>(out.shape(2))};
  {
    const nb::gil_scoped_release unlocked;
    if (parts.rows > 0) reference_merge(parts, merged_out.data(), merged_lse.data());
  }
  return nb::make_tuple(merged_out, merged_lse);
}

}  // namespace

void bind_verify(nb::module_& m) {
  m.def("reference_verify", &verify, nb::arg("q"), nb::arg("k"), nb::arg("table"),
        nb::arg("prefix_lens"), nb::arg("q_indptr"), nb::kw_only(), nb::arg("v") = nb::none(),
        nb::arg("kind") = "mla", nb::arg("page_size") = 1, nb::arg("mask") = "causal",
        nb::arg("parents") = nb::none(), nb::arg("words") = nb::none(), nb::arg("scale") = 1.0F,
        nb::arg("logit_cap") = 0.0F, nb::arg("k_scale") = 1.0F, nb::arg("v_scale") = 1.0F,
        nb::arg("tail") = true, nb::arg("threads") = 0,
        "Tree-verify attention on the CPU, in float64; (out, lse).\n\n"
        "q: [tokens, heads, head_dim_k], bf16 (NumPy: its bits as uint16) or float16.\n"
        "k: the pool. MLA: [rows, 576 or 512] bf16 or float16, [rows, 656] bytes (e4m3 with tile\n"
        "scales) or [rows, 576] bytes (e4m3, k_scale). GQA: [rows, kv_heads, head_dim], and v "
        "alike.\n"
        "table: [batch, pages] int32 or int64, page ids; token t of a sequence is row\n"
        "table[b, t // page_size] * page_size + t % page_size.\n"
        "prefix_lens: int32 [batch], tokens. q_indptr: int32 [batch + 1]; the nodes of sequence b\n"
        "are query tokens q_indptr[b] .. q_indptr[b + 1] - 1, and their rows follow the prefix in\n"
        "the table (tail=False: nodes attend the prefix alone).\n"
        "parents: int32 [tokens], the parent's number within its tree or -1; words: uint64\n"
        "[tokens, words], bit j of a row: the node sees node j; else mask 'causal' or 'full'.\n"
        "out: float32 [tokens, heads, 512 or head_dim]; lse: float32 [tokens, heads], natural "
        "log.\n"
        "No array is copied. The GIL is released. Raises InvalidArgument, PageError, TreeError.");
  m.def("reference_merge", &merge, nb::arg("out"), nb::arg("lse"),
        "Merges partial attention over disjoint tokens: float32 [parts, rows, dim] and\n"
        "[parts, rows], natural log, to (out [rows, dim], lse [rows]).");
}

}  // namespace packstone::python
