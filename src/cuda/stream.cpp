// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/stream.hpp>

#include <iterator>

namespace packstone::cuda {

Stream::Stream(bool first) {
  int lowest = 0;
  int highest = 0;
  PACKSTONE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  PACKSTONE_CUDA_CHECK(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, first ? highest : lowest));
}

bool Event::reached() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) {
    // Not a fault, but the runtime keeps it as the last error, where a launch check would find it.
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();
    return false;
  }
  PACKSTONE_CUDA_CHECK(state);
  return true;
}

Epoch EventFence::record(std::span<const cudaStream_t> streams) {
  if (streams.empty()) throw InvalidArgument("a fence recorded on no stream would never hold");
  Pending pending{.epoch = recorded_ + 1, .events = {}};
  for (const cudaStream_t stream : streams) {
    if (spare_.empty()) {
      pending.events.emplace_back();
    } else {
      pending.events.push_back(std::move(spare_.back()));
      spare_.pop_back();
    }
    pending.events.back().record(stream);
  }
  pending_.push_back(std::move(pending));
  return ++recorded_;
}

Epoch EventFence::completed() {
  while (!pending_.empty()) {
    std::vector<Event>& events = pending_.front().events;
    while (!events.empty() && events.back().reached()) {
      spare_.push_back(std::move(events.back()));
      events.pop_back();
    }
    if (!events.empty()) break;
    completed_ = pending_.front().epoch;
    pending_.pop_front();
  }
  return completed_;
}

}  // namespace packstone::cuda
