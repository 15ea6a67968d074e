// SPDX-License-Identifier: Apache-2.0
// Rows in device memory, attention by the tree-verify kernels, moves by the compactor. The rest of
// the model stays on the host, so each layer waits for its attention: this shows that the parts fit
// together, not how fast they can be.
#include "kv_backend.hpp"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/error.hpp>
#include <packstone/cuda/stream.hpp>

#include <algorithm>

namespace runtime {
namespace {

using packstone::PageMove;
using packstone::SlotMove;
namespace cuda = packstone::cuda;

constexpr std::size_t kRowBytes = kRow * sizeof(std::uint16_t);

packstone::PoolLayout layout_of(const KvShape& shape) {
  return packstone::mla_layout({.layers = shape.layers, .page_size = shape.page_size});
}

packstone::VerifyBounds bounds_of(const KvShape& shape) {
  return {.batch_max = shape.batch_max,
          .tokens_max = shape.tokens_max,
          .q_len_max = shape.tokens_max,
          .length_max = static_cast<std::int32_t>(shape.pages * shape.page_size)};
}

/// Device memory that grows to what it is given.
class Buffer {
 public:
  template <typename T>
  T* room(std::size_t count) {
    const auto bytes = static_cast<packstone::Bytes>(std::max<std::size_t>(count, 1) * sizeof(T));
    if (memory_.bytes() < bytes) memory_ = cuda::DeviceMemory(2 * bytes);
    return memory_.as<T>();
  }
  /// Uploads in order of `stream`; pageable memory has been read when this returns.
  template <typename T>
  const T* put(std::span<const T> values, cudaStream_t stream) {
    T* data = room<T>(values.size());
    PACKSTONE_CUDA_CHECK(
        cudaMemcpyAsync(data, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream));
    return data;
  }

 private:
  cuda::DeviceMemory memory_;
};

class CudaBackend final : public KvBackend {
 public:
  explicit CudaBackend(const KvShape& shape)
      : shape_(shape),
        attention_({.bounds = bounds_of(shape)}),
        pool_(layout_of(shape), {.pages = shape.pages}),
        pools_{&pool_},
        compactor_(pools_, {}, {.moves_max = std::max<packstone::PageCount>(shape.pages, 1)}) {}
  ~CudaBackend() override { (void)cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] std::string_view name() const override { return "tree-verify kernels on the GPU"; }

  void verify(int layer, const VerifyBatch& batch, std::span<const std::uint16_t> rows,
              std::span<const std::uint16_t> queries, std::span<float> out) override {
    const std::uint16_t* staged = rows_.put(rows, stream_.get());
    for (std::size_t i = 0; i < batch.slots.size(); ++i) {
      copy_row(staged + i * kRow, row(layer, batch.slots[i]));
    }
    packstone::VerifyParams params = params_of(layer, batch);
    params.q.data = queries_.put(queries, stream_.get());
    float* attended = out_.room<float>(out.size());
    params.output.out = attended;
    const std::int64_t bytes = attention_.workspace_bytes(params);
    attention_.run(params, workspace_.room<std::byte>(static_cast<std::size_t>(bytes)), bytes,
                   stream_.get(), view_of(batch));
    PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(out.data(), attended, out.size_bytes(),
                                         cudaMemcpyDeviceToHost, stream_.get()));
    PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  }

  void move_rows(std::span<const SlotMove> moves) override {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (const SlotMove& move : moves) copy_row(row(layer, move.from), row(layer, move.to));
    }
  }

  void move_pages(std::span<const PageMove> moves) override {
    while (!compactor_.compact(moves, stream_.get())) {
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));  // every staging block is in use
    }
  }

  [[nodiscard]] std::uint64_t reached() override { return fence_.completed(); }
  std::uint64_t mark() override { return fence_.record(stream_.get()); }

 private:
  [[nodiscard]] std::uint16_t* row(int layer, packstone::SlotId slot) const {
    const packstone::PagePlane plane = pool_.plane(0, layer);
    const std::uint64_t page = static_cast<std::uint64_t>(slot / shape_.page_size);
    const std::uint64_t offset = static_cast<std::uint64_t>(slot % shape_.page_size);
    return reinterpret_cast<std::uint16_t*>(
        plane.base + page * static_cast<std::uint64_t>(plane.stride) + offset * kRowBytes);
  }

  void copy_row(const std::uint16_t* from, std::uint16_t* to) {
    PACKSTONE_CUDA_CHECK(
        cudaMemcpyAsync(to, from, kRowBytes, cudaMemcpyDeviceToDevice, stream_.get()));
  }

  [[nodiscard]] packstone::VerifyParams params_of(int layer, const VerifyBatch& batch) {
    packstone::VerifyParams params;
    params.heads = shape_.heads;
    params.head_dim_k = kRow;
    params.head_dim_v = kLatent;
    params.rope_dim = kRope;
    params.batch = static_cast<std::int32_t>(batch.prefix_lens.size());
    params.tokens = static_cast<std::int32_t>(batch.slots.size());
    params.prefix_lens = prefix_lens_.put(std::span(batch.prefix_lens), stream_.get());
    params.q_indptr = q_indptr_.put(std::span(batch.q_indptr), stream_.get());
    params.q = {.stride_token = std::int64_t{2} * kRow * shape_.heads,
                .stride_head = std::int64_t{2} * kRow};
    params.pool = {.k = row(layer, 0),
                   .k_stride_row = packstone::mla_row_bytes(packstone::KvType::bf16),
                   .rows = shape_.pages * shape_.page_size};
    params.table = {.entries = table_.put(std::span(batch.table), stream_.get()),
                    .page_size = static_cast<std::int32_t>(shape_.page_size),
                    .row_stride = batch.table_stride};
    params.mask = {.kind = packstone::MaskKind::parents,
                   .parents = parents_.put(std::span(batch.parents), stream_.get())};
    params.scale = batch.scale;
    params.output = {.type = packstone::FloatType::fp32,
                     .stride_token = std::int64_t{4} * kLatent * shape_.heads,
                     .stride_head = std::int64_t{4} * kLatent};
    return params;
  }

  static packstone::HostView view_of(const VerifyBatch& batch) {
    packstone::HostView view;
    view.prefix_lens = {batch.prefix_lens.data(), std::ssize(batch.prefix_lens)};
    view.q_indptr = {batch.q_indptr.data(), std::ssize(batch.q_indptr)};
    view.table = {batch.table.data(), std::ssize(batch.table)};
    view.parents = {batch.parents.data(), std::ssize(batch.parents)};
    return view;
  }

  KvShape shape_;
  cuda::TreeVerify attention_;
  cuda::DevicePool pool_;
  const cuda::DevicePool* pools_[1];
  cuda::Compactor compactor_;
  cuda::Stream stream_;
  cuda::EventFence fence_;
  Buffer rows_;
  Buffer queries_;
  Buffer out_;
  Buffer workspace_;
  Buffer prefix_lens_;
  Buffer q_indptr_;
  Buffer table_;
  Buffer parents_;
};

}  // namespace

std::unique_ptr<KvBackend> make_cuda_backend(const KvShape& shape) {
  return std::make_unique<CudaBackend>(shape);
}

}  // namespace runtime
