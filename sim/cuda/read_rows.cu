// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/error.hpp>
#include <packstone/error.hpp>

#include <sim/cuda/read_rows.hpp>

#include <limits>

namespace packstone::sim {

namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;

/// A block reads kThreads x kInFlight neighbouring pieces; blocks are dealt out as multiprocessors
/// come free, since not all of them are equally near to memory. kPieces: 16-byte pieces of a row,
/// known at compile time so that no thread divides; 0: not known.
template <int kPieces>
__global__ void __launch_bounds__(kThreads) read_pieces(ReadRows rows, std::uint32_t total) {
  const auto pieces = kPieces > 0 ? static_cast<std::uint32_t>(kPieces)
                                  : static_cast<std::uint32_t>(rows.row_bytes / 16);
  const auto page_size = static_cast<std::uint32_t>(rows.page_size);
  const auto* base = static_cast<const uint4*>(rows.base);
  const std::uint32_t at = blockIdx.x * (kThreads * kInFlight) + threadIdx.x;
  uint4 loaded[kInFlight] = {};
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::uint32_t here = at + static_cast<std::uint32_t>(i) * kThreads;
    if (here >= total) continue;
    const std::uint32_t row = here / pieces;
    const std::uint32_t page = row / page_size;
    const std::int64_t slot = std::int64_t{rows.pages[page]} * page_size + (row - page * page_size);
    loaded[i] = base[slot * pieces + (here - row * pieces)];
  }
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    sum += loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
  }
  if (sum == 0x12345678U) *rows.sink = sum;
}

/// Reads so many words in one stretch: what pushes everything else out of the L2 and leaves nothing
/// to be written back.
__global__ void __launch_bounds__(kThreads)
    read_words(const uint4* words, std::int64_t count, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const uint4 x = words[i];
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678U) *sink = sum;
}

template <int kPieces>
void launch(const ReadRows& rows, std::uint32_t total, cudaStream_t stream) {
  constexpr std::uint32_t kBlock = kThreads * kInFlight;
  read_pieces<kPieces><<<(total + kBlock - 1) / kBlock, kThreads, 0, stream>>>(rows, total);
}

}  // namespace

void read_rows(const ReadRows& rows, cudaStream_t stream) {
  if (rows.row_bytes < 16 || rows.row_bytes % 16 != 0 || rows.page_size < 1 ||
      rows.page_count < 1) {
    throw InvalidArgument("read_rows: rows of " + std::to_string(rows.row_bytes) + " bytes, " +
                          std::to_string(rows.page_count) + " pages of " +
                          std::to_string(rows.page_size));
  }
  const std::int64_t total = rows.page_count * rows.page_size * (rows.row_bytes / 16);
  if (total > std::numeric_limits<std::int32_t>::max())
    throw InvalidArgument("read_rows: " + std::to_string(total) + " pieces are too many");
  const auto pieces = static_cast<std::uint32_t>(total);
  switch (rows.row_bytes) {
    case 128:
      launch<8>(rows, pieces, stream);
      break;
    case 256:
      launch<16>(rows, pieces, stream);
      break;
    case 576:
      launch<36>(rows, pieces, stream);
      break;
    case 656:
      launch<41>(rows, pieces, stream);
      break;
    case 1152:
      launch<72>(rows, pieces, stream);
      break;
    default:
      launch<0>(rows, pieces, stream);
      break;
  }
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
}

void read_stretch(const void* data, Bytes bytes, std::uint32_t* sink, cudaStream_t stream) {
  read_words<<<2048, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
  PACKSTONE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace packstone::sim
