// SPDX-License-Identifier: Apache-2.0
// Prints, for scripts/kernel-gate, the dynamic shared memory that each attention kernel is launched
// with: a part of the kernel's mangled name and bytes, a line each. The other kernels ask for what
// the device at hand has left.
#include "kernels/gqa_args.hpp"
#include "kernels/mla_args.hpp"

#include <iostream>

namespace {

using packstone::KvType;
using namespace packstone::kernels;

void print_gqa() {
  for (const std::int32_t head_dim : {64, 128, 256}) {
    for (const KvType type : {KvType::bf16, KvType::fp16, KvType::e4m3}) {
      for (const GqaShape shape : {GqaShape::few_rows, GqaShape::many_rows}) {
        std::cout << "3gqa13verify_kernelILi" << head_dim << "ELNS_6KvTypeE"
                  << static_cast<int>(type) << "ELNS0_8GqaShapeE" << static_cast<int>(shape)
                  << "EE " << GqaPolicy{head_dim, type, shape}.shared_bytes() << '\n';
      }
    }
  }
}

void print_mla() {
  for (const KvType type : {KvType::bf16, KvType::fp16, KvType::e4m3, KvType::e4m3_tile}) {
    std::cout << "3mla15few_rows_kernelILNS_6KvTypeE" << static_cast<int>(type) << "EE "
              << MlaPolicy{type, MlaShape::few_rows}.shared_bytes() << '\n'
              << "3mla16many_rows_kernelILNS_6KvTypeE" << static_cast<int>(type) << "EE "
              << MlaPolicy{type, MlaShape::many_rows}.shared_bytes() << '\n';
  }
}

}  // namespace

int main() {
  print_gqa();
  print_mla();
}
