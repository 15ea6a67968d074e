// SPDX-License-Identifier: Apache-2.0
#include "verify_params.hpp"

#include <packstone/cuda/attention.hpp>

using namespace packstone;
using namespace packstone::c_api;

struct packstone_attention {
  cuda::TreeVerify verify;
};

packstone_status packstone_attention_create(const packstone_attention_options* options,
                                            packstone_attention** out) {
  return guarded([&] {
    const packstone_attention_options given = read_struct(options, "options");
    packstone_attention*& result = required(out, "out");
    result =
        new packstone_attention{cuda::TreeVerify({.bounds = {.batch_max = given.batch_max,
                                                             .tokens_max = given.tokens_max,
                                                             .q_len_max = given.q_len_max,
                                                             .length_max = given.length_max},
                                                  .splits = given.splits,
                                                  .batch_invariant = given.batch_invariant != 0,
                                                  .split_tokens = given.split_tokens})};
    return PACKSTONE_OK;
  });
}

void packstone_attention_destroy(packstone_attention* attention) {
  delete attention;
}

packstone_status packstone_attention_workspace(const packstone_attention* attention,
                                               const packstone_verify_params* params,
                                               int64_t* bytes) {
  return guarded([&] {
    const std::int64_t needed =
        required(attention, "attention").verify.workspace_bytes(verify_params(params));
    required(bytes, "bytes") = needed;
    return PACKSTONE_OK;
  });
}

namespace {

packstone_status run(const packstone_attention* attention, const packstone_verify_params* params,
                     void* workspace, int64_t workspace_bytes, struct CUstream_st* stream,
                     ScheduleUse use) {
  return guarded([&] {
    required(attention, "attention")
        .verify.run(verify_params(params), workspace, workspace_bytes, stream, {}, use);
    return PACKSTONE_OK;
  });
}

}  // namespace

packstone_status packstone_attention_run(const packstone_attention* attention,
                                         const packstone_verify_params* params, void* workspace,
                                         int64_t workspace_bytes, struct CUstream_st* stream) {
  return run(attention, params, workspace, workspace_bytes, stream, ScheduleUse::make);
}

packstone_status packstone_attention_run_next_layer(const packstone_attention* attention,
                                                    const packstone_verify_params* params,
                                                    void* workspace, int64_t workspace_bytes,
                                                    struct CUstream_st* stream) {
  return run(attention, params, workspace, workspace_bytes, stream, ScheduleUse::reuse);
}
