// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What each instantiation file of the MLA kernels instantiates.

#include "kernels/mla_few_rows.cuh"
#include "kernels/mla_launch.hpp"
#include "kernels/mla_many_rows.cuh"

namespace packstone::kernels {

template <KvType type>
const void* mla_kernel(MlaShape shape) {
  return shape == MlaShape::few_rows ? reinterpret_cast<const void*>(&mla::few_rows_kernel<type>)
                                     : reinterpret_cast<const void*>(&mla::many_rows_kernel<type>);
}

}  // namespace packstone::kernels
