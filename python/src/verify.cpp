// SPDX-License-Identifier: Apache-2.0
#include "verify_call.hpp"

#include <packstone/reference_verify.hpp>

namespace packstone::python {
namespace {

using Floats = nb::ndarray<nb::numpy, float>;

Floats new_floats(const std::vector<std::size_t>& shape) {
  std::size_t count = 1;
  for (const std::size_t each : shape) count *= each;
  // A spare float keeps `new` from giving back null-sized memory; rows need 16 bytes of alignment,
  // which `new` has.
  auto data = std::make_unique<float[]>(count + 1);
  nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Floats(data.release(), shape.size(), shape.data(), owner);
}

/// Throws for an array shorter than the lengths need: reference_verify sees addresses only.
void require_extents(const VerifyArguments& arguments, VerifyParams params) {
  HostView view = extents_of(arguments);
  view.prefix_lens.data = params.prefix_lens;
  view.q_indptr.data = params.q_indptr;
  view.table_indptr.data = params.table.indptr;
  // Rows of a slice are counted without what lies between them.
  if (!arguments.table_indptr) {
    params.table.row_stride = static_cast<std::int64_t>(arguments.table.shape(1));
  }
  if (arguments.words) {
    params.mask.words_stride = static_cast<std::int64_t>(arguments.words->shape(1));
  }
  view.sparse.data = params.sparse.entries;
  validate(params, view);
}

nb::tuple verify(const VerifyArguments& arguments, std::int32_t threads) {
  require_on(arguments.q, nb::device::cpu::value, 0, "q");
  VerifyParams params = verify_params(arguments);
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
  require_extents(arguments, params);
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
  const std::string text =
      std::string("Tree-verify attention on the CPU, in float64; (out, lse).\n\n") +
      kVerifyArgumentsText +
      "out: float32 [tokens, heads, 512 or head_dim]; lse: float32 [tokens, "
      "heads], natural log.\n"
      "No array is copied. The GIL is released. Raises InvalidArgument, "
      "PageError, TreeError.";
  with_argument_names(
      [&](const auto&... names) {
        m.def("reference_verify",
              taking_arguments(Parameters<>{}, Parameters<std::int32_t>{}, verify), names...,
              text.c_str());
      },
      nb::kw_only(), nb::arg("threads") = 0);
  m.def("reference_merge", &merge, nb::arg("out"), nb::arg("lse"),
        "Merges partial attention over disjoint tokens: float32 [parts, rows, dim] and\n"
        "[parts, rows], natural log, to (out [rows, dim], lse [rows]).");
}

}  // namespace packstone::python
