// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/attention.hpp>

#include <fmt/format.h>
#include <sim/cuda/device_info.hpp>

#include <ostream>

namespace packstone::sim {

void describe_devices(std::ostream& out) {
  try {
    const cuda::AttentionDescription description = cuda::describe_attention();
    const cuda::DeviceLimits& limits = description.limits;
    out << fmt::format(
        "CUDA device {}: {}, compute capability {}.{}, {} multiprocessors, {} bytes of shared "
        "memory a block\nbinary: code for {}\n",
        limits.device, description.device_name, limits.compute_capability / 10,
        limits.compute_capability % 10, limits.multiprocessors, limits.shared_bytes_per_block,
        description.binary_architectures);
    out << fmt::format("{:<28} {:>8} {:>14} {:>10} {:>12}\n", "kernel", "threads", "shared bytes",
                       "registers", "local bytes");
    for (const cuda::KernelDescription& kernel : description.kernels) {
      out << fmt::format("{:<28} {:>8} {:>14} {:>10} {:>12}\n", kernel.name, kernel.threads,
                         kernel.shared_bytes, kernel.registers, kernel.local_bytes);
    }
  } catch (const Error& error) {
    out << "CUDA: built in, but " << error.what() << '\n';
  }
}

}  // namespace packstone::sim
