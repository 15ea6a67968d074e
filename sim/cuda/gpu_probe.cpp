// SPDX-License-Identifier: Apache-2.0
#include <packstone/cuda/compactor.hpp>
#include <packstone/cuda/page_mover.hpp>
#include <packstone/cuda/transfer.hpp>
#include <packstone/error.hpp>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sim/cuda/gpu_probe.hpp>
#include <sim/cuda/probe_pool.hpp>
#include <sim/cuda/read_rows.hpp>

#include <algorithm>
#include <array>
#include <numeric>

namespace packstone::sim {

namespace {

constexpr Bytes kKeptFree = Bytes{6} << 30;  ///< for tables, queries, workspaces and the driver
constexpr Bytes kLimitBytes = Bytes{1} << 30;
constexpr std::int64_t kPiecesMax = 200'000;  ///< of a batched copy
constexpr std::int64_t kPeerPiecesMax = 20'000;

std::vector<PageId> flat_pages(const TableSet& set, std::int64_t count) {
  std::vector<PageId> pages;
  for (const auto& table : set.tables) {
    const auto here = std::min<std::int64_t>(std::ssize(table), count - std::ssize(pages));
    pages.insert(pages.end(), table.begin(), table.begin() + here);
  }
  return pages;
}

std::int64_t most_moves(const std::vector<std::vector<PageMove>>& plans, std::int64_t most) {
  for (const auto& plan : plans) most = std::max<std::int64_t>(most, std::ssize(plan));
  return most;
}

PageCount moves_of(const std::vector<std::vector<PageMove>>& plans) {
  return std::accumulate(plans.begin(), plans.end(), PageCount{0},
                         [](PageCount sum, const auto& plan) { return sum + std::ssize(plan); });
}

class GpuProbe final : public BandwidthProbe {
 public:
  explicit GpuProbe(const GpuProbeOptions& options) : options_(options) {
    PACKSTONE_CUDA_CHECK(cudaGetDevice(&device_));
    measure_limits();
    find_peer();
  }

  [[nodiscard]] std::string description() const override {
    int driver = 0;
    int runtime = 0;
    PACKSTONE_CUDA_CHECK(cudaDriverGetVersion(&driver));
    PACKSTONE_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
    return fmt::format(
        "{}, driver for CUDA {}, runtime {}; copy {:.0f} GB/s, contiguous read {:.0f} GB/s, to "
        "pinned host {:.1f} GB/s{}",
        cuda::describe_attention().device_name, version(driver), version(runtime), copy_gbps_,
        read_gbps_, host_gbps_,
        peer_ < 0 ? "" : fmt::format(", to a peer {:.0f} GB/s", peer_gbps_));
  }

  [[nodiscard]] ProbeResult measure(const ProbeCase& probe) override {
    const KvModel& model = probe.spec.model;
    ProbeResult result{.spec = probe.spec,
                       .page_size = probe.churned.page_size,
                       .pool_bytes = probe.pool_bytes(),
                       .tokens = probe.churned.tokens(),
                       .sequences = static_cast<std::int32_t>(probe.churned.tables.size())};
    if (!take_pool(model, probe.churned.page_size, probe.churned.pool_pages)) {
      result = model_case(probe, copy_gbps_);
      result.note = "not a layer fits the card: modelled";
      return result;
    }
    result.layers = pool_->layers();
    if (result.layers < model.layers) {
      result.note = fmt::format("{} of {} layers fit the card", result.layers, model.layers);
    }
    ProbeAttention attention(*pool_, probe);
    if (!probe.stages.empty()) result.defrag = defragment(probe, attention);
    const std::vector<Placement> placements = placements_of(probe, 1);
    time_attention(probe, placements, attention, result);
    for (const Placement& placement : placements) {
      if (placement.name == "identity" || placement.name == "churned" ||
          placement.name == "defragmented") {
        time_transfers(placement, result);
      }
    }
    return result;
  }

 private:
  void measure_limits() {
    const cuda::DeviceMemory from(kLimitBytes);
    const cuda::DeviceMemory to(kLimitBytes);
    const cuda::PinnedMemory host(options_.transfer_bytes_max);
    PACKSTONE_CUDA_CHECK(cudaMemset(from.data(), 1, kLimitBytes));
    const auto copy = [&](void* target, Bytes bytes) {
      return timer_.median(stream_.get(), 5, [&] {
        PACKSTONE_CUDA_CHECK(cudaMemcpyAsync(target, from.data(), static_cast<std::size_t>(bytes),
                                             cudaMemcpyDefault, stream_.get()));
      });
    };
    (void)copy(to.data(), kLimitBytes);
    copy_gbps_ = 2.0 * static_cast<double>(kLimitBytes) / copy(to.data(), kLimitBytes) * 1e-3;
    host_gbps_ = static_cast<double>(host.bytes()) / copy(host.data(), host.bytes()) * 1e-3;
    constexpr Bytes kRow = 1152;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(kLimitBytes / kRow));
    std::iota(rows.begin(), rows.end(), 0);
    const cuda::DeviceMemory pages = uploaded<std::int32_t>(rows);
    const double us = timer_.median(stream_.get(), 5, [&] {
      read_rows({.base = from.data(),
                 .row_bytes = kRow,
                 .pages = pages.as<std::int32_t>(),
                 .page_count = std::ssize(rows),
                 .sink = sink_.as<std::uint32_t>()},
                stream_.get());
    });
    read_gbps_ = static_cast<double>(std::ssize(rows) * kRow) / us * 1e-3;
  }

  void find_peer() {
    int devices = 0;
    PACKSTONE_CUDA_CHECK(cudaGetDeviceCount(&devices));
    for (int other = 0; other < devices && peer_ < 0; ++other) {
      int there = 0;
      if (other == device_ || cudaDeviceCanAccessPeer(&there, device_, other) != cudaSuccess ||
          there == 0) {
        continue;
      }
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(other, 0);
      if (enabled != cudaSuccess && enabled != cudaErrorPeerAccessAlreadyEnabled) continue;
      peer_ = other;
    }
    (void)cudaGetLastError();
    if (peer_ < 0) return;
    {
      struct Back {
        int device;
        ~Back() { (void)cudaSetDevice(device); }
      };
      const Back back{device_};
      PACKSTONE_CUDA_CHECK(cudaSetDevice(peer_));
      peer_memory_ = cuda::DeviceMemory(options_.transfer_bytes_max + (Bytes{1} << 20));
    }
    const cuda::DeviceMemory from(options_.transfer_bytes_max);
    const double us = timer_.median(stream_.get(), 5, [&] {
      PACKSTONE_CUDA_CHECK(cudaMemcpyPeerAsync(peer_memory_.data(), peer_, from.data(), device_,
                                               static_cast<std::size_t>(from.bytes()),
                                               stream_.get()));
    });
    peer_gbps_ = static_cast<double>(from.bytes()) / us * 1e-3;
  }

  bool take_pool(const KvModel& model, std::int64_t page_size, PageCount pages) {
    if (pool_ && pool_->serves(model, page_size, pages)) return true;
    transfer_.reset();
    pool_.reset();
    std::size_t free = 0;
    std::size_t total = 0;
    PACKSTONE_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const Bytes room = std::min(options_.pool_bytes_max, static_cast<Bytes>(free) - kKeptFree);
    if (page_bytes(model.layout(page_size, 1)) * pages > room) return false;
    pool_ = std::make_unique<ProbePool>(model, page_size, pages, room);
    return true;
  }

  /// Carries the plans out, and shows that attention did not notice.
  DefragFigure defragment(const ProbeCase& probe, ProbeAttention& attention) {
    DefragFigure figure{.straight = probe.straight, .how = How::measured_gpu};
    std::int64_t most = 1;
    for (const DefragStage& stage : probe.stages) most = most_moves(stage.plans, most);
    for (const BudgetPlan& budget : probe.budgets)
      most = std::max<std::int64_t>(most, std::ssize(budget.moves));
    if (probe.reclaim) most = most_moves(probe.reclaim->plans, most);
    const cuda::DevicePool* const pools[] = {&pool_->pool()};
    const DeviceTables tables(probe.churned);
    const cuda::PatchedArray patched[] = {{.entries = tables.entries(), .count = tables.count()}};
    const auto plans_us = [&](cuda::Compactor& compactor,
                              const std::vector<std::vector<PageMove>>& plans) {
      return timer_.once(stream_.get(), [&] {
        for (const auto& plan : plans) compact(compactor, plan);
      });
    };
    {
      // What a step costs by its budget. Its pages go to free ones; the tables stay as they are.
      const DeviceTables scratch(probe.churned);
      const cuda::PatchedArray array[] = {{.entries = scratch.entries(), .count = scratch.count()}};
      cuda::Compactor compactor(pools, array, {.moves_max = most});
      for (const BudgetPlan& budget : probe.budgets) {
        std::vector<double> times;
        for (int i = 0; i < 2 * kProbeRuns; ++i) {
          const double us = timer_.once(stream_.get(), [&] { compact(compactor, budget.moves); });
          if (i >= kProbeRuns) times.push_back(us);
        }
        figure.budgets.push_back({.budget = budget.budget,
                                  .moves = std::ssize(budget.moves),
                                  .us = spread_of(std::move(times)).median});
      }
    }
    const std::int32_t last = pool_->layers() - 1;
    const auto first_before = attention.output(tables, 0, stream_.get());
    const auto last_before = attention.output(tables, last, stream_.get());
    cuda::Compactor compactor(pools, patched, {.moves_max = most});
    for (const DefragStage& stage : probe.stages) {
      figure.move_us += plans_us(compactor, stage.plans);
      figure.moves += moves_of(stage.plans);
      figure.plans += std::ssize(stage.plans);
    }
    figure.bytes_moved = figure.moves * pool_->pool().page_bytes();
    if (tables.read() != DeviceTables::padded(probe.stages.back().tables)) {
      throw InvariantError("the tables on the device differ from the manager's after a defrag");
    }
    figure.outputs_identical = attention.output(tables, 0, stream_.get()) == first_before &&
                               attention.output(tables, last, stream_.get()) == last_before;
    if (probe.reclaim) {
      const KvModel& model = probe.spec.model;
      figure.returned_us = plans_us(compactor, probe.reclaim->plans);
      figure.returned_moved_bytes = moves_of(probe.reclaim->plans) * pool_->pool().page_bytes();
      figure.returned_bytes = (probe.reclaim->regions_after - probe.reclaim->regions_before) *
                              (Bytes{2} << 20) * model.buffers() * pool_->layers();
    }
    return figure;
  }

  void compact(cuda::Compactor& compactor, const std::vector<PageMove>& moves) {
    while (!compactor.compact(moves, stream_.get())) {
      PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));  // every staging block is in use
    }
  }

  void time_attention(const ProbeCase& probe, const std::vector<Placement>& placements,
                      ProbeAttention& attention, ProbeResult& result) {
    struct OnDevice {
      DeviceTables tables;
      cuda::DeviceMemory pages;
      std::int64_t page_count;
      std::vector<double> attention_us;
      std::vector<double> read_us;
    };
    std::vector<OnDevice> all;
    for (const Placement& placement : placements) {
      const std::vector<PageId> flat = flat_pages(placement.tables, placement.tables.pages());
      all.push_back(
          {DeviceTables(placement.tables), uploaded<PageId>(flat), std::ssize(flat), {}, {}});
    }
    const KvModel& model = probe.spec.model;
    const std::int32_t layers = pool_->layers();
    const auto attend = [&](const OnDevice& on) {
      for (std::int32_t layer = 0; layer < layers; ++layer)
        attention.run(on.tables, layer, stream_.get());
    };
    const auto read = [&](const OnDevice& on) {
      for (std::int32_t layer = 0; layer < layers; ++layer) {
        for (std::int32_t buffer = 0; buffer < model.buffers(); ++buffer) {
          read_rows({.base = pool_->rows(static_cast<std::size_t>(buffer), layer),
                     .row_bytes = model.row_bytes(),
                     .pages = on.pages.as<std::int32_t>(),
                     .page_count = on.page_count,
                     .page_size = static_cast<std::int32_t>(result.page_size),
                     .sink = sink_.as<std::uint32_t>()},
                    stream_.get());
        }
      }
    };
    (void)timer_.once(stream_.get(), [&] { attend(all.front()); });
    (void)timer_.once(stream_.get(), [&] { read(all.front()); });
    // Placement after placement within a run, so that a drift of the clock meets all of them.
    for (int run = 0; run < kProbeRuns; ++run) {
      for (OnDevice& on : all) {
        on.attention_us.push_back(
            timer_.median(stream_.get(), options_.passes, [&] { attend(on); }) / layers);
        on.read_us.push_back(timer_.median(stream_.get(), options_.passes, [&] { read(on); }) /
                             layers);
      }
    }
    const auto figure = [&](std::size_t i, const char* kernel, const std::vector<double>& us,
                            double bytes) {
      std::vector<double> gbps;
      for (const double time : us) gbps.push_back(bytes / time * 1e-3);
      result.bandwidth.push_back({.placement = placements[i].name,
                                  .kernel = kernel,
                                  .gbps = spread_of(std::move(gbps)),
                                  .ceiling_gbps = std::max(copy_gbps_, read_gbps_),
                                  .layer_us = spread_of(us).median,
                                  .how = How::measured_gpu,
                                  .runs = kProbeRuns,
                                  .run_mean = runs_of(placements[i].tables).mean_slots});
    };
    const char* const kernel = probe.spec.shape.q_len > 1 ? "verify" : "decode";
    for (std::size_t i = 0; i < all.size(); ++i)
      figure(i, kernel, all[i].attention_us, probe.read_bytes());
    for (std::size_t i = 0; i < all.size(); ++i) {
      figure(i, "read", all[i].read_us,
             static_cast<double>(all[i].page_count * result.page_size * model.token_bytes()));
    }
  }

  /// As many pages of the sequences as the limits take, every layer of them.
  void time_transfers(const Placement& placement, ProbeResult& result) {
    const cuda::DevicePool& pool = pool_->pool();
    const auto planes = static_cast<std::int64_t>(pool.page_planes().size());
    const std::int64_t most =
        std::min({placement.tables.pages(), options_.transfer_bytes_max / pool.page_bytes(),
                  std::max<std::int64_t>(kPiecesMax / planes, 1)});
    if (most < 1) return;
    const std::vector<PageId> pages = flat_pages(placement.tables, most);
    if (!transfer_) {
      transfer_ =
          std::make_unique<cuda::Transfer>(pool, cuda::TransferOptions{.pages_max = kPiecesMax});
    }
    const Bytes bytes = transfer_->bytes(std::ssize(pages));
    if (host_.bytes() < bytes) host_ = cuda::PinnedMemory(bytes);
    const std::int64_t descriptors = std::ssize(cuda::runs_of(pages)) * planes;
    const auto add = [&](const char* method, std::int64_t pieces, Bytes moved, double ceiling,
                         const std::function<void()>& work) {
      work();
      std::vector<double> gbps;
      for (int run = 0; run < kProbeRuns; ++run) {
        gbps.push_back(static_cast<double>(moved) / timer_.once(stream_.get(), work) * 1e-3);
      }
      result.transfers.push_back({.placement = placement.name,
                                  .method = method,
                                  .bytes = moved,
                                  .descriptors = pieces,
                                  .gbps = spread_of(std::move(gbps)),
                                  .ceiling_gbps = ceiling,
                                  .how = How::measured_gpu});
    };
    using Method = cuda::TransferMethod;
    for (const auto& [name, method] :
         {std::pair{"to_host_kernel", Method::direct}, std::pair{"to_host_staged", Method::staged},
          std::pair{"to_host_batched", Method::batched}}) {
      add(name, descriptors, bytes, host_gbps_, [&, method = method] {
        while (!transfer_->gather(pages, host_.data(), method, stream_.get())) {
          PACKSTONE_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
        }
      });
    }
    if (peer_ >= 0) time_peer(pages, planes, add);
  }

  template <typename Add>
  void time_peer(const std::vector<PageId>& all, std::int64_t planes, const Add& add) {
    const cuda::DevicePool& pool = pool_->pool();
    const std::span<const PageId> pages =
        std::span(all).first(static_cast<std::size_t>(std::min<std::int64_t>(
            std::ssize(all), std::max<std::int64_t>(kPeerPiecesMax / planes, 1))));
    const std::vector<PageRun> runs = cuda::runs_of(pages);
    const Bytes bytes = std::ssize(pages) * pool.page_bytes();
    const std::int64_t pieces = std::ssize(runs) * planes;
    add("peer_copies", pieces, bytes, peer_gbps_, [&] {
      std::byte* to = peer_memory_.data();
      for (const PagePlane& plane : pool.page_planes()) {
        for (const PageRun& run : runs) {
          const auto length = static_cast<std::size_t>(run.count * plane.bytes);
          const auto* from =
              reinterpret_cast<const std::byte*>(plane.base) + index_of(run.first) * plane.stride;
          PACKSTONE_CUDA_CHECK(
              cudaMemcpyPeerAsync(to, peer_, from, device_, length, stream_.get()));
          to += length;
        }
      }
    });
    const cuda::DevicePool* const pools[] = {&pool};
    const cuda::PageMover mover(pools, {});
    std::vector<PageMove> moves;
    for (const PageId page : pages) moves.push_back({page, page});
    const cuda::DeviceMemory list = uploaded<PageMove>(moves);
    const auto count = static_cast<std::int32_t>(moves.size());
    const cuda::DeviceMemory counted = uploaded<std::int32_t>(std::array{count});
    const std::int64_t units = count * planes;
    add("peer_kernel", pieces, bytes, peer_gbps_, [&] {
      mover.gather({list.as<PageMove>(), counted.as<std::int32_t>(), count},
                   reinterpret_cast<std::uint64_t>(peer_memory_.data()), 0, units, count,
                   stream_.get());
    });
  }

  GpuProbeOptions options_;
  int device_{0};
  int peer_{-1};
  double copy_gbps_{0};
  double read_gbps_{0};
  double host_gbps_{0};
  double peer_gbps_{0};
  cuda::Stream stream_;
  ColdTimer timer_;
  cuda::DeviceMemory sink_{4};
  cuda::DeviceMemory peer_memory_;
  std::unique_ptr<ProbePool> pool_;
  std::unique_ptr<cuda::Transfer> transfer_;
  cuda::PinnedMemory host_;
};

}  // namespace

std::unique_ptr<BandwidthProbe> make_gpu_probe(std::string& reason,
                                               const GpuProbeOptions& options) {
  try {
    (void)cuda::describe_attention();  // throws where the kernels cannot run
    return std::make_unique<GpuProbe>(options);
  } catch (const cuda::UnsupportedDevice& error) {
    reason = error.what();
  } catch (const cuda::CudaError& error) {
    reason = error.what();
  }
  return nullptr;
}

}  // namespace packstone::sim
