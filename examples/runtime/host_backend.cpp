// SPDX-License-Identifier: Apache-2.0
#include "kv_backend.hpp"

#include <packstone/reference_verify.hpp>

#include <cstring>

namespace runtime {
namespace {

using packstone::PageMove;
using packstone::SlotId;
using packstone::SlotMove;

class HostBackend final : public KvBackend {
 public:
  HostBackend(const KvShape& shape, float scale, int threads)
      : shape_(shape), scale_(scale), threads_(threads) {
    // Poison: a row that is read before it is written shows as NaN.
    const auto rows = static_cast<std::size_t>(shape.pages * shape.page_size);
    layers_.assign(static_cast<std::size_t>(shape.layers),
                   std::vector<std::uint16_t>(rows * kRow, 0x7fff));
  }

  [[nodiscard]] std::string name() const override { return "reference attention on the CPU"; }

  void begin(const VerifyBatch& batch) override { batch_ = &batch; }

  void verify(int layer, std::span<const std::uint16_t> rows,
              std::span<const std::uint16_t> queries, std::span<float> out) override {
    const VerifyBatch& batch = *batch_;
    const std::size_t tokens = batch.slots.size();
    for (std::size_t i = 0; i < tokens; ++i) {
      std::memcpy(row(layer, batch.slots[i]), rows.data() + i * kRow, kRow * sizeof(rows[0]));
    }
    packstone::VerifyParams params;
    params.heads = shape_.heads;
    params.head_dim_k = kRow;
    params.head_dim_v = kLatent;
    params.rope_dim = kRope;
    params.batch = static_cast<std::int32_t>(batch.prefix_lens.size());
    params.tokens = static_cast<std::int32_t>(tokens);
    params.prefix_lens = batch.prefix_lens.data();
    params.q_indptr = batch.q_indptr.data();
    params.q = {.data = queries.data(),
                .stride_token = std::int64_t{2} * kRow * shape_.heads,
                .stride_head = std::int64_t{2} * kRow};
    params.pool = {.k = row(layer, 0),
                   .k_stride_row = packstone::mla_row_bytes(packstone::KvType::bf16),
                   .rows = shape_.pages * shape_.page_size};
    params.table = {.entries = batch.table.data(),
                    .page_size = static_cast<std::int32_t>(shape_.page_size),
                    .row_stride = batch.table_stride};
    params.mask = {.kind = packstone::MaskKind::parents, .parents = batch.parents.data()};
    params.scale = scale_;
    params.output = {.out = out.data(),
                     .type = packstone::FloatType::fp32,
                     .stride_token = std::int64_t{4} * kLatent * shape_.heads,
                     .stride_head = std::int64_t{4} * kLatent};
    packstone::reference_verify(params, {.threads = threads_});
  }

  void move_rows(std::span<const SlotMove> moves) override {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (const SlotMove& move : moves) copy(layer, move.from, move.to, 1);
    }
  }

  void move_pages(std::span<const PageMove> moves) override {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (const PageMove& move : moves) {
        copy(layer, packstone::slot_of(move.from, shape_.page_size, 0),
             packstone::slot_of(move.to, shape_.page_size, 0), shape_.page_size);
      }
    }
  }

  [[nodiscard]] std::uint64_t reached() override { return marks_; }
  std::uint64_t mark() override { return ++marks_; }

 private:
  std::uint16_t* row(int layer, SlotId slot) {
    return layers_[static_cast<std::size_t>(layer)].data() + static_cast<std::size_t>(slot) * kRow;
  }
  void copy(int layer, SlotId from, SlotId to, std::int64_t rows) {
    std::memmove(row(layer, to), row(layer, from),
                 static_cast<std::size_t>(rows) * kRow * sizeof(std::uint16_t));
  }

  KvShape shape_;
  float scale_;
  int threads_;
  const VerifyBatch* batch_{nullptr};
  std::vector<std::vector<std::uint16_t>> layers_;  // [pages * page_size, kRow] each
  std::uint64_t marks_{0};
};

}  // namespace

std::unique_ptr<KvBackend> make_host_backend(const KvShape& shape, float scale, int threads) {
  return std::make_unique<HostBackend>(shape, scale, threads);
}

}  // namespace runtime
