// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv_backend.hpp"
#include "server.hpp"

#include <memory>
#include <vector>

namespace runtime {

/// Requests of two assistants, each of which begins its prompts alike, of various lengths.
[[nodiscard]] std::vector<Request> make_requests(int count, int vocabulary, std::uint64_t seed);

/// The GPU's when this was built with CUDA and there is a device that the kernels run on, else the
/// CPU's.
[[nodiscard]] std::unique_ptr<KvBackend> make_backend(const KvShape& shape, float scale);

}  // namespace runtime
