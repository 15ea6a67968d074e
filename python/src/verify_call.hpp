// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An attention call from Python: tensors in host or device memory, read in place by DLPack, as the
/// VerifyParams of the library.

#include "bindings.hpp"

#include <packstone/verify_checks.hpp>
#include <packstone/verify_params.hpp>

#include <optional>
#include <string>

namespace packstone::python {

/// A tensor wherever it lies, by NumPy or DLPack; not copied.
using Tensor = nb::ndarray<nb::ro>;

enum class Element : std::uint8_t { bf16, fp16, fp32, byte, other };
/// NumPy has no bf16, so uint16 stands for its bits.
[[nodiscard]] Element element_of(const Tensor& tensor);
[[nodiscard]] std::int64_t bytes_per(const Tensor& tensor);
/// Throws InvalidArgument for another number of dimensions, a last one that is not contiguous, or
/// an extent beyond 32 bits.
void require_dims(const Tensor& tensor, std::size_t dims, const char* name);
/// Throws InvalidArgument unless the tensor lies on the device of that kind and number.
void require_on(const Tensor& tensor, int device_type, int device_id, const char* name);

/// The arguments of a call; empty where one is not given.
struct VerifyArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& table;
  const Tensor& prefix_lens;
  const Tensor& q_indptr;
  const std::optional<Tensor>& v;
  const std::optional<Tensor>& table_indptr;
  const std::optional<Tensor>& parents;
  const std::optional<Tensor>& words;
  const std::optional<Tensor>& sparse;
  std::string sparse_unit;
  std::string kind;
  std::int32_t page_size;
  std::string mask;
  float scale;
  float logit_cap;
  float k_scale;
  float v_scale;
  bool tail;
};

/// Types of the parameters that a function has besides.
template <typename... Each>
struct Parameters {};

/// The function that Python calls: what it has in front, the arrays, what it has of its own, the
/// options; it gives `call` what it has in front, the arguments, and what it has of its own.
template <typename... Front, typename... Own, typename Call>
auto taking_arguments(Parameters<Front...> /*front*/, Parameters<Own...> /*own*/, Call call) {
  using Optional = std::optional<Tensor>;
  return [call](Front... front, const Tensor& q, const Tensor& k, const Tensor& table,
                const Tensor& prefix_lens, const Tensor& q_indptr, Own... own, const Optional& v,
                const Optional& table_indptr, const std::string& kind, std::int32_t page_size,
                const std::string& mask, const Optional& parents, const Optional& words,
                const Optional& sparse, const std::string& sparse_unit, float scale,
                float logit_cap, float k_scale, float v_scale, bool tail) {
    const VerifyArguments arguments{.q = q,
                                    .k = k,
                                    .table = table,
                                    .prefix_lens = prefix_lens,
                                    .q_indptr = q_indptr,
                                    .v = v,
                                    .table_indptr = table_indptr,
                                    .parents = parents,
                                    .words = words,
                                    .sparse = sparse,
                                    .sparse_unit = sparse_unit,
                                    .kind = kind,
                                    .page_size = page_size,
                                    .mask = mask,
                                    .scale = scale,
                                    .logit_cap = logit_cap,
                                    .k_scale = k_scale,
                                    .v_scale = v_scale,
                                    .tail = tail};
    return call(front..., arguments, own...);
  };
}

/// Calls `define` with the names and defaults of what taking_arguments makes; `own` are those of
/// its own parameters, nb::kw_only() among them, since the options are given by name.
template <typename Define, typename... Own>
void with_argument_names(const Define& define, const Own&... own) {
  define(nb::arg("q"), nb::arg("k"), nb::arg("table"), nb::arg("prefix_lens"), nb::arg("q_indptr"),
         own..., nb::arg("v") = nb::none(), nb::arg("table_indptr") = nb::none(),
         nb::arg("kind") = "mla", nb::arg("page_size") = 1, nb::arg("mask") = "causal",
         nb::arg("parents") = nb::none(), nb::arg("words") = nb::none(),
         nb::arg("sparse") = nb::none(), nb::arg("sparse_unit") = "position",
         nb::arg("scale") = 1.0F, nb::arg("logit_cap") = 0.0F, nb::arg("k_scale") = 1.0F,
         nb::arg("v_scale") = 1.0F, nb::arg("tail") = true);
}

/// Everything but the output. Throws InvalidArgument for what does not fit together, tensors on
/// different devices among it.
[[nodiscard]] VerifyParams verify_params(const VerifyArguments& arguments);
/// The extents of the arrays, whose content is unknown: from the first element to the last, so that
/// a slice's rows count with what lies between them, as strides do.
[[nodiscard]] HostView extents_of(const VerifyArguments& arguments);

/// What both kinds of attention call say of their arguments.
extern const char* const kVerifyArgumentsText;

}  // namespace packstone::python
