// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Order between streams and the host: owned streams and events, and the fence that says when
/// retired pages have lost their last reader.

#include <packstone/cuda/error.hpp>
#include <packstone/free_set.hpp>

#include <cuda_runtime_api.h>

#include <deque>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace packstone::cuda {

/// An owned stream that does not synchronise with the legacy default stream.
class Stream {
 public:
  /// @param first  its blocks are scheduled before those of other streams: for a compactor beside
  ///   attention, whose queued blocks would otherwise hold the patch up until the step's end
  explicit Stream(bool first = false);
  /// Finishes nothing: destroying a stream with work in flight is legal and does not wait.
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_{nullptr};
};

/// An owned event without timing.
class Event {
 public:
  Event() { PACKSTONE_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  [[nodiscard]] cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) { PACKSTONE_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  /// Work queued on `stream` from now on runs after the last record. Does not block the host.
  void wait(cudaStream_t stream) const {
    PACKSTONE_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }
  /// Whether the last record has been reached (also when there was none). Never blocks; throws
  /// CudaError when the work before it failed.
  [[nodiscard]] bool reached() const;

 private:
  cudaEvent_t event_{nullptr};
};

/// Turns stream order into epochs for FreeSet::retire and KvManager::reclaim.
///
/// An epoch is reached once every stream it was recorded on has got past the record. Record it on
/// *every* stream whose queued work may still read by the old page ids; work queued later must see
/// the new ids, which holds when it is ordered after the patch of the tables.
///
///     manager.apply(moves, patches, fence.next());       // sources retired, not yet free
///     compactor.compact(moves, stream);                  // asynchronous
///     fence.record({stream, other_reader});              // the epoch that next() named
///     ...
///     manager.reclaim(fence.completed());                // each step; never blocks
///
/// Not thread-safe.
class EventFence {
 public:
  /// The epoch that the next record will return.
  [[nodiscard]] Epoch next() const { return recorded_ + 1; }
  [[nodiscard]] Epoch recorded() const { return recorded_; }

  /// Asynchronous; the streams need not outlive the call. Throws InvalidArgument for no stream.
  Epoch record(std::span<const cudaStream_t> streams);
  Epoch record(std::initializer_list<cudaStream_t> streams) {
    return record(std::span(streams.begin(), streams.size()));
  }
  Epoch record(cudaStream_t stream) { return record({stream}); }

  /// The highest epoch up to which all have been reached; 0 before the first. Polls, never blocks.
  /// Throws CudaError when work before a record failed.
  [[nodiscard]] Epoch completed();
  /// Whether nothing is in flight. Polls, never blocks.
  [[nodiscard]] bool drained() { return completed() == recorded_; }

 private:
  struct Pending {
    Epoch epoch;
    std::vector<Event> events;
  };
  Epoch recorded_{0};
  Epoch completed_{0};
  std::deque<Pending> pending_;
  std::vector<Event> spare_;  // events are reused: creating one is not free
};

}  // namespace packstone::cuda
