// SPDX-License-Identifier: Apache-2.0
// Stands where a profiler would: loaded by NVTX into a program (NVTX_INJECTION64_PATH), it counts
// the ranges that are pushed, by name, and says at the end which there were and that all were
// popped.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <map>
#include <string>

namespace {

struct Ranges {
  std::map<std::string, int> pushed;
  int open{0};
  ~Ranges() {
    for (const auto& [name, count] : pushed) {
      std::printf("nvtx range %s: %s\n", name.c_str(), count > 1 ? "many" : "once");
    }
    std::printf("nvtx ranges left open: %d\n", open);
  }
};

Ranges& ranges() {
  static Ranges made;
  return made;
}

int NVTX_API push(const char* name) {
  ranges().pushed[name] += 1;
  return ranges().open++;
}

int NVTX_API pop() {
  return --ranges().open;
}

template <typename Function>
void hook(NvtxFunctionTable table, unsigned int at, Function function) {
  *table[at] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  hook(table, NVTX_CBID_CORE_RangePushA, &push);
  hook(table, NVTX_CBID_CORE_RangePop, &pop);
  return 1;
}
