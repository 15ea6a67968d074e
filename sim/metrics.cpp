// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/metrics.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace packstone::sim {

namespace {

constexpr int kRegionShift = 21;  // 2 MiB
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

/// Pairs (i - 1, i) with begin <= i < end, i >= 1, whose pages do not follow each other.
std::int64_t breaks(std::span<const PageId> pages, std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    count += index_of(pages[at]) - index_of(pages[at - 1]) != 1 ? 1 : 0;
  }
  return count;
}

}  // namespace

// ---- run lengths ----

int run_bin(std::int64_t slots) {
  const int octave = log2_floor(slots);
  const auto offset = static_cast<std::uint64_t>(slots) - (std::uint64_t{1} << octave);
  return octave * 4 + static_cast<int>((offset << 2U) >> octave);
}

std::int64_t run_bin_start(int bin) {
  const int octave = bin / 4;
  const std::int64_t base = std::int64_t{1} << octave;
  return base + (base * (bin % 4) + 3) / 4;
}

void RunLengths::clear() {
  std::ranges::fill(small_, 0);
  large_.clear();
}

std::int64_t RunLengths::tokens() const {
  std::int64_t sum = 0;
  for (std::int64_t i = 1; i < kSmall; ++i) sum += i * small_[static_cast<std::size_t>(i)];
  for (const std::int64_t slots : large_) sum += slots;
  return sum;
}

double RunLengths::share_at_least(std::int64_t slots) const {
  std::int64_t sum = 0;
  for (std::int64_t i = slots; i < kSmall; ++i) sum += i * small_[static_cast<std::size_t>(i)];
  for (const std::int64_t run : large_) sum += run >= slots ? run : 0;
  const std::int64_t all = tokens();
  return all == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(all);
}

std::int64_t RunLengths::weighted_median() const {
  const std::int64_t half = (tokens() + 1) / 2;
  if (half == 0) return 0;
  std::int64_t sum = 0;
  for (std::int64_t i = 1; i < kSmall; ++i) {
    sum += i * small_[static_cast<std::size_t>(i)];
    if (sum >= half) return i;
  }
  std::vector<std::int64_t> sorted = large_;
  std::ranges::sort(sorted);
  for (const std::int64_t slots : sorted) {
    sum += slots;
    if (sum >= half) return slots;
  }
  return 0;
}

void RunLengths::add_to(std::span<double, kBins> bins) const {
  const auto add = [&](std::int64_t slots, std::int64_t count) {
    bins[static_cast<std::size_t>(std::min(run_bin(slots), kBins - 1))] +=
        static_cast<double>(slots * count);
  };
  for (std::int64_t i = 1; i < kSmall; ++i) {
    if (const std::int32_t count = small_[static_cast<std::size_t>(i)]; count > 0) add(i, count);
  }
  for (const std::int64_t slots : large_) add(slots, 1);
}

// ---- meter ----

Meter::Meter(PageCount pages, std::int64_t page_size, std::int64_t slot_bytes)
    : pages_(pages), page_size_(page_size), slot_bytes_(slot_bytes) {
  used_.resize(static_cast<std::size_t>(pages / 64 + 1));
  run_class_.resize(static_cast<std::size_t>(pages));
  const std::int64_t bytes = pages * page_size * slot_bytes;
  const auto regions = static_cast<std::size_t>((bytes >> kRegionShift) + 1);
  region_seen_.reset(static_cast<std::uint32_t*>(std::calloc(regions, sizeof(std::uint32_t))));
  if (region_seen_ == nullptr) {
    throw InvalidArgument("a pool of " + std::to_string(bytes) + " bytes a layer has " +
                          std::to_string(regions) +
                          " regions of 2 MiB: too many to keep count of in this machine's memory");
  }
}

void Meter::begin() {
  layout_ = {};
  runs_.clear();
  std::ranges::fill(used_, 0);
}

void Meter::occupy(PageId page) {
  const auto index = static_cast<std::size_t>(index_of(page));
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  if ((used_[index / 64] & bit) != 0) return;  // a sequence has marked it, with its class
  used_[index / 64] |= bit;
  run_class_[index] = static_cast<std::uint8_t>(std::min(log2_floor(page_size_), 15));
}

template <bool kSample>
void Meter::scan(const SequenceView& view, LayoutTotals& totals) {
  const auto held = static_cast<std::int64_t>(view.pages.size());
  const std::int64_t count = pages_for(view.length, page_size_);
  PACKSTONE_ASSERT(count <= held);
  if constexpr (kSample) {
    for (std::int64_t i = count; i < held; ++i) occupy(view.pages[static_cast<std::size_t>(i)]);
  }
  totals.wasted_slots += held * page_size_ - view.length;
  if (count == 0) return;
  const std::span<const PageId> pages = view.pages.first(static_cast<std::size_t>(count));

  // A token i opens a page when page_size divides it. The prefill part has the borders of tokens
  // 1 .. prefilled - 1, the decode part those of prefilled + 1 .. length - 1.
  const std::int64_t prefilled = std::min(view.prefilled, view.length);
  const std::int64_t in_prefill = breaks(pages, 1, pages_for(prefilled, page_size_));
  const std::int64_t in_decode = breaks(pages, prefilled / page_size_ + 1, count);
  std::int64_t between = 0;
  if (prefilled > 0 && prefilled < view.length && prefilled % page_size_ == 0) {
    between = breaks(pages, prefilled / page_size_, prefilled / page_size_ + 1);
  }
  const std::int64_t prefill_pairs = std::max<std::int64_t>(prefilled - 1, 0);
  const std::int64_t decode_pairs = std::max<std::int64_t>(view.length - prefilled - 1, 0);
  const std::int64_t pairs = view.length - 1;
  const std::int64_t broken = in_prefill + in_decode + between;

  totals.sequences += 1;
  totals.tokens += view.length;
  totals.pages += count;
  totals.runs += broken + 1;
  totals.prefill_pairs += prefill_pairs;
  totals.prefill_adjacent += prefill_pairs - in_prefill;
  totals.decode_pairs += decode_pairs;
  totals.decode_adjacent += decode_pairs - in_decode;
  totals.all_pairs += pairs;
  totals.all_adjacent += pairs - broken;
  totals.contig_all_by_request +=
      pairs == 0 ? 1.0 : static_cast<double>(pairs - broken) / static_cast<double>(pairs);

  std::int32_t low = index_of(pages[0]);
  std::int32_t high = low;
  for (const PageId page : pages) {
    low = std::min(low, index_of(page));
    high = std::max(high, index_of(page));
  }
  // The last page counts in full in the span unless it is the highest.
  const std::int64_t tail = count * page_size_ - view.length;
  totals.span_slots +=
      (std::int64_t{high} - low + 1) * page_size_ - (index_of(pages.back()) == high ? tail : 0);

  totals.stride_steps += std::max<std::int64_t>(count - 2, 0);
  std::int64_t equal = 0;
  for (std::size_t i = 2; i < pages.size(); ++i) {
    equal += index_of(pages[i]) - index_of(pages[i - 1]) ==
                     index_of(pages[i - 1]) - index_of(pages[i - 2])
                 ? 1
                 : 0;
  }
  totals.stride_equal += equal;

  stamp_ += 1;
  std::int64_t regions = 0;
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t end = i + 1;
    while (end < pages.size() && index_of(pages[end]) - index_of(pages[end - 1]) == 1) ++end;
    const auto length = static_cast<std::int64_t>(end - i);
    const std::int64_t slots = length * page_size_ - (end == pages.size() ? tail : 0);
    const std::int64_t first = std::int64_t{index_of(pages[i])} * page_size_;
    const std::int64_t last_region = ((first + slots) * slot_bytes_ - 1) >> kRegionShift;
    for (std::int64_t r = (first * slot_bytes_) >> kRegionShift; r <= last_region; ++r) {
      std::uint32_t& seen = region_seen_[static_cast<std::size_t>(r)];
      regions += seen != stamp_ ? 1 : 0;
      seen = stamp_;
    }
    if constexpr (kSample) {
      runs_.add(slots);
      const auto run_class = static_cast<std::uint8_t>(std::min(log2_floor(slots), 15));
      const auto at = static_cast<std::size_t>(index_of(pages[i]));
      for (std::size_t p = at; p < at + static_cast<std::size_t>(length); ++p) {
        used_[p / 64] |= std::uint64_t{1} << (p % 64);
        run_class_[p] = run_class;
      }
    }
    i = end;
  }
  totals.regions += regions;
  totals.regions_min += ((view.length * slot_bytes_ - 1) >> kRegionShift) + 1;
}

void Meter::add(const SequenceView& view) {
  scan<true>(view, layout_);
}

LayoutTotals Meter::measure(const SequenceView& view) {
  LayoutTotals totals;
  scan<false>(view, totals);
  return totals;
}

void Meter::end() {
  free_ = {};
  live_ = 0;
  for (const std::uint64_t word : used_) live_ += std::popcount(word);
  frontier_ = 0;
  for (std::size_t w = used_.size(); w-- > 0;) {
    if (used_[w] == 0) continue;
    frontier_ = static_cast<PageCount>(w * 64) + 63 - std::countl_zero(used_[w]);
    break;
  }
  PageCount below = 0;  // pages in use among 1 .. live
  for (PageCount w = 0; w <= live_ / 64; ++w) {
    std::uint64_t word = used_[static_cast<std::size_t>(w)];
    if (const PageCount rest = live_ + 1 - w * 64; rest < 64) {
      word &= (std::uint64_t{1} << rest) - 1;
    }
    below += std::popcount(word);
  }
  frontier_moves_ = live_ - below;

  const auto add_extent = [&](PageCount first, PageCount count) {
    free_.pages += count;
    free_.holes += 1;
    free_.largest = std::max(free_.largest, count);
    for (int order = 0; count >> order != 0 && order < FreeTotals::kOrders; ++order) {
      free_.fits[static_cast<std::size_t>(order)] += count >> order;
    }
    free_.length_log_length += static_cast<double>(count) * std::log2(static_cast<double>(count));
    const std::int64_t page_bytes = page_size_ * slot_bytes_;
    const std::int64_t round_up = (std::int64_t{1} << kRegionShift) - 1;
    const std::int64_t begin = (first * page_bytes + round_up) >> kRegionShift;
    const std::int64_t past = ((first + count) * page_bytes) >> kRegionShift;
    free_.empty_regions += std::max<std::int64_t>(past - begin, 0);
  };
  for (PageCount page = 1; page < pages_;) {
    // Skip what is in use, then find how far the free pages reach, a word at a time.
    std::uint64_t word = ~used_[static_cast<std::size_t>(page / 64)] >> (page % 64);
    if (word == 0) {
      page = (page / 64 + 1) * 64;
      continue;
    }
    page += std::countr_zero(word);
    if (page >= pages_) break;
    const PageCount first = page;
    while (page < pages_) {
      word = used_[static_cast<std::size_t>(page / 64)] >> (page % 64);
      if (word != 0) {
        page += std::countr_zero(word);
        break;
      }
      page = (page / 64 + 1) * 64;
    }
    add_extent(first, std::min(page, pages_) - first);
  }
}

std::vector<std::uint8_t> Meter::map(int columns) const {
  std::vector<std::uint8_t> cells(static_cast<std::size_t>(columns) * 2);
  for (int c = 0; c < columns; ++c) {
    const PageCount begin = std::max<PageCount>(1, pages_ * c / columns);
    const PageCount past = std::max(pages_ * (c + 1) / columns, begin);
    std::int64_t used = 0;
    std::int64_t classes = 0;
    for (PageCount page = begin; page < past; ++page) {
      const auto at = static_cast<std::size_t>(page);
      if ((used_[at / 64] >> (at % 64) & 1U) == 0) continue;
      used += 1;
      classes += run_class_[at];
    }
    const auto cell = static_cast<std::size_t>(c) * 2;
    if (used == 0) continue;
    cells[cell] = static_cast<std::uint8_t>((used * 9 + past - begin - 1) / (past - begin));
    cells[cell + 1] = static_cast<std::uint8_t>((classes + used / 2) / used);
  }
  return cells;
}

double Meter::returnable() const {
  const double free_bytes = static_cast<double>(free_.pages * page_size_ * slot_bytes_);
  return ratio(static_cast<double>(free_.empty_regions), free_bytes / (1 << kRegionShift));
}

double Meter::internal_frag() const {
  return ratio(layout_.wasted_slots, live_ * page_size_);
}

}  // namespace packstone::sim
