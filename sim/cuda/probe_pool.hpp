// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A pool of a model's geometry full of random values, and attention over page tables in it.

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/memory.hpp>
#include <packstone/cuda/stream.hpp>

#include <sim/bandwidth.hpp>

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace packstone::sim {

/// Device memory with these values. Synchronises.
template <typename T>
[[nodiscard]] cuda::DeviceMemory uploaded(std::span<const T> values) {
  cuda::DeviceMemory memory(static_cast<Bytes>(values.size_bytes()));
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(memory.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  return memory;
}

/// Reads four times the L2 before each `work`, and times what `work` queues by events. Reads, since
/// lines written would be written back within the time.
class ColdTimer {
 public:
  ColdTimer();
  ~ColdTimer();
  ColdTimer(const ColdTimer&) = delete;
  ColdTimer& operator=(const ColdTimer&) = delete;
  /// Microseconds of one call; waits for it.
  double once(cudaStream_t stream, const std::function<void()>& work);
  /// Median of `passes` calls.
  double median(cudaStream_t stream, int passes, const std::function<void()>& work);

 private:
  cuda::DeviceMemory cover_;
  cuda::DeviceMemory sink_{4};
  cudaEvent_t start_{};
  cudaEvent_t stop_{};
};

/// Rows of `row_bytes` bytes of ordinary numbers (about 0.05) of the type, random from a fixed
/// seed: [rows x row_bytes].
[[nodiscard]] std::vector<std::byte> random_rows(KvType type, Bytes row_bytes, std::int64_t rows);

class ProbePool {
 public:
  /// Layers as many as fit `bytes_max`, at most the model's. Throws InvalidArgument when not one
  /// does, CudaError when memory is lacking.
  ProbePool(const KvModel& model, std::int64_t page_size, PageCount pages, Bytes bytes_max);

  [[nodiscard]] bool serves(const KvModel& model, std::int64_t page_size, PageCount pages) const;
  [[nodiscard]] const cuda::DevicePool& pool() const { return pool_; }
  [[nodiscard]] std::int32_t layers() const { return layers_; }
  [[nodiscard]] const KvModel& model() const { return model_; }
  /// Row 0 of page 0 of a buffer's layer.
  [[nodiscard]] std::byte* rows(std::size_t buffer, std::int32_t layer) const;

 private:
  void fill();

  KvModel model_;
  std::int32_t layers_;
  cuda::DevicePool pool_;
};

/// The tables of a placement as attention reads them: [sequences, columns] pages.
class DeviceTables {
 public:
  explicit DeviceTables(const TableSet& set);
  [[nodiscard]] std::int32_t* entries() const { return memory_.as<std::int32_t>(); }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  /// As they are on the device now. Synchronises.
  [[nodiscard]] std::vector<std::int32_t> read() const;
  /// What the constructor of this set would upload.
  [[nodiscard]] static std::vector<std::int32_t> padded(const TableSet& set);

 private:
  std::int64_t columns_{0};
  std::int64_t count_{0};
  cuda::DeviceMemory memory_;
};

/// Verify, or decode for one query token, of a case's sequences; every placement has equal lengths.
class ProbeAttention {
 public:
  ProbeAttention(const ProbePool& pool, const ProbeCase& probe);
  /// Queues the attention of one layer.
  void run(const DeviceTables& tables, std::int32_t layer, cudaStream_t stream);
  /// The output of that layer, as bytes. Synchronises.
  [[nodiscard]] std::vector<std::byte> output(const DeviceTables& tables, std::int32_t layer,
                                              cudaStream_t stream);

 private:
  const ProbePool& pool_;
  VerifyParams params_;
  cuda::DeviceMemory lengths_, offsets_, parents_, q_, out_, workspace_;
  std::unique_ptr<cuda::TreeVerify> verify_;
};

}  // namespace packstone::sim
