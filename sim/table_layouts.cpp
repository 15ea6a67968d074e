// SPDX-License-Identifier: Apache-2.0
#include <sim/prng.hpp>
#include <sim/table_layouts.hpp>

#include <algorithm>
#include <numeric>
#include <string>

namespace packstone::sim {

TokenCount TableSet::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), TokenCount{0});
}

PageCount TableSet::pages() const {
  PageCount total = 0;
  for (const auto& table : tables) total += static_cast<PageCount>(table.size());
  return total;
}

std::string_view to_string(TableLayout layout) {
  switch (layout) {
    case TableLayout::identity:
      return "identity";
    case TableLayout::churned:
      return "churned";
    case TableLayout::stride:
      return "stride";
    case TableLayout::random:
      return "random";
  }
  return "unknown";
}

TableSet tables_of(const PoolSnapshot& snapshot) {
  TableSet set{.page_size = snapshot.page_size,
               .pool_pages = static_cast<PageCount>(snapshot.states.size()),
               .tables = {},
               .lengths = {}};
  for (const PoolSnapshot::Table& table : snapshot.tables) {
    if (table.length == 0) continue;
    const auto pages = static_cast<std::ptrdiff_t>(pages_for(table.length, snapshot.page_size));
    set.tables.emplace_back(table.pages.begin(), table.pages.begin() + pages);
    set.lengths.push_back(table.length);
  }
  return set;
}

namespace {

// Page ids in the order in which `relaid` deals them out.
std::vector<PageId> dealt_pages(const TableSet& set, TableLayout layout, std::uint64_t seed) {
  const PageCount wanted = set.pages();
  std::vector<PageId> pages(
      static_cast<std::size_t>(layout == TableLayout::random ? set.pool_pages - 1 : wanted));
  std::int32_t next = 1;
  for (PageId& page : pages) page = PageId{next++};
  if (layout == TableLayout::random) {
    Prng prng(seed);
    for (std::size_t i = 0; i < static_cast<std::size_t>(wanted); ++i) {
      std::swap(pages[i], pages[i + prng.below(pages.size() - i)]);
    }
  }
  return pages;
}

}  // namespace

TableSet relaid(const TableSet& set, TableLayout layout, std::uint64_t seed) {
  if (layout == TableLayout::churned) return set;
  if (set.pages() > set.pool_pages - 1) {
    throw InvalidArgument("tables of " + std::to_string(set.pages()) +
                          " distinct pages do not fit a pool of " +
                          std::to_string(set.pool_pages - 1));
  }
  const std::vector<PageId> pages = dealt_pages(set, layout, seed);
  TableSet result = set;
  std::size_t next = 0;
  if (layout != TableLayout::stride) {
    for (auto& table : result.tables) {
      for (PageId& page : table) page = pages[next++];
    }
    return result;
  }
  std::size_t longest = 0;
  for (const auto& table : result.tables) longest = std::max(longest, table.size());
  for (std::size_t i = 0; i < longest; ++i) {
    for (auto& table : result.tables) {
      if (i < table.size()) table[i] = pages[next++];
    }
  }
  return result;
}

std::vector<SlotId> slots_of(const TableSet& set) {
  std::vector<SlotId> slots;
  slots.reserve(static_cast<std::size_t>(set.tokens()));
  for (std::size_t s = 0; s < set.tables.size(); ++s) {
    for (TokenCount t = 0; t < set.lengths[s]; ++t) {
      slots.push_back(slot_of(set.tables[s][static_cast<std::size_t>(t / set.page_size)],
                              set.page_size, t % set.page_size));
    }
  }
  return slots;
}

}  // namespace packstone::sim
