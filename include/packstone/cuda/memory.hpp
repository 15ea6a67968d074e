// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Owned device and pinned host memory, and the ring of pinned blocks through which small updates
/// travel to the device.

#include <packstone/cuda/stream.hpp>
#include <packstone/units.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace packstone::cuda {

/// Device memory from cudaMalloc, 256-byte aligned. The address never changes, so that captured
/// graphs may keep it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `bytes` >= 0; 0 gives a null pointer. Contents are undefined.
  explicit DeviceMemory(Bytes bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_{nullptr};
  Bytes bytes_{0};
};

/// Page-locked host memory that kernels and copy engines of every device reach.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(Bytes bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_{nullptr};
  Bytes bytes_{0};
};

/// A fixed number of pinned blocks used in turn. A block is handed out again only after the copy
/// that reads it has been reached; when none is, the caller is told so and nothing waits.
class StagingRing {
 public:
  StagingRing(std::size_t blocks, Bytes block_bytes);

  [[nodiscard]] Bytes block_bytes() const { return block_bytes_; }
  /// Whether the next block is free. Polls, never blocks.
  [[nodiscard]] bool ready() const { return events_[next_].reached(); }
  /// The next block. Only after `ready()`.
  [[nodiscard]] std::byte* block() const {
    return memory_.data() + static_cast<std::ptrdiff_t>(next_) * block_bytes_;
  }
  /// The block is in use until the work queued on `stream` so far is done; turns to the next.
  void submit(cudaStream_t stream) {
    events_[next_].record(stream);
    next_ = (next_ + 1) % events_.size();
  }

 private:
  Bytes block_bytes_;
  PinnedMemory memory_;
  std::vector<Event> events_;
  std::size_t next_{0};
};

/// What a kernel's host side must know of the device.
struct DeviceLimits {
  int device{0};
  int multiprocessors{0};
  int compute_capability{0};      ///< major * 10 + minor
  int shared_bytes_per_block{0};  ///< with the opt-in
  /// That of the code that this binary has for the device, below the device's own where it runs the
  /// PTX of an older one; 0 for none.
  int code_capability{0};
};
/// Of the current device. Throws UnsupportedDevice naming cudaErrorNoDevice when there is none,
/// CudaError when code that the binary has for it cannot be loaded.
[[nodiscard]] DeviceLimits current_device_limits();
/// Throws InvalidArgument unless `device` is the calling thread's current device: objects belong to
/// the device on which they were made.
void require_current_device(int device, const char* what);
/// Whether `stream` is being captured into a graph.
[[nodiscard]] bool capturing(cudaStream_t stream);

}  // namespace packstone::cuda
