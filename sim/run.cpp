// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/kv_manager.hpp>

#include <sim/run.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace packstone::sim {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
/// Most pages of a simulated pool: 2^27, about 3 GB of bookkeeping a run.
constexpr PageCount kPoolPagesMax = PageCount{1} << 27;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

PageCount pool_pages(const RunOptions& options) {
  if (options.page_size < 1) {
    throw InvalidArgument("page size " + std::to_string(options.page_size) + " is below 1");
  }
  const PageCount pages = options.pool_tokens / options.page_size;
  if (pages < 1) {
    throw InvalidArgument("a pool of " + std::to_string(options.pool_tokens) +
                          " slots has no page of " + std::to_string(options.page_size));
  }
  if (pages > kPoolPagesMax) {
    throw InvalidArgument("a pool of " + std::to_string(pages) + " pages is past the " +
                          std::to_string(kPoolPagesMax) + " that the simulator takes");
  }
  return pages;
}

/// A mean that skips NaN.
struct Mean {
  double sum{0.0};
  int count{0};
  void add(double value) {
    if (std::isnan(value)) return;
    sum += value;
    ++count;
  }
  [[nodiscard]] double value() const { return count > 0 ? sum / count : kNone; }
};

/// What a sample says beyond its Metrics; kept until it is known which samples are steady.
struct Detail {
  std::array<double, RunLengths::kBins> runs{};
  std::array<double, RunLengths::kBins> oracle_runs{};
  FreeTotals free{};
};

class Replay {
 public:
  Replay(const RequestList& list, const RunOptions& options, ProgressCounters* progress)
      : list_(list),
        options_(options),
        progress_(progress),
        pages_(pool_pages(options)),
        kv_({.pages = pages_ + 1, .page_size = options.page_size, .policy = options.policy}),
        meter_(pages_ + 1, options.page_size, options.cost.slot_bytes),
        scheduler_(
            list, options.scheduler, kv_, [this](const Retired& what) { note(what); },
            make_parts()) {
    result_.policy = options.policy;
    result_.page_size = options.page_size;
    result_.pool_pages = pages_;
    if (options.keep_requests) result_.requests.reserve(list.requests.size());
    plan_samples();
  }

  RunResult go() {
    const Clock::time_point start = Clock::now();
    Clock::time_point before = start;
    std::int64_t events_before = 0;
    for (std::int64_t step = 0; scheduler_.step(); ++step) {
      const std::int64_t written = scheduler_.counters().tokens_written;
      if (options_.defrag.objective) defragment(written);
      if (step % kTimedSteps == 0) {
        const Clock::time_point now = Clock::now();
        const std::int64_t events = written + scheduler_.counters().tokens_released;
        if (events > events_before) {
          step_ns_.push_back(std::chrono::duration<double, std::nano>(now - before).count() /
                             static_cast<double>(events - events_before));
        }
        events_before = events;
        before = now;
        report(written);
      }
      if (next_sample_ < sample_at_.size() && written >= sample_at_[next_sample_]) {
        while (next_sample_ < sample_at_.size() && written >= sample_at_[next_sample_]) {
          ++next_sample_;
        }
        const Clock::time_point sampled = Clock::now();
        sample();
        result_.timing.sampling_s += seconds_since(sampled);
        before = Clock::now();
      }
    }
    result_.timing.replay_s = seconds_since(start) - result_.timing.sampling_s;
    report(scheduler_.counters().tokens_written);
    conclude();
    return std::move(result_);
  }

  void until(std::int64_t step,
             const std::function<void(KvManager&, PrefixCache*, std::vector<SeqId>)>& visit) {
    while (scheduler_.counters().steps < step) {
      if (!scheduler_.step()) {
        throw InvalidArgument("the replay ends before step " + std::to_string(step));
      }
      if (options_.defrag.objective) defragment(scheduler_.counters().tokens_written);
    }
    std::vector<SeqId> live;
    for (const Scheduler::Active& active : scheduler_.running()) live.push_back(active.seq);
    visit(kv_, reuse_ ? &reuse_->cache() : nullptr, std::move(live));
  }

 private:
  static constexpr std::int64_t kTimedSteps = 16;

  void report(std::int64_t written) {
    if (progress_ == nullptr) return;
    progress_->tokens.fetch_add(written - reported_, std::memory_order_relaxed);
    reported_ = written;
  }

  SchedulerParts make_parts() {
    if (options_.prefix_cache) reuse_.emplace(list_, kv_);
    if (options_.drafting.mode != SpeculationMode::none) drafting_.emplace(kv_, options_.drafting);
    return {.reuse = reuse_ ? &*reuse_ : nullptr, .drafting = drafting_ ? &*drafting_ : nullptr};
  }

  void defragment(std::int64_t written) {
    if (!defrag_) {
      const double pool = static_cast<double>(pages_ * options_.page_size);
      if (static_cast<double>(written) < options_.defrag.after_turnovers * pool) return;
      defrag_.emplace(options_.defrag, options_.cost, kv_, reuse_ ? &reuse_->cache() : nullptr);
      defrag_from_ = written;
      defrag_from_step_ = scheduler_.counters().steps;
      sample();  // how things lay before
      before_defrag_ = result_.samples.back().metrics;
    }
    defrag_->step();
  }

  void plan_samples() {
    const std::int64_t total = total_tokens(list_);
    const int count = std::max(options_.samples, 1);
    for (int i = 1; i <= count; ++i) {
      sample_at_.push_back(static_cast<std::int64_t>(static_cast<double>(total) * i / count));
    }
    // The decay from a fresh pool is told by turnovers, and begins within the first.
    const std::int64_t pool = pages_ * options_.page_size;
    for (std::int64_t at = std::max<std::int64_t>(pool / 8, 1); at <= total / 2; at *= 2) {
      sample_at_.push_back(at);
    }
    std::ranges::sort(sample_at_);
    sample_at_.erase(std::unique(sample_at_.begin(), sample_at_.end()), sample_at_.end());
  }

  [[nodiscard]] SequenceView view(const Scheduler::Active& active) const {
    return {.pages = kv_.pages(active.seq),
            .length = active.length,
            .prefilled = std::min(active.prefill_target, active.length)};
  }

  void note(const Retired& what) {
    if (!options_.keep_requests) return;
    RequestRow row{.what = what, .layout = {}};
    if (what.seq != SeqId{}) {
      row.layout = meter_.measure({.pages = kv_.pages(what.seq),
                                   .length = kv_.length(what.seq),
                                   .prefilled = what.prefilled});
    }
    result_.requests.push_back(row);
  }

  void sample() {
    meter_.begin();
    oracle_.begin();
    for (const Scheduler::Active& active : scheduler_.running()) {
      meter_.add(view(active));
      oracle_.add(active.length);
    }
    // Pages that no table names (a cache's, retired ones) are in use all the same.
    meter_.end();
    const FreeSet& set = kv_.allocator().set();
    const PageCount in_use = set.count(PageState::live) + set.count(PageState::retired);
    if (meter_.live_pages() != in_use) {
      for (std::int32_t i = 1; i <= pages_; ++i) {
        const PageState state = set.state(PageId{i});
        if (state == PageState::live || state == PageState::retired) meter_.occupy(PageId{i});
      }
      meter_.end();
    }
    check();

    Sample sample;
    const SchedulerCounters& counters = scheduler_.counters();
    sample.step = counters.steps;
    sample.now_ns = scheduler_.now_ns();
    sample.tokens_written = counters.tokens_written;
    sample.turnovers = static_cast<double>(counters.tokens_written) /
                       static_cast<double>(pages_ * options_.page_size);
    sample.retired = counters.retired();
    sample.preemptions = counters.preemptions;
    sample.metrics = metrics_of(meter_);
    sample.oracle_run_mean = oracle_.run_mean();
    sample.oracle_tok_in_runs = {oracle_.tok_in_runs(16), oracle_.tok_in_runs(64),
                                 oracle_.tok_in_runs(128)};
    result_.samples.push_back(sample);
    result_.peak_live = std::max(result_.peak_live, meter_.live_pages());
    result_.peak_frontier = std::max(result_.peak_frontier, meter_.frontier());
    if (options_.map_columns > 0) result_.map.push_back(meter_.map(options_.map_columns));
    Detail detail{.free = meter_.free()};
    meter_.run_lengths().add_to(detail.runs);
    oracle_.run_lengths().add_to(detail.oracle_runs);
    details_.push_back(detail);
  }

  void check() {
    if (!options_.check) return;
    if (!reuse_) {
      kv_.check();
      return;
    }
    kv_.check(reuse_->cache().held());
    reuse_->cache().check();
  }

  void finish_parts() {
    if (defrag_) defrag_->end();
    check();
    if (reuse_) {
      result_.reuse = reuse_->counters();
      reuse_->cache().clear();
    }
    if (drafting_) result_.drafting = drafting_->counters();
  }

  void conclude_defrag() {
    if (!defrag_) return;
    const std::int64_t steps = result_.counters.steps - defrag_from_step_ + 1;
    result_.defrag = defrag_->report(before_defrag_, result_.steady, steps);
  }

  void mark_steady() {
    const SchedulerCounters& counters = scheduler_.counters();
    const std::int64_t pool = pages_ * options_.page_size;
    const std::int64_t half = (counters.tokens_written + defrag_from_) / 2;
    const std::int64_t from = std::max(half, pool);
    const std::int64_t to =
        counters.drained_at >= 0 ? counters.drained_at : counters.tokens_written;
    bool any = false;
    for (Sample& sample : result_.samples) {
      sample.steady = sample.tokens_written >= from && sample.tokens_written <= to &&
                      sample.metrics.live_tokens > 0.0;
      any = any || sample.steady;
    }
    if (any) return;
    for (Sample& sample : result_.samples) sample.steady = sample.metrics.live_tokens > 0.0;
  }

  void conclude() {
    result_.counters = scheduler_.counters();
    result_.now_ns = scheduler_.now_ns();
    result_.digest = kv_.digest();
    finish_parts();
    if (kv_.available_pages() != pages_ || kv_.sequences() != 0) {
      throw InvariantError("after the replay " + std::to_string(kv_.available_pages()) + " of " +
                           std::to_string(pages_) + " pages are free and " +
                           std::to_string(kv_.sequences()) + " sequences are left");
    }
    mark_steady();
    std::array<double, RunLengths::kBins> runs{};
    std::array<double, RunLengths::kBins> oracle_runs{};
    std::array<Mean, 3> oracle_shares;
    Mean oracle_mean;
    Mean moves;
    for (std::size_t i = 0; i < result_.samples.size(); ++i) {
      const Sample& sample = result_.samples[i];
      if (!sample.steady) continue;
      result_.steady_samples += 1;
      oracle_mean.add(sample.oracle_run_mean);
      moves.add(sample.metrics.frontier_moves_min);
      for (std::size_t k = 0; k < 3; ++k) oracle_shares[k].add(sample.oracle_tok_in_runs[k]);
      for (std::size_t bin = 0; bin < runs.size(); ++bin) {
        runs[bin] += details_[i].runs[bin];
        oracle_runs[bin] += details_[i].oracle_runs[bin];
      }
    }
    for (const MetricField& field : metric_fields()) {
      Mean mean;
      for (const Sample& sample : result_.samples) {
        if (sample.steady) mean.add(sample.metrics.*field.value);
      }
      result_.steady.*field.value = mean.value();
    }
    result_.steady_oracle_run_mean = oracle_mean.value();
    result_.steady_moves_min = moves.value();
    for (std::size_t k = 0; k < 3; ++k) {
      result_.steady_oracle_tok_in_runs[k] = oracle_shares[k].value();
    }
    result_.run_shares = shares(runs);
    result_.oracle_run_shares = shares(oracle_runs);
    conclude_free();
    conclude_defrag();
    conclude_timing();
  }

  static std::vector<double> shares(std::span<const double> bins) {
    double sum = 0.0;
    for (const double bin : bins) sum += bin;
    std::vector<double> result(bins.begin(), bins.end());
    for (double& bin : result) bin = sum > 0.0 ? bin / sum : 0.0;
    while (result.size() > 1 && result.back() == 0.0) result.pop_back();
    return result;
  }

  void conclude_free() {
    for (int order = 0; order < FreeTotals::kOrders && (pages_ >> order) > 0; ++order) {
      Mean unusable;
      Mean index;
      Mean fragmentation;
      for (std::size_t i = 0; i < result_.samples.size(); ++i) {
        if (!result_.samples[i].steady) continue;
        unusable.add(free_F(details_[i].free, order));
        index.add(ufsi(details_[i].free, order));
        fragmentation.add(extfrag(details_[i].free, order));
      }
      result_.free_F.push_back(unusable.value());
      result_.ufsi.push_back(index.value());
      result_.extfrag.push_back(fragmentation.value());
    }
  }

  void conclude_timing() {
    Timing& timing = result_.timing;
    const double events =
        static_cast<double>(result_.counters.tokens_written + result_.counters.tokens_released);
    timing.events_per_s = timing.replay_s > 0.0 ? events / timing.replay_s : kNone;
    std::ranges::sort(step_ns_);
    if (step_ns_.empty()) return;
    timing.step_ns_p50 = step_ns_[step_ns_.size() / 2];
    timing.step_ns_p99 = step_ns_[(step_ns_.size() - 1) * 99 / 100];
  }

  const RequestList& list_;
  const RunOptions& options_;
  ProgressCounters* progress_;
  PageCount pages_;
  KvManager kv_;
  Meter meter_;
  Oracle oracle_;
  std::optional<PrefixReuse> reuse_;
  std::optional<Drafting> drafting_;
  std::optional<Defrag> defrag_;
  std::int64_t defrag_from_{0};
  std::int64_t defrag_from_step_{0};
  Metrics before_defrag_{};
  Scheduler scheduler_;
  RunResult result_;
  std::vector<Detail> details_;
  std::vector<std::int64_t> sample_at_;
  std::size_t next_sample_{0};
  std::vector<double> step_ns_;
  std::int64_t reported_{0};
};

}  // namespace

double RunResult::blowup() const {
  if (peak_live == 0) return kNone;
  return static_cast<double>(peak_frontier) / static_cast<double>(peak_live);
}

RunResult run(const RequestList& list, const RunOptions& options, ProgressCounters* progress) {
  RunResult result = Replay(list, options, progress).go();
  if (progress != nullptr) progress->runs_done.fetch_add(1, std::memory_order_relaxed);
  return result;
}

void replay_until(const RequestList& list, const RunOptions& options, std::int64_t step,
                  const std::function<void(KvManager&, PrefixCache*, std::vector<SeqId>)>& visit) {
  Replay(list, options, nullptr).until(step, visit);
}

}  // namespace packstone::sim
