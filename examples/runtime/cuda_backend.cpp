// SPDX-License-Identifier: Apache-2.0
// Rows in device memory, attention by the tree-verify kernels, moves by the compactor.
//
// A layer's verification - rows to their slots, attention - is captured once, for the largest batch
// of the shape, and replayed for every step: the addresses never change, and the lengths, tables
// and trees of the step are read from them on the device. Rows of the graph that a step does not
// have are padding: sequences without nodes, nodes whose slot is -1. Moves between two steps
// change what the tables say and not where they lie, so no graph is captured again.
//
// The rest of the model stays on the host, so each layer waits for its attention: this shows that
// the parts fit together, not how fast they can be.
#include "kv_backend.hpp"

#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/error.hpp>
#include <packstone/cuda/stream.hpp>
#include <packstone/cuda/transfer.hpp>

#include <algorithm>
#include <cstring>

namespace runtime {
namespace {

using packstone::PageMove;
using packstone::SlotId;
using packstone::SlotMove;
namespace cuda = packstone::cuda;

constexpr std::size_t kRowBytes = kRow * sizeof(std::uint16_t);

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

/// A captured stretch of work.
class Graph {
 public:
  /// `enqueue` queues the work on `stream` and nothing else.
  template <typename Enqueue>
  Graph(cudaStream_t stream, const Enqueue& enqueue) {
    PACKSTONE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph = nullptr;
    PACKSTONE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    PACKSTONE_CUDA_CHECK(cudaGraphDestroy(graph));
    PACKSTONE_CUDA_CHECK(made);
  }
  ~Graph() {
    if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
  }
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  void replay(cudaStream_t stream) const { PACKSTONE_CUDA_CHECK(cudaGraphLaunch(graph_, stream)); }

 private:
  cudaGraphExec_t graph_{nullptr};
};

/// The same bytes on both sides: pinned to be filled, and on the device to be read by the kernels.
class Mirror {
 public:
  explicit Mirror(packstone::Bytes bytes) : host_(bytes), device_(bytes) {}
  [[nodiscard]] std::byte* host() const { return host_.data(); }
  [[nodiscard]] std::byte* device() const { return device_.data(); }
  void upload(std::size_t bytes, cudaStream_t stream) {
    PACKSTONE_CUDA_CHECK(
        cudaMemcpyAsync(device_.data(), host_.data(), bytes, cudaMemcpyHostToDevice, stream));
  }
  void download(std::size_t bytes, cudaStream_t stream) {
    PACKSTONE_CUDA_CHECK(
        cudaMemcpyAsync(host_.data(), device_.data(), bytes, cudaMemcpyDeviceToHost, stream));
  }

 private:
  cuda::PinnedMemory host_;
  cuda::DeviceMemory device_;
};

/// An array within a mirror.
template <typename T>
struct Part {
  std::size_t offset{0};
  std::size_t count{0};
  [[nodiscard]] std::span<T> host(const Mirror& mirror) const {
    return {reinterpret_cast<T*>(mirror.host() + offset), count};
  }
  [[nodiscard]] T* device(const Mirror& mirror) const {
    return reinterpret_cast<T*>(mirror.device() + offset);
  }
  /// `values`, and behind them `padding`.
  void fill(const Mirror& mirror, std::span<const T> values, T padding) const {
    const std::span<T> to = host(mirror);
    std::ranges::copy(values, to.begin());
    std::ranges::fill(to.subspan(values.size()), padding);
  }
};

/// What the kernels are told of a step, in one block, so that one copy brings it.
struct StepLayout {
  Part<SlotId> slots;              // [tokens_max], -1: padding
  Part<std::int32_t> prefix_lens;  // [batch_max]
  Part<std::int32_t> q_indptr;     // [batch_max + 1]
  Part<std::int32_t> parents;      // [tokens_max]
  Part<std::int32_t> table;        // [batch_max, pages]; last: only its live rows are uploaded
  std::size_t bytes{0};

  explicit StepLayout(const KvShape& shape) {
    place(slots, size(shape.tokens_max));
    place(prefix_lens, size(shape.batch_max));
    place(q_indptr, size(shape.batch_max) + 1);
    place(parents, size(shape.tokens_max));
    place(table, size(shape.batch_max) * size(shape.pages));
  }

 private:
  template <typename T>
  void place(Part<T>& part, std::size_t count) {
    part = {.offset = bytes, .count = count};
    bytes = (bytes + count * sizeof(T) + 255) / 256 * 256;
  }
};

class CudaBackend final : public KvBackend {
 public:
  CudaBackend(const KvShape& shape, float scale)
      : shape_(shape),
        scale_(scale),
        attention_(
            {.bounds = {.batch_max = shape.batch_max,
                        .tokens_max = shape.tokens_max,
                        .q_len_max = shape.tokens_max,
                        .length_max = static_cast<std::int32_t>(shape.pages * shape.page_size)}}),
        pool_(packstone::mla_layout({.layers = shape.layers, .page_size = shape.page_size}),
              {.pages = shape.pages}),
        pools_{&pool_},
        compactor_(pools_, {}, {.moves_max = std::max<packstone::PageCount>(shape.pages, 1)}),
        layout_(shape),
        step_(static_cast<packstone::Bytes>(layout_.bytes)),
        rows_(static_cast<packstone::Bytes>(size(shape.tokens_max) * kRowBytes)),
        queries_(
            static_cast<packstone::Bytes>(size(shape.tokens_max) * size(shape.heads) * kRowBytes)),
        out_(static_cast<packstone::Bytes>(size(shape.tokens_max) * size(shape.heads) * kLatent *
                                           sizeof(float))),
        commit_slots_(static_cast<packstone::Bytes>(2 * size(shape.tokens_max) * sizeof(SlotId))),
        commit_rows_(static_cast<packstone::Bytes>(size(shape.tokens_max) * kRowBytes)),
        workspace_(attention_.workspace_bytes(params_of(0))) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      graphs_.emplace_back(stream_.get(), [&] { enqueue(layer); });
    }
  }
  ~CudaBackend() override { (void)cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] std::string name() const override {
    cudaDeviceProp properties{};
    PACKSTONE_CUDA_CHECK(cudaGetDeviceProperties(&properties, attention_.device().device));
    return std::string("tree-verify kernels, captured, on ") + properties.name;
  }

  void begin(const VerifyBatch& batch) override {
    const std::size_t sequences = batch.prefix_lens.size();
    if (std::ssize(batch.prefix_lens) > shape_.batch_max ||
        std::ssize(batch.slots) > shape_.tokens_max || batch.table_stride > shape_.pages) {
      throw packstone::InvalidArgument("a batch of " + std::to_string(sequences) + " sequences, " +
                                       std::to_string(batch.slots.size()) + " nodes and " +
                                       std::to_string(batch.table_stride) + " pages a row");
    }
    // The last step's copies from here are over: its last verification was waited for.
    layout_.slots.fill(step_, batch.slots, -1);
    layout_.prefix_lens.fill(step_, batch.prefix_lens, 0);
    layout_.q_indptr.fill(step_, batch.q_indptr, batch.q_indptr.back());
    layout_.parents.fill(step_, batch.parents, -1);
    const std::span<std::int32_t> table = layout_.table.host(step_);
    for (std::size_t b = 0; b < sequences; ++b) {
      std::copy_n(batch.table.begin() + static_cast<std::ptrdiff_t>(b * size(batch.table_stride)),
                  batch.table_stride,
                  table.begin() + static_cast<std::ptrdiff_t>(b * size(shape_.pages)));
    }
    packstone::validate(params_of(0), view());
    step_.upload(layout_.table.offset + sequences * size(shape_.pages) * sizeof(std::int32_t),
                 stream_.get());
  }

  void verify(int layer, std::span<const std::uint16_t> rows,
              std::span<const std::uint16_t> queries, std::span<float> out) override {
    std::memcpy(rows_.host(), rows.data(), rows.size_bytes());
    rows_.upload(rows.size_bytes(), stream_.get());
    std::memcpy(queries_.host(), queries.data(), queries.size_bytes());
    queries_.upload(queries.size_bytes(), stream_.get());
    graphs_[size(layer)].replay(stream_.get());
    out_.download(out.size_bytes(), stream_.get());
    PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    std::memcpy(out.data(), out_.host(), out.size_bytes());
  }

  void move_rows(std::span<const SlotMove> moves) override {
    if (moves.empty()) return;
    PACKSTONE_CUDA_CHECK(cudaEventSynchronize(committed_.get()));
    SlotId* slots = reinterpret_cast<SlotId*>(commit_slots_.host());
    std::ranges::transform(moves, slots, &SlotMove::from);
    std::ranges::transform(moves, slots + moves.size(), &SlotMove::to);
    commit_slots_.upload(2 * moves.size() * sizeof(SlotId), stream_.get());
    committed_.record(stream_.get());
    const auto* on_device = reinterpret_cast<const SlotId*>(commit_slots_.device());
    // All are read before the first is written, so their order does not matter.
    cuda::RowTransfer transfer{
        .slots = nullptr, .rows = std::ssize(moves), .data = commit_rows_.data()};
    for (int layer = 0; layer < shape_.layers; ++layer) {
      transfer.row_plane = size(layer);
      transfer.slots = on_device;
      cuda::read_rows(pool_, transfer, stream_.get());
      transfer.slots = on_device + moves.size();
      cuda::write_rows(pool_, transfer, stream_.get());
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
  void enqueue(int layer) {
    cuda::write_rows(pool_,
                     {.row_plane = size(layer),
                      .slots = layout_.slots.device(step_),
                      .rows = shape_.tokens_max,
                      .data = rows_.device()},
                     stream_.get());
    // A step takes its layers in order: the first makes the schedule that the others share.
    const auto use = layer == 0 ? packstone::ScheduleUse::make : packstone::ScheduleUse::reuse;
    attention_.run(params_of(layer), workspace_.data(), workspace_.bytes(), stream_.get(), {}, use);
  }

  [[nodiscard]] packstone::VerifyParams params_of(int layer) const {
    packstone::VerifyParams params;
    params.heads = shape_.heads;
    params.head_dim_k = kRow;
    params.head_dim_v = kLatent;
    params.rope_dim = kRope;
    params.batch = shape_.batch_max;
    params.tokens = shape_.tokens_max;
    params.prefix_lens = layout_.prefix_lens.device(step_);
    params.q_indptr = layout_.q_indptr.device(step_);
    params.q = {.data = queries_.device(),
                .stride_token = std::int64_t{2} * kRow * shape_.heads,
                .stride_head = std::int64_t{2} * kRow};
    const packstone::PagePlane plane = pool_.plane(0, layer);
    params.pool = {.k = reinterpret_cast<const void*>(plane.base),
                   .k_stride_row = packstone::mla_row_bytes(packstone::KvType::bf16),
                   .rows = shape_.pages * shape_.page_size};
    params.table = {.entries = layout_.table.device(step_),
                    .page_size = static_cast<std::int32_t>(shape_.page_size),
                    .row_stride = shape_.pages};
    params.mask = {.kind = packstone::MaskKind::parents, .parents = layout_.parents.device(step_)};
    params.scale = scale_;
    params.output = {.out = out_.device(),
                     .type = packstone::FloatType::fp32,
                     .stride_token = std::int64_t{4} * kLatent * shape_.heads,
                     .stride_head = std::int64_t{4} * kLatent};
    return params;
  }

  /// What the pinned block says, for `validate`.
  [[nodiscard]] packstone::HostView view() const {
    const auto known = []<typename T>(std::span<T> array) {
      return packstone::HostArray<T>{.data = array.data(), .count = std::ssize(array)};
    };
    packstone::HostView view;
    view.prefix_lens = known(layout_.prefix_lens.host(step_));
    view.q_indptr = known(layout_.q_indptr.host(step_));
    view.table = {.data = layout_.table.host(step_).data(),
                  .count = static_cast<std::int64_t>(layout_.table.count)};
    view.parents = known(layout_.parents.host(step_));
    return view;
  }

  KvShape shape_;
  float scale_;
  cuda::TreeVerify attention_;
  cuda::DevicePool pool_;
  const cuda::DevicePool* pools_[1];
  cuda::Compactor compactor_;
  cuda::Stream stream_;
  cuda::EventFence fence_;
  StepLayout layout_;
  Mirror step_;
  Mirror rows_;     // [tokens_max, kRow] bf16 of one layer
  Mirror queries_;  // [tokens_max, heads, kRow] bf16
  Mirror out_;      // [tokens_max, heads, kLatent]
  Mirror commit_slots_;
  cuda::DeviceMemory commit_rows_;
  cuda::Event committed_;  // the last copy from commit_slots_
  cuda::DeviceMemory workspace_;
  std::vector<Graph> graphs_;  // [layers]
};

}  // namespace

std::unique_ptr<KvBackend> make_cuda_backend(const KvShape& shape, float scale) {
  return std::make_unique<CudaBackend>(shape, scale);
}

}  // namespace runtime
