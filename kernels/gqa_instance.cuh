// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What each instantiation file of the GQA kernel instantiates.

#include "kernels/gqa_launch.hpp"
#include "kernels/gqa_verify.cuh"

namespace packstone::kernels {

template <int head_dim, KvType type>
const void* gqa_kernel(GqaShape shape) {
  return shape == GqaShape::few_rows
             ? reinterpret_cast<const void*>(
                   &gqa::verify_kernel<head_dim, type, GqaShape::few_rows>)
             : reinterpret_cast<const void*>(
                   &gqa::verify_kernel<head_dim, type, GqaShape::many_rows>);
}

}  // namespace packstone::kernels
