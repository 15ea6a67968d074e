// SPDX-License-Identifier: Apache-2.0
// Plans of moves, draft trees and the prefix cache.
#include "bindings.hpp"

#include <packstone/move_plan.hpp>
#include <packstone/prefix_cache.hpp>
#include <packstone/speculation.hpp>

namespace packstone::python {
namespace {

template <typename T>
using Pairs = nb::ndarray<nb::numpy, T, nb::shape<-1, 2>>;

/// [(from, to)] as an array [n, 2].
template <typename T, typename Moves, typename Id>
Pairs<T> pairs(const Moves& moves, Id id) {
  auto flat = std::make_unique<std::vector<T>>();
  for (const auto& move : moves) {
    flat->push_back(id(move.from));
    flat->push_back(id(move.to));
  }
  T* data = flat->data();
  nb::capsule owner(flat.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Pairs<T>(data, {std::size(moves), 2}, owner);
}

Pairs<std::int32_t> page_pairs(const std::vector<PageMove>& moves) {
  return pairs<std::int32_t>(moves, [](PageId page) { return index_of(page); });
}

PlanObjective objective_of(const std::string& name) {
  for (const PlanObjective objective :
       {PlanObjective::frontier, PlanObjective::straighten, PlanObjective::granules}) {
    if (name == to_string(objective)) return objective;
  }
  throw InvalidArgument("objective = '" + name + "'; frontier, straighten or granules");
}

SpeculationMode mode_of(const std::string& name) {
  if (name == "rollback") return SpeculationMode::rollback;
  if (name == "reserve_tail") return SpeculationMode::reserve_tail;
  if (name == "tree_front") return SpeculationMode::tree_front;
  throw InvalidArgument("mode = '" + name + "'; rollback, reserve_tail or tree_front");
}

MovePlan plan(const KvManager& self, const std::string& objective, PageCount moves_max,
              PageCount keep_free, PageCount run_target, Bytes granule_bytes,
              Bytes granule_page_bytes, std::optional<Ints> held) {
  std::vector<PageId> held_pages;
  if (held) held_pages = page_list(*held, "held");
  PlanOptions options;
  options.objective = objective_of(objective);
  options.moves_max = moves_max;
  options.keep_free = keep_free;
  options.run_target = run_target;
  options.granule_bytes = granule_bytes;
  options.granule_page_bytes = granule_page_bytes;
  options.held = held_pages;
  const PoolSnapshot snapshot = self.snapshot();
  const nb::gil_scoped_release unlocked;
  return plan_moves(snapshot, options);
}

void bind_plan(nb::module_& m, nb::class_<KvManager>& manager) {
  nb::class_<MovePlan>(m, "MovePlan", "Page moves, and the table entries that change with them.")
      .def_prop_ro(
          "moves", [](const MovePlan& self) { return page_pairs(self.moves); }, nb::rv_policy::move,
          "int32 [n, 2]: (from, to) pages, ascending by source; copy every buffer of every layer.")
      .def_prop_ro(
          "patches",
          [](const MovePlan& self) {
            std::vector<std::tuple<SeqId, std::int64_t, std::int32_t, std::int32_t>> out;
            for (const TablePatch& patch : self.patches) {
              out.emplace_back(patch.seq, patch.index, index_of(patch.move.from),
                               index_of(patch.move.to));
            }
            return out;
          },
          "[(seq, index in its table, from page, to page)].")
      .def_prop_ro(
          "reason", [](const MovePlan& self) { return to_string(self.reason); },
          "'planned', or why there are no moves.")
      .def_prop_ro("runs_before", [](const MovePlan& self) { return self.forecast.runs_before; })
      .def_prop_ro("runs_after", [](const MovePlan& self) { return self.forecast.runs_after; })
      .def_prop_ro("frontier_after",
                   [](const MovePlan& self) { return self.forecast.frontier_after; })
      .def_ro("lower_bound", &MovePlan::lower_bound)
      .def_ro("fragmentation_permille", &MovePlan::fragmentation_permille);
  manager
      .def("plan_moves", &plan, nb::kw_only(), nb::arg("objective") = "straighten",
           nb::arg("moves_max") = 256, nb::arg("keep_free") = 0, nb::arg("run_target") = 64,
           nb::arg("granule_bytes") = Bytes{2} << 20U, nb::arg("granule_page_bytes") = 0,
           nb::arg("held") = nb::none(),
           "A plan for the manager as it is; changes nothing. The GIL is released.\n\n"
           "objective: straighten (fewer, longer runs), frontier (low addresses) or granules\n"
           "(whole regions emptied). held: int32 [n], pages neither moved nor moved to.\n"
           "Raises InvalidArgument.")
      .def(
          "apply",
          [](KvManager& self, const MovePlan& plan, Epoch epoch) {
            self.apply(plan.moves, plan.patches, epoch);
          },
          nb::arg("plan"), nb::arg("epoch"),
          "Rewrites the tables; sources are retired until reclaim(epoch). Raises PageError and\n"
          "changes nothing when the plan has grown stale.");
}

void bind_draft(nb::module_& m, nb::class_<KvManager>& manager) {
  nb::class_<DraftTree>(m, "DraftTree", "The shape of a tree of drafted tokens, at most 256.")
      .def(
          "__init__",
          [](DraftTree* self, const std::vector<std::int32_t>& parents) {
            new (self) DraftTree(parents);
          },
          nb::arg("parents"),
          "parents[i]: the node before node i, -1 for the root. Raises TreeError.")
      .def_static("chain", &DraftTree::chain, nb::arg("nodes"))
      .def_prop_ro("nodes", &DraftTree::nodes)
      .def_prop_ro("parents",
                   [](const DraftTree& self) {
                     return std::vector<std::int32_t>(self.parents().begin(), self.parents().end());
                   })
      .def(
          "positions",
          [](const DraftTree& self, TokenCount prefix) {
            std::vector<TokenCount> out(static_cast<std::size_t>(self.nodes()));
            self.positions(prefix, out);
            return to_array(std::move(out));
          },
          nb::arg("prefix"), "int64 [nodes]: prefix + depth.")
      .def(
          "mask",
          [](const DraftTree& self) {
            const auto words = static_cast<std::size_t>(self.mask_words());
            const auto nodes = static_cast<std::size_t>(self.nodes());
            auto rows = std::make_unique<std::vector<std::uint64_t>>(nodes * words);
            self.ancestor_mask(*rows, self.mask_words());
            std::uint64_t* data = rows->data();
            nb::capsule owner(rows.release(), [](void* p) noexcept {
              delete static_cast<std::vector<std::uint64_t>*>(p);
            });
            return nb::ndarray<nb::numpy, std::uint64_t, nb::ndim<2>>(data, {nodes, words}, owner);
          },
          "uint64 [nodes, words]: bit j % 64 of word j // 64 of row i: j is i or above it.")
      .def("path_to", &DraftTree::path_to, nb::arg("node"));
  manager
      .def(
          "draft",
          [](KvManager& self, const std::vector<std::pair<SeqId, std::int64_t>>& batch) {
            std::vector<DraftRequest> requests;
            for (const auto& [seq, nodes] : batch) requests.push_back({seq, nodes});
            require_ok(Speculation(self, {}).reserve(requests), "draft");
          },
          nb::arg("batch"), "Room for [(seq, nodes)] drafts, of all or none. Raises OutOfPages.")
      .def(
          "draft_slot",
          [](KvManager& self, SeqId seq, std::int64_t node) {
            return Speculation(self, {}).slot(seq, node);
          },
          nb::arg("seq"), nb::arg("node"), "The slot that draft node `node` is written to.")
      .def(
          "accept",
          [](KvManager& self, SeqId seq, const DraftTree& tree,
             const std::vector<std::int32_t>& path, const std::string& mode) {
            Speculation speculation(self, {.mode = mode_of(mode)});
            const DraftCommit commit = speculation.commit(seq, tree, path);
            return nb::make_tuple(
                pairs<std::int64_t>(commit.moves, [](SlotId slot) { return slot; }),
                to_array(std::span<const PageId>(commit.released)));
          },
          nb::arg("seq"), nb::arg("tree"), nb::arg("path"), nb::kw_only(),
          nb::arg("mode") = "tree_front",
          "Commits a path of nodes from the root on; (moves, released).\n\n"
          "moves: int64 [n, 2], (from, to) slots, to be copied in this order. released: int32,\n"
          "pages that left the table. mode: rollback, reserve_tail or tree_front. Raises "
          "TreeError.");
}

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PrefixKey key_of(const Ids& ids, std::uint64_t adapter, std::uint64_t salt) {
  return {.ids = {ids.data(), ids.shape(0)}, .adapter = adapter, .salt = salt};
}

void bind_prefix(nb::module_& m) {
  nb::class_<PrefixCache>(m, "PrefixCache",
                          "Which pages hold which prefixes; holds a reference of each.\n\n"
                          "ids are int64 [n]: tokens, or blocks of id_tokens tokens. Only full "
                          "pages are kept.")
      .def(
          "__init__",
          [](PrefixCache* self, KvManager& manager, std::int64_t id_tokens, std::uint64_t seed) {
            new (self) PrefixCache(
                manager.allocator(),
                {.page_size = manager.page_size(), .id_tokens = id_tokens, .seed = seed});
          },
          nb::arg("manager"), nb::kw_only(), nb::arg("id_tokens") = 1, nb::arg("seed") = 0,
          nb::keep_alive<1, 2>())
      .def(
          "match",
          [](PrefixCache& self, const Ids& ids, TokenCount tokens_left, std::uint64_t adapter,
             std::uint64_t salt) {
            const PrefixMatch match = self.match(key_of(ids, adapter, salt), tokens_left);
            return nb::make_tuple(to_array(std::span<const PageId>(match.pages)),
                                  static_cast<std::uint64_t>(match.lock));
          },
          nb::arg("ids"), nb::kw_only(), nb::arg("tokens_left") = 1, nb::arg("adapter") = 0,
          nb::arg("salt") = 0,
          "(pages int32 [n], lock): the longest cached prefix that leaves tokens_left tokens to\n"
          "compute. Give the pages to KvManager.create, and unlock when the sequence is over.")
      .def(
          "insert",
          [](PrefixCache& self, const Ids& ids, const Ints& pages, std::int32_t priority,
             std::uint64_t adapter, std::uint64_t salt) {
            const PrefixInsertion done =
                self.insert(key_of(ids, adapter, salt), page_list(pages, "pages"), priority);
            return nb::make_tuple(done.stored, static_cast<std::uint64_t>(done.lock));
          },
          nb::arg("ids"), nb::arg("pages"), nb::kw_only(), nb::arg("priority") = 0,
          nb::arg("adapter") = 0, nb::arg("salt") = 0,
          "(pages stored, lock). pages: the table of the sequence. Raises InvalidArgument, "
          "PageError.")
      .def(
          "unlock", [](PrefixCache& self, std::uint64_t lock) { self.unlock(PrefixLock{lock}); },
          nb::arg("lock"))
      .def(
          "evict",
          [](PrefixCache& self, PageCount pages) {
            const Eviction eviction = self.evict({.pages = pages});
            return to_array(std::span<const PageId>(eviction.freed));
          },
          nb::arg("pages"), "int32: up to so many pages that became free.")
      .def("clear", &PrefixCache::clear, "Drops every page that is not locked; how many.")
      .def(
          "remap", [](PrefixCache& self, const MovePlan& plan) { self.remap(plan.moves); },
          nb::arg("plan"), "Tells the cache of a plan that was applied.")
      .def_prop_ro(
          "held",
          [](const PrefixCache& self) {
            const std::vector<PageId> held = self.held();
            return to_array(std::span<const PageId>(held));
          },
          nb::rv_policy::move, "int32: every page of the cache; what KvManager.check takes.")
      .def_prop_ro("pages", &PrefixCache::pages)
      .def_prop_ro("statistics",
                   [](const PrefixCache& self) {
                     const PrefixCounters& counters = self.counters();
                     nb::dict out;
                     out["lookups"] = counters.lookups;
                     out["lookups_hit"] = counters.lookups_hit;
                     out["tokens_asked"] = counters.tokens_asked;
                     out["tokens_hit"] = counters.tokens_hit;
                     out["pages_stored"] = counters.pages_stored;
                     out["pages_evicted"] = counters.pages_evicted;
                     return out;
                   })
      .def("check", &PrefixCache::check, "O(cache): raises InvariantError.");
}

}  // namespace

void bind_planning(nb::module_& m, nb::class_<KvManager>& manager) {
  bind_plan(m, manager);
  bind_draft(m, manager);
  bind_prefix(m);
}

}  // namespace packstone::python
