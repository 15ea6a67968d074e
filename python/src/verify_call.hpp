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

/// The arguments of a call; null handles where one is not given.
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
  std::string kind;
  std::int32_t page_size;
  std::string mask;
  float scale;
  float logit_cap;
  float k_scale;
  float v_scale;
  bool tail;
};

/// Everything but the output. Throws InvalidArgument for what does not fit together, tensors on
/// different devices among it.
[[nodiscard]] VerifyParams verify_params(const VerifyArguments& arguments);
/// The extents of the arrays, whose content is unknown.
[[nodiscard]] HostView extents_of(const VerifyArguments& arguments);

/// What both kinds of attention call say of their arguments.
extern const char* const kVerifyArgumentsText;

}  // namespace packstone::python
