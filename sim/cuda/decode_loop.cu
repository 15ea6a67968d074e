// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/attention.hpp>
#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/device_pool.hpp>
#include <packstone/cuda/page_table.hpp>
#include <packstone/error.hpp>
#include <packstone/kv_manager.hpp>

#include <sim/cuda/decode_loop.hpp>
#include <sim/cuda/probe_pool.hpp>
#include <sim/prng.hpp>

#include <algorithm>
#include <array>
#include <memory>

namespace packstone::sim {

namespace {

constexpr int kThreads = 128;
constexpr int kRowWords = kMlaKeyDim / 2;  // 32-bit words of a bf16 row

__host__ __device__ std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// Two bf16 values of about 0.05.
__device__ std::uint32_t word_of(std::uint64_t token, int layer, int word) {
  const std::uint64_t x = mixed(token + static_cast<std::uint64_t>(layer) * 0x9e3779b97f4a7c15ULL +
                                static_cast<std::uint64_t>(word) * 0xd1342543de82ef95ULL);
  return (static_cast<std::uint32_t>(x) & 0x807F807FU) | 0x3D003D00U;
}

__host__ __device__ std::uint64_t prompt_token(std::uint64_t seed, int sequence,
                                               std::int64_t position) {
  return mixed(seed + static_cast<std::uint64_t>(sequence) * 1000003U +
               static_cast<std::uint64_t>(position));
}

struct Rows {
  const std::uint64_t* planes;  // [layers] row 0 of page 0
  TokenTable table;
  std::uint64_t seed;
};

/// Row of token `first + blockIdx.x` of sequence blockIdx.y in layer blockIdx.z; tokens [batch], or
/// null: the prompt's.
__global__ void write_rows(Rows rows, std::int64_t first, const std::uint64_t* tokens) {
  const std::int64_t position = first + blockIdx.x;
  const auto sequence = static_cast<int>(blockIdx.y);
  const auto layer = static_cast<int>(blockIdx.z);
  const std::uint64_t token =
      tokens != nullptr ? tokens[sequence] : prompt_token(rows.seed, sequence, position);
  const auto* entries = static_cast<const std::int32_t*>(rows.table.entries);
  const std::int64_t page =
      entries[sequence * rows.table.row_stride + position / rows.table.page_size];
  const std::int64_t slot = page * rows.table.page_size + position % rows.table.page_size;
  auto* row = reinterpret_cast<std::uint32_t*>(rows.planes[layer]) + slot * kRowWords;
  for (int i = static_cast<int>(threadIdx.x); i < kRowWords; i += kThreads)
    row[i] = word_of(token, layer, i);
}

/// Queries [batch, heads, 576] of a layer.
__global__ void make_queries(const std::uint64_t* states, int heads, int layer,
                             std::uint32_t* queries) {
  const std::uint64_t state = states[blockIdx.x];
  std::uint32_t* mine = queries + blockIdx.x * static_cast<unsigned>(heads * kRowWords);
  for (int i = static_cast<int>(threadIdx.x); i < heads * kRowWords; i += kThreads)
    mine[i] = word_of(state, layer + 1000, i);
}

/// Folds every bit of a sequence's output, [words] of 32 bits, into its state.
__global__ void fold_output(const std::uint32_t* out, int words, std::uint64_t* states) {
  __shared__ std::uint64_t sums[kThreads];
  const std::uint32_t* mine = out + blockIdx.x * static_cast<unsigned>(words);
  std::uint64_t sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads)
    sum += mixed(static_cast<std::uint64_t>(i) << 32U | mine[i]);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads; ++i) sum += sums[i];
  states[blockIdx.x] = mixed(states[blockIdx.x] + sum);
}

/// A pair of events that time a step.
struct StepEvents {
  StepEvents() {
    PACKSTONE_CUDA_CHECK(cudaEventCreate(&start));
    PACKSTONE_CUDA_CHECK(cudaEventCreate(&stop));
  }
  ~StepEvents() {
    (void)cudaEventDestroy(start);
    (void)cudaEventDestroy(stop);
  }
  StepEvents(const StepEvents&) = delete;
  StepEvents& operator=(const StepEvents&) = delete;
  cudaEvent_t start{};
  cudaEvent_t stop{};
};

class DecodeLoop {
 public:
  explicit DecodeLoop(const DecodeLoopOptions& options)
      : options_(options),
        kv_({.pages = options.pages, .page_size = options.page_size, .policy = options.policy}),
        pool_(options.model.layout(options.page_size, options.model.layers),
              {.pages = options.pages}),
        columns_(pages_for(options.prompt + options.steps + 1, options.page_size)),
        table_({.rows = options.batch,
                .columns = columns_,
                .page_size = options.page_size,
                .pages = options.pages,
                .batch_pages_max = options.batch * columns_,
                .batch_updates_max = 2 * options.batch}),
        moves_(true) {
    churn();
    prepare();
  }

  DecodeLoopResult go() {
    for (int step = 0; step < options_.steps; ++step) {
      // Not further ahead than one step: plans should see what the device is about to read.
      if (step >= 2) PACKSTONE_CUDA_CHECK(cudaEventSynchronize(events_[at(step - 2)]->stop));
      kv_.reclaim(fence_.completed());
      take_step(step);
      if (options_.budget > 0 && step >= options_.defrag_from) defragment(step);
      result_.steps[at(step)].run_mean = run_mean();
    }
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
    finish();
    return std::move(result_);
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  /// Sequences that grow in turn, a few tokens at a time, come and go until the pool has turned
  /// over six times; then the loop's own take the place of what must leave.
  void churn() {
    Prng prng(options_.seed);
    std::vector<SeqId> live;
    const auto leave = [&] {
      if (live.empty()) throw InvalidArgument("decode loop: the pool is too small");
      const std::size_t victim = prng.below(live.size());
      kv_.finish(live[victim]);
      live[victim] = live.back();
      live.pop_back();
    };
    const TokenCount slots = (options_.pages - 1) * options_.page_size;
    for (TokenCount written = 0; written < 6 * slots;) {
      if (std::ssize(live) < 96) {
        SeqId seq;
        if (kv_.create(seq) != Status::ok) throw InvalidArgument("decode loop: no sequence place");
        live.push_back(seq);
      }
      const SeqId seq = live[prng.below(live.size())];
      const auto tokens = static_cast<TokenCount>(1 + prng.below(16));
      if (kv_.append(seq, tokens) == Status::ok) {
        written += tokens;
      } else {
        leave();
      }
    }
    const PageCount each = pages_for(options_.prompt + options_.steps + 1, options_.page_size);
    // What the loop itself will take, and some room for moves.
    const PageCount wanted = options_.batch * each + options_.pages / 16;
    while (kv_.available_pages() < wanted) leave();
    for (std::int32_t b = 0; b < options_.batch; ++b) {
      SeqId seq;
      if (kv_.create(seq) != Status::ok || kv_.append(seq, options_.prompt) != Status::ok)
        throw InvalidArgument("decode loop: the pool is too small");
      read_.push_back(seq);
    }
    tabled_.assign(read_.size(), 0);
    // Only what the loop reads is straightened; the others stay, or move out of the way.
    for (const SeqId seq : live) weights_.push_back({seq, 0});
  }

  void prepare() {
    const KvModel& model = options_.model;
    if (model.kind != AttentionKind::mla || model.type != KvType::bf16)
      throw InvalidArgument("decode loop: " + model.name + " is not MLA in bf16");
    std::vector<std::uint64_t> planes;
    for (std::int32_t layer = 0; layer < model.layers; ++layer)
      planes.push_back(pool_.plane(0, layer).base);
    planes_ = uploaded<std::uint64_t>(planes);
    std::vector<std::uint64_t> states;
    std::vector<std::int32_t> offsets(1, 0);
    for (std::int32_t b = 0; b < options_.batch; ++b) {
      states.push_back(prompt_token(options_.seed, b, options_.prompt));
      offsets.push_back(b + 1);
    }
    states_ = uploaded<std::uint64_t>(states);
    offsets_ = uploaded<std::int32_t>(offsets);
    std::vector<std::int32_t> lengths;
    for (int step = 0; step < options_.steps; ++step) {
      lengths.insert(lengths.end(), at(options_.batch),
                     static_cast<std::int32_t>(options_.prompt + step));
    }
    lengths_ = uploaded<std::int32_t>(lengths);
    q_ = cuda::DeviceMemory(Bytes{4} * options_.batch * model.heads * kRowWords);
    out_ = cuda::DeviceMemory(Bytes{2} * options_.batch * model.heads * kMlaLatentDim);
    tokens_ = cuda::DeviceMemory(Bytes{8} * options_.batch * options_.steps);
    for (int step = 0; step < options_.steps; ++step)
      events_.push_back(std::make_unique<StepEvents>());
    result_.steps.resize(at(options_.steps));

    VerifyParams& p = params_;
    p.heads = model.heads;
    p.head_dim_k = kMlaKeyDim;
    p.head_dim_v = kMlaLatentDim;
    p.rope_dim = kMlaRopeDim;
    p.batch = p.tokens = options_.batch;
    p.prefix_lens = lengths_.as<std::int32_t>();
    p.q_indptr = offsets_.as<std::int32_t>();
    p.q = {q_.data(), FloatType::bf16, Bytes{4} * model.heads * kRowWords, Bytes{4} * kRowWords};
    p.pool.k_stride_row = model.row_bytes();
    p.pool.rows = options_.pages * options_.page_size;
    p.table = table_.view();
    p.scale = 0.0722F;
    p.output.out = out_.data();
    p.output.stride_token = Bytes{2} * model.heads * kMlaLatentDim;
    p.output.stride_head = Bytes{2} * kMlaLatentDim;
    verify_ = std::make_unique<cuda::TreeVerify>(VerifyPlanOptions{
        .bounds = {.batch_max = options_.batch,
                   .tokens_max = options_.batch,
                   .q_len_max = 1,
                   .length_max = static_cast<std::int32_t>(options_.prompt + options_.steps + 1)}});
    workspace_ = cuda::DeviceMemory(verify_->workspace_bytes(p));

    const cuda::DevicePool* const pools[] = {&pool_};
    const cuda::PatchedArray patched[] = {{.entries = table_.data(), .count = table_.entries()}};
    compactor_ = std::make_unique<cuda::Compactor>(
        pools, patched,
        cuda::CompactorOptions{.moves_max = std::max<PageCount>(options_.budget, 1)});
    table_new_pages();
    write_rows<<<dim3(static_cast<unsigned>(options_.prompt), static_cast<unsigned>(options_.batch),
                      static_cast<unsigned>(model.layers)),
                 kThreads, 0, attention_.get()>>>(rows(), 0, nullptr);
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
    PACKSTONE_CUDA_CHECK(cudaDeviceSynchronize());
  }

  [[nodiscard]] Rows rows() const {
    return {planes_.as<std::uint64_t>(), table_.view(), options_.seed};
  }

  /// Tells the device's table of pages that came since the last call.
  void table_new_pages() {
    for (std::size_t b = 0; b < read_.size(); ++b) {
      const std::span<const PageId> pages = kv_.pages(read_[b]);
      if (tabled_[b] == pages.size()) continue;
      table_.set(static_cast<std::int64_t>(b), static_cast<std::int64_t>(tabled_[b]),
                 pages.subspan(tabled_[b]));
      tabled_[b] = pages.size();
    }
    while (!table_.flush(attention_.get()))
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(attention_.get()));
  }

  void take_step(int step) {
    if (kv_.decode(read_) != Status::ok)
      throw InvalidArgument("decode loop: the pool is too small");
    table_new_pages();
    cudaStream_t stream = attention_.get();
    const KvModel& model = options_.model;
    const auto batch = static_cast<unsigned>(options_.batch);
    PACKSTONE_CUDA_CHECK(cudaEventRecord(events_[at(step)]->start, stream));
    auto* states = states_.as<std::uint64_t>();
    write_rows<<<dim3(1, batch, static_cast<unsigned>(model.layers)), kThreads, 0, stream>>>(
        rows(), options_.prompt + step, states);
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
    written_.record(stream);
    params_.prefix_lens = lengths_.as<std::int32_t>() + step * options_.batch;
    for (std::int32_t layer = 0; layer < model.layers; ++layer) {
      make_queries<<<batch, kThreads, 0, stream>>>(states, model.heads, layer,
                                                   q_.as<std::uint32_t>());
      params_.pool.k = reinterpret_cast<const void*>(pool_.plane(0, layer).base);
      verify_->run(params_, workspace_.data(), workspace_.bytes(), stream);
      fold_output<<<batch, kThreads, 0, stream>>>(out_.as<std::uint32_t>(),
                                                  model.heads * kMlaLatentDim / 2, states);
    }
    PACKSTONE_CUDA_CHECK(cudaGetLastError());
    PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(tokens_.data() + Bytes{8} * step * options_.batch, states,
                                         std::size_t{8} * batch, cudaMemcpyDeviceToDevice, stream));
    PACKSTONE_CUDA_CHECK(cudaEventRecord(events_[at(step)]->stop, stream));
  }

  /// The move beside the attention that has just been queued, the patch behind it. Rows that this
  /// step writes are written before the move begins; the next step's come after the patch.
  void defragment(int step) {
    const MovePlan plan =
        plan_moves(kv_.snapshot(), {.objective = PlanObjective::straighten,
                                    .moves_max = options_.budget,
                                    .keep_free = 2 * std::int64_t{options_.batch},
                                    .run_target = std::max<PageCount>(2, 256 / options_.page_size),
                                    .weights = weights_});
    if (plan.moves.empty()) return;
    kv_.apply(plan.moves, plan.patches, fence_.next());
    written_.wait(moves_.get());
    while (!compactor_->compact(plan.moves, moves_.get(), attention_.get()))
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(moves_.get()));
    fence_.record({attention_.get(), moves_.get()});
    result_.steps[at(step)].moves = std::ssize(plan.moves);
    result_.moves += std::ssize(plan.moves);
  }

  [[nodiscard]] double run_mean() const {
    std::int64_t runs = 0;
    TokenCount tokens = 0;
    for (const SeqId seq : read_) {
      const std::span<const PageId> pages = kv_.pages(seq);
      for (std::size_t i = 0; i < pages.size(); ++i)
        runs += i == 0 || pages[i] != page_after(pages[i - 1]) ? 1 : 0;
      tokens += kv_.length(seq);
    }
    return static_cast<double>(tokens) / static_cast<double>(runs);
  }

  void finish() {
    for (int step = 0; step < options_.steps; ++step) {
      float ms = 0;
      PACKSTONE_CUDA_CHECK(
          cudaEventElapsedTime(&ms, events_[at(step)]->start, events_[at(step)]->stop));
      DecodeStep& row = result_.steps[at(step)];
      row.us = static_cast<double>(ms) * 1e3;
      row.gbps =
          static_cast<double>(options_.batch) * static_cast<double>(options_.prompt + step + 1) *
          static_cast<double>(options_.model.token_bytes() * options_.model.layers) / row.us * 1e-3;
    }
    result_.tokens.resize(at(options_.batch) * at(options_.steps));
    PACKSTONE_CUDA_CHECK(cudaMemcpy(result_.tokens.data(), tokens_.data(),
                                    result_.tokens.size() * 8, cudaMemcpyDeviceToHost));
    std::vector<std::int32_t> entries(at(table_.entries()));
    PACKSTONE_CUDA_CHECK(
        cudaMemcpy(entries.data(), table_.data(), entries.size() * 4, cudaMemcpyDeviceToHost));
    result_.tables_agree = true;
    for (std::size_t b = 0; b < read_.size(); ++b) {
      const std::span<const PageId> pages = kv_.pages(read_[b]);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        if (entries[b * at(columns_) + i] != index_of(pages[i])) result_.tables_agree = false;
      }
    }
  }

  DecodeLoopOptions options_;
  KvManager kv_;
  cuda::DevicePool pool_;
  std::int64_t columns_;
  cuda::DevicePageTable table_;
  std::vector<SeqId> read_;
  std::vector<ReadWeight> weights_;
  std::vector<std::size_t> tabled_;  // entries of each that the device's table has
  cuda::Stream attention_;
  cuda::Stream moves_;
  cuda::Event written_;
  cuda::EventFence fence_;
  std::unique_ptr<cuda::Compactor> compactor_;
  std::unique_ptr<cuda::TreeVerify> verify_;
  VerifyParams params_;
  cuda::DeviceMemory planes_, states_, offsets_, lengths_, q_, out_, tokens_, workspace_;
  std::vector<std::unique_ptr<StepEvents>> events_;
  DecodeLoopResult result_;
};

}  // namespace

DecodeLoopResult run_decode_loop(const DecodeLoopOptions& options) {
  if (options.batch < 1 || options.prompt < 1 || options.steps < 1 || options.prompt > 65535) {
    throw InvalidArgument("decode loop: batch, prompt (1 .. 65535) or steps out of range");
  }
  return DecodeLoop(options).go();
}

}  // namespace packstone::sim
