// SPDX-License-Identifier: Apache-2.0
#include "kernels/gqa_instance.cuh"

template const void* packstone::kernels::gqa_kernel<256, packstone::KvType::bf16>(GqaShape shape);
