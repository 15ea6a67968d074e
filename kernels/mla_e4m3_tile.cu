// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_instance.cuh"

template const void* packstone::kernels::mla_kernel<packstone::KvType::e4m3_tile>(MlaShape shape);
