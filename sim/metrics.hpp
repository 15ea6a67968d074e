// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a placement looks like at one moment: how the live sequences lie, and how the free memory
/// does.
///
/// Terms. x_0 .. x_{n-1} are the slots of a sequence's n tokens in logical order. A *run* is a
/// maximal stretch of them with x_i = x_{i-1} + 1. A pair (i-1, i) is a *prefill* pair when a
/// prefill wrote both tokens, a *decode* pair when decode steps wrote both; the pair across the
/// border is neither, but counts in contig_all. Tokens of a preempted request that were written
/// again by a prefill are prefill tokens.
///
/// Contiguity is the layout score of Smith and Seltzer ("File System Aging", SIGMETRICS 1997);
/// ufsi(j) is the unusable free space index of Gorman, extfrag(j) the fragmentation index of
/// Linux's mm/vmstat.c, both with free extents in place of buddy blocks.

#include <packstone/units.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

namespace packstone::sim {

/// One live sequence: a page table whose first `length` slots are written, the first `prefilled` of
/// them by prefills.
struct SequenceView {
  std::span<const PageId> pages;  ///< at least pages_for(length) entries; the rest is capacity
  TokenCount length{0};
  TokenCount prefilled{0};
};

/// Sums over sequences, exact integers, so that the order of adding does not show.
struct LayoutTotals {
  std::int64_t sequences{0};  ///< with at least one token
  std::int64_t tokens{0};
  std::int64_t pages{0};         ///< that hold a token; a shared page counts for each owner
  std::int64_t wasted_slots{0};  ///< allocated and not written, in the tables' own tails
  std::int64_t runs{0};
  std::int64_t prefill_pairs{0};
  std::int64_t prefill_adjacent{0};
  std::int64_t decode_pairs{0};
  std::int64_t decode_adjacent{0};
  std::int64_t all_pairs{0};
  std::int64_t all_adjacent{0};
  std::int64_t span_slots{0};  ///< max - min + 1 of each, added up
  std::int64_t regions{0};     ///< 2 MiB regions touched, added up
  std::int64_t regions_min{0};
  std::int64_t stride_steps{0};       ///< steps between pages that have a step before them
  std::int64_t stride_equal{0};       ///< of these, equal to the step before
  double contig_all_by_request{0.0};  ///< sum over sequences of their own ratio (1 for one token)
};

/// Runs counted by length in slots.
class RunLengths {
 public:
  void add(std::int64_t slots) {
    if (slots < kSmall) {
      ++small_[static_cast<std::size_t>(slots)];
    } else {
      large_.push_back(slots);
    }
  }
  void clear();
  /// Share of tokens in runs of at least `slots`; 0 without tokens.
  [[nodiscard]] double share_at_least(std::int64_t slots) const;
  /// Length of the run in which the median token lies (the lower one of two); 0 without tokens.
  [[nodiscard]] std::int64_t weighted_median() const;
  [[nodiscard]] std::int64_t tokens() const;

  /// Tokens by bin of run length; see run_bin.
  static constexpr int kBins = 96;
  void add_to(std::span<double, kBins> bins) const;

 private:
  static constexpr std::int64_t kSmall = 4096;
  std::vector<std::int32_t> small_ = std::vector<std::int32_t>(kSmall, 0);
  std::vector<std::int64_t> large_;
};

/// Bin of a run length >= 1: four bins an octave, every power of two starts one.
[[nodiscard]] int run_bin(std::int64_t slots);
/// Shortest run length of a bin (rounded up); the inverse of run_bin.
[[nodiscard]] std::int64_t run_bin_start(int bin);

/// How free memory lies, over the extents of free pages.
struct FreeTotals {
  static constexpr int kOrders = 31;  ///< 2^30 pages is the largest power of two that can be free
  std::int64_t pages{0};
  std::int64_t holes{0};                     ///< free extents
  std::int64_t largest{0};                   ///< pages of the longest one
  std::array<std::int64_t, kOrders> fits{};  ///< [j] sum over extents of floor(length / 2^j)
  std::int64_t empty_regions{0};             ///< whole 2 MiB regions without a page in use
  double length_log_length{0.0};             ///< sum of b log2 b, for the entropy
};

/// Measures a pool. Keeps scratch between samples, so make one for each run.
class Meter {
 public:
  /// @param pages  of the pool, page 0 included. @param slot_bytes  of one slot in one buffer.
  Meter(PageCount pages, std::int64_t page_size, std::int64_t slot_bytes);

  void begin();
  /// Adds a live sequence to the sample.
  void add(const SequenceView& view);
  /// A page in use that no sequence of this sample names (a cache, a retired page).
  void occupy(PageId page);
  /// After the last add: finds the free extents.
  void end();

  [[nodiscard]] const LayoutTotals& layout() const { return layout_; }
  [[nodiscard]] const RunLengths& run_lengths() const { return runs_; }
  [[nodiscard]] const FreeTotals& free() const { return free_; }
  [[nodiscard]] PageCount live_pages() const { return live_; }    ///< distinct pages in use
  [[nodiscard]] PageCount frontier() const { return frontier_; }  ///< largest page in use, 0: none
  /// Pages in use above the live-page mark: the fewest moves that bring all live pages below it,
  /// since each of these must move and each other may stay (two-finger compaction, Edwards).
  [[nodiscard]] PageCount frontier_moves() const { return frontier_moves_; }

  /// Empty 2 MiB regions over those that the free bytes could make; NaN when nothing is free.
  [[nodiscard]] double returnable() const;
  /// Slots allocated and not written, over the slots of the pages in use; NaN without these.
  [[nodiscard]] double internal_frag() const;

  /// The pool as `columns` cells: [2c] how full (0 .. 9 ninths, rounded up), [2c+1] the mean class
  /// of its pages in use: floor(log2(run length in slots)), at most 15.
  [[nodiscard]] std::vector<std::uint8_t> map(int columns) const;

  /// The layout of one sequence alone. Does not touch the sample.
  [[nodiscard]] LayoutTotals measure(const SequenceView& view);

 private:
  template <bool kSample>
  void scan(const SequenceView& view, LayoutTotals& totals);

  PageCount pages_;
  std::int64_t page_size_;
  std::int64_t slot_bytes_;
  LayoutTotals layout_{};
  RunLengths runs_;
  FreeTotals free_{};
  PageCount live_{0};
  PageCount frontier_{0};
  PageCount frontier_moves_{0};
  std::vector<std::uint64_t> used_;      // bit a page
  std::vector<std::uint8_t> run_class_;  // [pages], of those in use
  /// [regions], stamp of the sequence that was there last. Of huge pages there are many more
  /// regions than are ever touched, so they come from calloc, which leaves them untouched as well.
  struct Free {
    void operator()(std::uint32_t* stamps) const { std::free(stamps); }
  };
  std::unique_ptr<std::uint32_t[], Free> region_seen_;
  std::uint32_t stamp_{0};
};

/// The metrics of one moment. A ratio without a denominator is NaN, written as null or left empty.
struct Metrics {
  double contig_prefill, contig_decode, contig_all, contig_all_by_request;
  double run_mean;  ///< slots
  double run_p50w;  ///< slots: run of the median token
  double tok_in_runs_16, tok_in_runs_64, tok_in_runs_128;
  double span_ratio, pages2m_ratio, stride_regular;
  double descriptors;  ///< runs a request
  double mergeable;    ///< 1 - runs / pages
  double frontier_waste, returnable_2m;
  double free_F_auc;  ///< mean of F(S) over log2 S, 0 good, 1 bad
  double lfe;         ///< pages of the largest free extent
  double lfe_waste;   ///< 1 - lfe / free pages
  double holes, free_entropy, internal_frag;
  double live_sequences, live_tokens, live_pages, free_pages, frontier_moves_min;
};

struct MetricField {
  const char* name;
  double Metrics::*value;
};
/// Every field of Metrics by its name in files, in the order of columns.
[[nodiscard]] std::span<const MetricField> metric_fields();

[[nodiscard]] Metrics metrics_of(const Meter& meter);

/// F(S) = 1 - sum floor(b_i / S) / floor(free / S) for S = 2^order; NaN when fewer are free than S.
[[nodiscard]] double free_F(const FreeTotals& free, int order);
/// (free - 2^order x fits) / free; NaN when nothing is free.
[[nodiscard]] double ufsi(const FreeTotals& free, int order);
/// 0 when nothing is free, -1 when an extent of 2^order pages is, else
/// 1 - (1 + free / 2^order) / holes: near 0 for want of memory, near 1 for fragmentation.
[[nodiscard]] double extfrag(const FreeTotals& free, int order);

}  // namespace packstone::sim
