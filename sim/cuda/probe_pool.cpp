// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <cuda_runtime.h>
#include <sim/cuda/probe_pool.hpp>
#include <sim/cuda/read_rows.hpp>
#include <sim/prng.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace packstone::sim {

namespace {

constexpr Bytes kPatternBytes = Bytes{32} << 20;

std::int32_t layers_that_fit(const KvModel& model, std::int64_t page_size, PageCount pages,
                             Bytes bytes_max) {
  const Bytes layer = page_bytes(model.layout(page_size, 1)) * pages;
  const auto layers = static_cast<std::int32_t>(std::min<Bytes>(model.layers, bytes_max / layer));
  if (layers < 1) {
    throw InvalidArgument("a layer of " + std::to_string(layer) + " bytes does not fit " +
                          std::to_string(bytes_max));
  }
  return layers;
}

}  // namespace

ColdTimer::ColdTimer() {
  int device = 0;
  int l2 = 0;
  PACKSTONE_CUDA_CHECK(cudaGetDevice(&device));
  PACKSTONE_CUDA_CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
  cover_ = cuda::DeviceMemory(Bytes{4} * std::max(l2, 1 << 20));
  PACKSTONE_CUDA_CHECK(cudaMemset(cover_.data(), 0x5A, static_cast<std::size_t>(cover_.bytes())));
  PACKSTONE_CUDA_CHECK(cudaEventCreate(&start_));
  PACKSTONE_CUDA_CHECK(cudaEventCreate(&stop_));
}

ColdTimer::~ColdTimer() {
  (void)cudaEventDestroy(start_);
  (void)cudaEventDestroy(stop_);
}

double ColdTimer::once(cudaStream_t stream, const std::function<void()>& work) {
  read_stretch(cover_.data(), cover_.bytes(), sink_.as<std::uint32_t>(), stream);
  PACKSTONE_CUDA_CHECK(cudaEventRecord(start_, stream));
  work();
  PACKSTONE_CUDA_CHECK(cudaEventRecord(stop_, stream));
  PACKSTONE_CUDA_CHECK(cudaEventSynchronize(stop_));
  float ms = 0;
  PACKSTONE_CUDA_CHECK(cudaEventElapsedTime(&ms, start_, stop_));
  return static_cast<double>(ms) * 1e3;
}

double ColdTimer::median(cudaStream_t stream, int passes, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < passes; ++i) times.push_back(once(stream, work));
  return spread_of(std::move(times)).median;
}

std::vector<std::byte> random_rows(KvType type, Bytes row_bytes, std::int64_t rows) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes * rows));
  Prng prng(7);
  const auto words = static_cast<std::int64_t>(bytes.size() / 4);
  for (std::int64_t i = 0; i < words; ++i) {
    auto x = static_cast<std::uint32_t>(prng.next());
    const Bytes at = i * 4 % row_bytes;
    if (type == KvType::e4m3_tile && at >= kMlaTileScaleOffset && at < kMlaTileRopeOffset) {
      x = std::bit_cast<std::uint32_t>(0.5F);
    } else if (type == KvType::e4m3 || (type == KvType::e4m3_tile && at < kMlaTileScaleOffset)) {
      x = (x & 0x80808080U) | ((x & 0x07070707U) + 0x18181818U);
    } else if (type == KvType::fp16) {
      x = (x & 0x83FF83FFU) | 0x28002800U;
    } else {
      x = (x & 0x807F807FU) | 0x3D003D00U;
    }
    std::memcpy(bytes.data() + i * 4, &x, 4);
  }
  return bytes;
}

ProbePool::ProbePool(const KvModel& model, std::int64_t page_size, PageCount pages, Bytes bytes_max)
    : model_(model),
      layers_(layers_that_fit(model, page_size, pages, bytes_max)),
      pool_(model.layout(page_size, layers_), {.pages = pages}) {
  fill();
}

bool ProbePool::serves(const KvModel& model, std::int64_t page_size, PageCount pages) const {
  return model.name == model_.name && model.layers == model_.layers &&
         page_size == pool_.page_size() && pages == pool_.pages();
}

std::byte* ProbePool::rows(std::size_t buffer, std::int32_t layer) const {
  return reinterpret_cast<std::byte*>(pool_.plane(buffer, layer).base);
}

void ProbePool::fill() {
  const Bytes row = model_.row_bytes();
  const std::int64_t rows = kPatternBytes / row;
  const std::vector<std::byte> pattern = random_rows(model_.type, row, rows);
  const cuda::DeviceMemory source = uploaded<std::byte>(pattern);
  // Every piece starts at another row of the pattern, so that no two regions are alike.
  Prng prng(11);
  for (std::size_t buffer = 0; buffer < pool_.layout().buffers.size(); ++buffer) {
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      const PagePlane plane = pool_.plane(buffer, layer);
      auto* const to = reinterpret_cast<std::byte*>(plane.base);
      const Bytes bytes = plane.stride * pool_.pages();
      for (Bytes at = 0; at < bytes;) {
        const Bytes skip =
            static_cast<Bytes>(prng.below(static_cast<std::uint64_t>(rows / 2))) * row;
        // Whole rows, so that the next piece begins with one.
        const Bytes piece = std::min(bytes - at, (source.bytes() - skip) / row * row);
        PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(to + at, source.data() + skip,
                                             static_cast<std::size_t>(piece),
                                             cudaMemcpyDeviceToDevice, nullptr));
        at += piece;
      }
    }
  }
  PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
}

std::vector<std::int32_t> DeviceTables::padded(const TableSet& set) {
  std::size_t columns = 0;
  for (const auto& table : set.tables) columns = std::max(columns, table.size());
  std::vector<std::int32_t> entries(columns * set.tables.size(), 0);
  for (std::size_t s = 0; s < set.tables.size(); ++s) {
    for (std::size_t i = 0; i < set.tables[s].size(); ++i)
      entries[s * columns + i] = index_of(set.tables[s][i]);
  }
  return entries;
}

DeviceTables::DeviceTables(const TableSet& set) {
  const std::vector<std::int32_t> entries = padded(set);
  count_ = std::ssize(entries);
  columns_ = count_ / std::ssize(set.tables);
  memory_ = uploaded<std::int32_t>(entries);
}

std::vector<std::int32_t> DeviceTables::read() const {
  std::vector<std::int32_t> entries(static_cast<std::size_t>(count_));
  PACKSTONE_CUDA_CHECK(
      cudaMemcpy(entries.data(), memory_.data(), entries.size() * 4, cudaMemcpyDeviceToHost));
  return entries;
}

ProbeAttention::ProbeAttention(const ProbePool& pool, const ProbeCase& probe) : pool_(pool) {
  const KvModel& model = pool.model();
  const ProbeShape& shape = probe.spec.shape;
  const TableSet& set = probe.churned;
  const bool mla = model.kind == AttentionKind::mla;
  const auto batch = static_cast<std::int32_t>(set.tables.size());
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> offsets(1, 0);
  std::vector<std::int32_t> parents;
  Prng prng(5);
  std::int32_t longest = 0;
  for (const TokenCount length : set.lengths) {
    lengths.push_back(static_cast<std::int32_t>(length) - shape.q_len);
    longest = std::max(longest, static_cast<std::int32_t>(length));
    offsets.push_back(offsets.back() + shape.q_len);
    for (std::int32_t node = 0; node < shape.q_len; ++node) {
      parents.push_back(
          node == 0 ? -1 : static_cast<std::int32_t>(prng.below(static_cast<std::uint64_t>(node))));
    }
  }
  lengths_ = uploaded<std::int32_t>(lengths);
  offsets_ = uploaded<std::int32_t>(offsets);
  parents_ = uploaded<std::int32_t>(parents);

  VerifyParams& p = params_;
  p.kind = model.kind;
  p.heads = shape.heads;
  p.kv_heads = model.kv_heads;
  p.head_dim_k = mla ? kMlaKeyDim : model.head_dim;
  p.head_dim_v = mla ? kMlaLatentDim : model.head_dim;
  p.rope_dim = mla ? kMlaRopeDim : 0;
  p.batch = batch;
  p.tokens = batch * shape.q_len;
  p.prefix_lens = lengths_.as<std::int32_t>();
  p.q_indptr = offsets_.as<std::int32_t>();
  const bool half = model.type == KvType::fp16;
  const std::int64_t q_head = std::int64_t{2} * p.head_dim_k;
  const std::int64_t out_head = std::int64_t{2} * p.head_dim_v;
  const std::vector<std::byte> queries =
      random_rows(half ? KvType::fp16 : KvType::bf16, q_head, std::int64_t{p.tokens} * p.heads);
  q_ = uploaded<std::byte>(queries);
  out_ = cuda::DeviceMemory(std::int64_t{p.tokens} * p.heads * out_head);
  p.q = {q_.data(), half ? FloatType::fp16 : FloatType::bf16, p.heads * q_head, q_head};
  p.kv_type = model.type;
  p.pool.k_stride_row = model.row_bytes();
  p.pool.rows = pool.pool().pages() * pool.pool().page_size();
  if (!mla) {
    p.pool.v_stride_row = model.row_bytes();
    p.pool.k_stride_head = p.pool.v_stride_head = model.row_bytes() / model.kv_heads;
  }
  p.table.page_size = static_cast<std::int32_t>(pool.pool().page_size());
  p.tail_place = TailPlace::pool;
  p.mask.kind = shape.q_len > 1 ? MaskKind::parents : MaskKind::causal;
  p.mask.parents = parents_.as<std::int32_t>();
  p.scale = mla ? 0.0722F : 0.0884F;  // 1 / sqrt(192) and 1 / sqrt(128)
  p.output.out = out_.data();
  p.output.stride_token = p.heads * out_head;
  p.output.stride_head = out_head;
  verify_ =
      std::make_unique<cuda::TreeVerify>(VerifyPlanOptions{.bounds = {.batch_max = batch,
                                                                      .tokens_max = p.tokens,
                                                                      .q_len_max = shape.q_len,
                                                                      .length_max = longest}});
  workspace_ = cuda::DeviceMemory(verify_->workspace_bytes(p));
}

void ProbeAttention::run(const DeviceTables& tables, std::int32_t layer, cudaStream_t stream) {
  params_.pool.k = pool_.rows(0, layer);
  if (params_.kind == AttentionKind::gqa) params_.pool.v = pool_.rows(1, layer);
  params_.table.entries = tables.entries();
  params_.table.row_stride = tables.columns();
  verify_->run(params_, workspace_.data(), workspace_.bytes(), stream);
}

std::vector<std::byte> ProbeAttention::output(const DeviceTables& tables, std::int32_t layer,
                                              cudaStream_t stream) {
  run(tables, layer, stream);
  PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<std::byte> bytes(static_cast<std::size_t>(out_.bytes()));
  PACKSTONE_CUDA_CHECK(cudaMemcpy(bytes.data(), out_.data(), bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

}  // namespace packstone::sim
