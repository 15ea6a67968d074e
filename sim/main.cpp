// SPDX-License-Identifier: Apache-2.0
#include <sim/command.hpp>
#if PACKSTONE_WITH_CUDA
#include <sim/cuda/device_info.hpp>
#include <sim/cuda/gpu_probe.hpp>
#endif
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  packstone::sim::CommandContext context{
      .out = std::cout, .err = std::cerr, .show_progress = ::isatty(STDERR_FILENO) != 0};
#if PACKSTONE_WITH_CUDA
  context.describe_devices = packstone::sim::describe_devices;
  context.make_probe = [](std::string& reason) { return packstone::sim::make_gpu_probe(reason); };
#endif
  return packstone::sim::run_command(arguments, context);
}
