// SPDX-License-Identifier: Apache-2.0
// From counts to ratios.
#include <sim/metrics.hpp>

#include <bit>
#include <cmath>
#include <limits>

namespace packstone::sim {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : kNone;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return ratio(static_cast<double>(part), static_cast<double>(whole));
}

int log2_floor(std::int64_t value) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value))) - 1;
}

}  // namespace

double free_F(const FreeTotals& free, int order) {
  const std::int64_t possible = free.pages >> order;
  if (possible == 0) return kNone;
  return 1.0 - static_cast<double>(free.fits[static_cast<std::size_t>(order)]) /
                   static_cast<double>(possible);
}

double ufsi(const FreeTotals& free, int order) {
  const std::int64_t usable = free.fits[static_cast<std::size_t>(order)] << order;
  return ratio(free.pages - usable, free.pages);
}

double extfrag(const FreeTotals& free, int order) {
  if (free.holes == 0) return 0.0;
  if (free.fits[static_cast<std::size_t>(order)] > 0) return -1.0;
  const double requested = static_cast<double>(std::int64_t{1} << order);
  return 1.0 -
         (1.0 + static_cast<double>(free.pages) / requested) / static_cast<double>(free.holes);
}

namespace {

/// Trapezoids over log2 S from S = 1 to the largest power of two that is free, over their width.
double free_F_auc(const FreeTotals& free) {
  if (free.pages == 0) return kNone;
  const int orders = log2_floor(free.pages);
  if (orders == 0) return free_F(free, 0);
  double area = 0.0;
  for (int order = 0; order < orders; ++order) {
    area += (free_F(free, order) + free_F(free, order + 1)) / 2.0;
  }
  return area / orders;
}

}  // namespace

Metrics metrics_of(const Meter& meter) {
  const LayoutTotals& layout = meter.layout();
  const FreeTotals& free = meter.free();
  const RunLengths& runs = meter.run_lengths();
  const bool any = layout.tokens > 0;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  Metrics m{};
  m.contig_prefill = ratio(layout.prefill_adjacent, layout.prefill_pairs);
  m.contig_decode = ratio(layout.decode_adjacent, layout.decode_pairs);
  m.contig_all = ratio(layout.all_adjacent, layout.all_pairs);
  m.contig_all_by_request = ratio(layout.contig_all_by_request, number(layout.sequences));
  m.run_mean = ratio(layout.tokens, layout.runs);
  m.run_p50w = any ? number(runs.weighted_median()) : kNone;
  m.tok_in_runs_16 = any ? runs.share_at_least(16) : kNone;
  m.tok_in_runs_64 = any ? runs.share_at_least(64) : kNone;
  m.tok_in_runs_128 = any ? runs.share_at_least(128) : kNone;
  m.span_ratio = ratio(layout.span_slots, layout.tokens);
  m.pages2m_ratio = ratio(layout.regions, layout.regions_min);
  m.stride_regular = ratio(layout.stride_equal, layout.stride_steps);
  m.descriptors = ratio(layout.runs, layout.sequences);
  m.mergeable = any ? 1.0 - ratio(layout.runs, layout.pages) : kNone;
  // Page 0 is nobody's, so a packed pool ends at page `live`.
  m.frontier_waste =
      meter.frontier() > 0 ? 1.0 - ratio(meter.live_pages(), meter.frontier()) : kNone;
  m.returnable_2m = meter.returnable();
  m.free_F_auc = free_F_auc(free);
  m.lfe = number(free.largest);
  m.lfe_waste = free.pages > 0 ? 1.0 - ratio(free.largest, free.pages) : kNone;
  m.holes = number(free.holes);
  m.free_entropy = free.pages > 0
                       ? std::log2(number(free.pages)) - free.length_log_length / number(free.pages)
                       : kNone;
  m.internal_frag = meter.internal_frag();
  m.live_sequences = number(layout.sequences);
  m.live_tokens = number(layout.tokens);
  m.live_pages = number(meter.live_pages());
  m.free_pages = number(free.pages);
  m.frontier_moves_min = number(meter.frontier_moves());
  return m;
}

std::span<const MetricField> metric_fields() {
  static constexpr MetricField kFields[] = {
      {"contig_prefill", &Metrics::contig_prefill},
      {"contig_decode", &Metrics::contig_decode},
      {"contig_all", &Metrics::contig_all},
      {"contig_all_by_request", &Metrics::contig_all_by_request},
      {"run_mean", &Metrics::run_mean},
      {"run_p50w", &Metrics::run_p50w},
      {"tok_in_runs_16", &Metrics::tok_in_runs_16},
      {"tok_in_runs_64", &Metrics::tok_in_runs_64},
      {"tok_in_runs_128", &Metrics::tok_in_runs_128},
      {"span_ratio", &Metrics::span_ratio},
      {"pages2m_ratio", &Metrics::pages2m_ratio},
      {"stride_regular", &Metrics::stride_regular},
      {"descriptors", &Metrics::descriptors},
      {"mergeable", &Metrics::mergeable},
      {"frontier_waste", &Metrics::frontier_waste},
      {"returnable_2m", &Metrics::returnable_2m},
      {"F_auc", &Metrics::free_F_auc},
      {"lfe", &Metrics::lfe},
      {"lfe_waste", &Metrics::lfe_waste},
      {"holes", &Metrics::holes},
      {"free_entropy", &Metrics::free_entropy},
      {"internal_frag", &Metrics::internal_frag},
      {"live_sequences", &Metrics::live_sequences},
      {"live_tokens", &Metrics::live_tokens},
      {"live_pages", &Metrics::live_pages},
      {"free_pages", &Metrics::free_pages},
      {"frontier_moves_min", &Metrics::frontier_moves_min},
  };
  return kFields;
}

}  // namespace packstone::sim
