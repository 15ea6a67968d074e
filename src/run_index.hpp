// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The maximal runs of free pages, by address and by length.
///
/// Two bits a page say whether a run begins or ends there, which is all that boundary tags (Knuth,
/// The Art of Computer Programming 1, 2.5) have to tell: the other end of a run is the next such
/// bit, mostly in the same word. One ordered bit set a power of two of length finds a fit.
/// Inserting joins the neighbours. Every operation is O(log64 pages), but for the choice among runs
/// of one class, which looks at kCandidates of them.
///
/// A page chosen at random costs one miss here, and one more for the set of its run's class unless
/// it is taken again at once.

#include "bit_tree.hpp"

#include <packstone/units.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace packstone {

class RunIndex {
 public:
  explicit RunIndex(PageCount pages);

  [[nodiscard]] PageCount pages() const { return pages_; }
  /// Adds a run of pages that are not in the index.
  void insert(PageRun run);
  /// Takes `count` pages out of the front of a run of the index.
  void take_front(PageRun run, std::int32_t count);
  /// Takes a page out of wherever it is.
  void take_exact(PageId page);

  /// The run that starts at this page; count 0 when none does.
  [[nodiscard]] PageRun at(PageId page) const;
  /// The shortest run of at least `pages` pages among the candidates of the first class that has
  /// one, lowest address first; count 0 when there is none.
  [[nodiscard]] PageRun best_fit(PageCount pages);
  /// The longest run among the candidates of the longest class; count 0 when the index is empty.
  [[nodiscard]] PageRun longest();

  /// All runs, ascending: O(runs).
  [[nodiscard]] std::vector<PageRun> runs() const;

 private:
  /// Runs of one class that a choice looks at. More finds tighter fits and costs time.
  static constexpr int kCandidates = 16;

  /// The ends of runs among 64 pages: both in one cache line.
  struct Ends {
    std::uint64_t heads{0};
    std::uint64_t tails{0};
  };

  /// Adds bits to a word of ends_, or takes them away.
  void mark(std::uint32_t word, Ends bits);
  void unmark(std::uint32_t word, Ends bits);
  /// Both ends of a run.
  void mark_run(std::int32_t head, std::int32_t tail);
  void unmark_run(std::int32_t head, std::int32_t tail);
  void list(std::int32_t head, std::size_t size_class);
  /// Marks and lists the loose run, if there is one.
  void settle();
  [[nodiscard]] bool is_head(std::int32_t page) const;
  [[nodiscard]] bool is_tail(std::int32_t page) const;
  /// The last page of the run that starts at this one, and the first of the run that ends here.
  [[nodiscard]] std::int32_t tail_of(std::int32_t head) const;
  [[nodiscard]] std::int32_t head_of(std::int32_t tail) const;
  /// The run that starts at this page, which is a head.
  [[nodiscard]] PageRun run_at(std::int32_t head) const {
    return {PageId{head}, tail_of(head) - head + 1};
  }
  /// The best of the candidates of a class; a run of `ideal` pages ends the search, as no run of
  /// the class is better.
  template <typename Better>
  [[nodiscard]] PageRun choose(std::size_t size_class, PageCount at_least, PageCount ideal,
                               Better better) const;

  PageCount size_;                // of the pool
  std::vector<Ends> ends_;        // [pages / 64]
  BitTree words_;                 // of ends_, those that have an end
  std::vector<BitTree> classes_;  // [log2 of the length], heads; made when first needed
  PageCount pages_{0};
  // The run that came last, without free neighbours and as yet without marks: a page that is taken
  // as soon as it was given costs no more than the look for its neighbours.
  PageRun loose_{};
};

}  // namespace packstone
