// SPDX-License-Identifier: Apache-2.0
#include "verify_params.hpp"

#include <packstone/reference_verify.hpp>

using namespace packstone;
using namespace packstone::c_api;

packstone_status packstone_reference_verify(const packstone_verify_params* params,
                                            int32_t threads) {
  return guarded([&] {
    reference_verify(verify_params(params), {.threads = threads});
    return PACKSTONE_OK;
  });
}

packstone_status packstone_reference_merge(const float* out, const float* lse, int32_t parts,
                                           int64_t rows, int32_t dim, float* merged_out,
                                           float* merged_lse) {
  return guarded([&] {
    if (parts < 1 || rows < 0 || dim < 1) {
      throw InvalidArgument("merge of " + std::to_string(parts) + " parts of " +
                            std::to_string(rows) + " rows of " + std::to_string(dim));
    }
    if (rows == 0) return PACKSTONE_OK;
    (void)required(out, "out");
    (void)required(lse, "lse");
    (void)required(merged_out, "merged_out");
    (void)required(merged_lse, "merged_lse");
    reference_merge({.out = out, .lse = lse, .parts = parts, .rows = rows, .dim = dim}, merged_out,
                    merged_lse);
    return PACKSTONE_OK;
  });
}
