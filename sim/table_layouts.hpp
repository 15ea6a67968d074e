// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The same sequences under other placements: same lengths, same page size, same pool, and only the
/// page ids differ. What a churned pool costs is the ratio between kernels run over these.

#include <packstone/kv_manager.hpp>
#include <packstone/units.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace packstone::sim {

/// Page tables of the sequences that a step reads together.
struct TableSet {
  std::int64_t page_size{1};
  PageCount pool_pages{1};                  ///< of the pool the ids point into, page 0 included
  std::vector<std::vector<PageId>> tables;  ///< [sequences][pages]
  std::vector<TokenCount> lengths;          ///< [sequences], tokens
  [[nodiscard]] TokenCount tokens() const;
  [[nodiscard]] PageCount pages() const;
};

enum class TableLayout : std::uint8_t {
  identity,  ///< each sequence in one run, one behind the other: what a fresh pool could be at best
  churned,   ///< as the manager placed them
  stride,    ///< page i of every sequence, then page i + 1: what a fresh pool is after lock-step
             ///< decode
  random,    ///< pages drawn without repeat from the whole pool
};

[[nodiscard]] std::string_view to_string(TableLayout layout);

/// Live tables of a snapshot, empty ones left out.
[[nodiscard]] TableSet tables_of(const PoolSnapshot& snapshot);

/// The set under another layout. `churned` returns it as it is. Deterministic in the seed.
/// Throws InvalidArgument when the pool has fewer usable pages than the tables name.
[[nodiscard]] TableSet relaid(const TableSet& set, TableLayout layout, std::uint64_t seed);

/// Slots of every token, sequence after sequence: [tokens()].
[[nodiscard]] std::vector<SlotId> slots_of(const TableSet& set);

}  // namespace packstone::sim
