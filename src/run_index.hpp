// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The maximal runs of free pages, by address and by length.
///
/// Boundary tags (Knuth, The Art of Computer Programming 1, 2.5) hold a run's length at both of its
/// ends, 4 bytes a page; one ordered bit set a power of two of length finds a fit. Inserting joins
/// the neighbours. Every operation is O(log64 pages), but for the choice among runs of one class,
/// which looks at kCandidates of them.

#include "bit_tree.hpp"

#include <packstone/units.hpp>

#include <vector>

namespace packstone {

class RunIndex {
 public:
  explicit RunIndex(PageCount pages);

  [[nodiscard]] PageCount pages() const { return pages_; }
  /// Adds a run of pages that are not in the index.
  void insert(PageRun run);
  /// Takes `count` pages out of the front of the run that starts at `first`.
  void take_front(PageId first, std::int32_t count);
  /// Takes a page out of wherever it is.
  void take_exact(PageId page);

  /// The run that starts at this page; count 0 when none does.
  [[nodiscard]] PageRun at(PageId page) const;
  /// The shortest run of at least `pages` pages among the candidates of the first class that has
  /// one, lowest address first; count 0 when there is none.
  [[nodiscard]] PageRun best_fit(PageCount pages) const;
  /// The longest run among the candidates of the longest class; count 0 when the index is empty.
  [[nodiscard]] PageRun longest() const;

  /// All runs, ascending: O(runs).
  [[nodiscard]] std::vector<PageRun> runs() const;

 private:
  /// Runs of one class that a choice looks at. More finds tighter fits and costs time.
  static constexpr int kCandidates = 16;

  void add(PageRun run);
  void remove(PageRun run);
  [[nodiscard]] std::int32_t length(std::int64_t page) const {
    return lengths_[static_cast<std::size_t>(page)];
  }
  /// The best of the candidates of a class; a run of `ideal` pages ends the search, as no run of
  /// the class is better.
  template <typename Better>
  [[nodiscard]] PageRun choose(std::size_t size_class, PageCount at_least, PageCount ideal,
                               Better better) const;

  std::vector<std::int32_t> lengths_;  // [pages], valid at both ends of each run
  BitTree heads_;
  BitTree tails_;
  std::vector<BitTree> classes_;  // [log2 of the length], heads; made when first needed
  PageCount pages_{0};
};

}  // namespace packstone
