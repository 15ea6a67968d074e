// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The attention of verify_params.hpp on the CPU, and the merge of partial results: the oracle of
/// the kernels' tests, and what runs where there is no GPU.

#include <packstone/verify_params.hpp>

#include <cstdint>

namespace packstone {

struct ReferenceOptions {
  std::int32_t threads{0};  ///< threads to use; 0: one a hardware thread
};

/// Computes `params`, all of whose pointers are to host memory, into `params.output`.
///
/// Values are decoded exactly, and products, sums and the softmax are float64; only the last store
/// rounds, to `output.type` and to float for lse. The softmax is the online one (Milakov and
/// Gimelshein, "Online normalizer calculation for softmax", 2018), in pieces of a fixed number of
/// tokens that are merged in order, so the result does not depend on the number of threads. Any
/// head_dim that `validate` admits.
///
/// Memory: at most about 200 MB for partial results, whatever the lengths.
/// Throws what `validate` throws, before writing anything.
void reference_verify(const VerifyParams& params, const ReferenceOptions& options = {});

/// Partial results of the same rows over disjoint sets of tokens.
struct StateParts {
  const float* out{nullptr};  ///< [parts, rows, dim], dense; a part with lse -inf is not read
  const float* lse{nullptr};  ///< [parts, rows], dense
  std::int32_t parts{0};      ///< >= 1
  std::int64_t rows{0};       ///< >= 0
  std::int32_t dim{0};        ///< >= 1
  LseBase lse_base{LseBase::natural};
};

/// Merges parts into out [rows, dim] and lse [rows], dense; either may be one of the parts. With m
/// the largest lse of a row and w_i = exp(lse_i - m): out = sum w_i out_i / sum w_i and lse = m +
/// log(sum w_i), in the base of lse. Parts with lse -inf take no part, so a row with none left has
/// out 0 and lse -inf, and a row with one left is that part, bit for bit. An lse of +inf or NaN is
/// not a state; it gives NaN.
void reference_merge(const StateParts& states, float* out, float* lse);

}  // namespace packstone
