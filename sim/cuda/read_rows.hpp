// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <packstone/units.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace packstone::sim {

/// Rows that a plain kernel reads once, each at its place: the least that any attention kernel has
/// to do, and nothing else.
struct ReadRows {
  const void* base{nullptr};           ///< row 0 of page 0; 16-byte aligned device memory
  Bytes row_bytes{0};                  ///< a multiple of 16
  const std::int32_t* pages{nullptr};  ///< [page_count] in device memory, read in this order
  std::int64_t page_count{0};          ///< page_count x page_size x row_bytes / 16 below 2^31
  std::int32_t page_size{1};
  std::uint32_t* sink{nullptr};  ///< device memory; hardly ever written
};

/// In order of `stream`; does not synchronise. Throws InvalidArgument for sizes out of range,
/// cuda::CudaError when the launch fails.
void read_rows(const ReadRows& rows, cudaStream_t stream);

/// Reads `bytes` bytes of 16-byte aligned device memory, likewise.
void read_stretch(const void* data, Bytes bytes, std::uint32_t* sink, cudaStream_t stream);

}  // namespace packstone::sim
