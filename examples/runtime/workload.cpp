// SPDX-License-Identifier: Apache-2.0
#include "workload.hpp"

#ifdef RUNTIME_CUDA
#include <packstone/cuda/error.hpp>
#endif

#include <random>

namespace runtime {

std::vector<Request> make_requests(int count, int vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::size_t tokens) {
    std::vector<Token> out(tokens);
    for (Token& token : out) {
      token = static_cast<Token>(random() % static_cast<std::uint64_t>(vocabulary));
    }
    return out;
  };
  const std::vector<std::vector<Token>> systems{draw(70), draw(131)};
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request{.prompt = systems[random() % systems.size()],
                    .tokens_max = 8 + static_cast<int>(random() % 40)};
    if (i % 5 == 4) request.prompt.resize(1 + random() % 20);
    const std::vector<Token> question = draw(1 + random() % 30);
    request.prompt.insert(request.prompt.end(), question.begin(), question.end());
    requests.push_back(std::move(request));
  }
  return requests;
}

std::unique_ptr<KvBackend> make_backend(const KvShape& shape, float scale) {
#ifdef RUNTIME_CUDA
  try {
    return make_cuda_backend(shape, scale);
  } catch (const packstone::cuda::UnsupportedDevice&) {
    return make_host_backend(shape, scale, 0);  // its name says where the run took place
  }
#else
  return make_host_backend(shape, scale, 0);
#endif
}

}  // namespace runtime
