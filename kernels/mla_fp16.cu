// SPDX-License-Identifier: Apache-2.0
#include "kernels/mla_instance.cuh"

template const void* packstone::kernels::mla_kernel<packstone::KvType::fp16>(MlaShape shape);
