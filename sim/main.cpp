// SPDX-License-Identifier: Apache-2.0
#include <sim/command.hpp>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return packstone::sim::run_command(
      arguments,
      {.out = std::cout, .err = std::cerr, .show_progress = ::isatty(STDERR_FILENO) != 0});
}
