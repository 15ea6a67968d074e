// SPDX-License-Identifier: Apache-2.0
// The device half of the C ABI in a library that was built without CUDA: the symbols are there, so
// that a program links against either, and say why they cannot.
#include "border.hpp"

using packstone::c_api::fail;

namespace {

packstone_status absent() {
  return fail(PACKSTONE_UNSUPPORTED_DEVICE, "this library was built without CUDA");
}

}  // namespace

packstone_status packstone_attention_create(const packstone_attention_options* /*options*/,
                                            packstone_attention** /*out*/) {
  return absent();
}

void packstone_attention_destroy(packstone_attention* /*attention*/) {}

packstone_status packstone_attention_workspace(const packstone_attention* /*attention*/,
                                               const packstone_verify_params* /*params*/,
                                               int64_t* /*bytes*/) {
  return absent();
}

packstone_status packstone_attention_run(const packstone_attention* /*attention*/,
                                         const packstone_verify_params* /*params*/,
                                         void* /*workspace*/, int64_t /*workspace_bytes*/,
                                         struct CUstream_st* /*stream*/) {
  return absent();
}

packstone_status packstone_attention_run_next_layer(const packstone_attention* /*attention*/,
                                                    const packstone_verify_params* /*params*/,
                                                    void* /*workspace*/,
                                                    int64_t /*workspace_bytes*/,
                                                    struct CUstream_st* /*stream*/) {
  return absent();
}

packstone_status packstone_compactor_create(const packstone_compactor_options* /*options*/,
                                            packstone_compactor** /*out*/) {
  return absent();
}

void packstone_compactor_destroy(packstone_compactor* /*compactor*/) {}

packstone_status packstone_compactor_compact(packstone_compactor* /*compactor*/,
                                             const packstone_page_move* /*moves*/, size_t /*count*/,
                                             struct CUstream_st* /*stream*/, int* /*queued*/) {
  return absent();
}
