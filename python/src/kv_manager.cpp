// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

#include <packstone/kv_manager.hpp>

namespace packstone::python {
namespace {

KvManager::CreateOptions create_options(OwnerTag owner, TokenCount expected,
                                        std::span<const PageId> prefix) {
  return {.owner = owner, .expected_tokens = expected, .prefix = prefix};
}

nb::dict statistics(const KvManager& self) {
  const FreeSet& set = self.allocator().set();
  const KvCounters& counters = self.counters();
  nb::dict result;
  result["pages"] = set.pages();
  result["page_size"] = self.page_size();
  for (const PageState state :
       {PageState::free, PageState::reserved, PageState::live, PageState::retired}) {
    result[to_string(state)] = set.count(state);
  }
  result["held"] = self.allocator().held();
  result["pinned"] = set.pinned_pages();
  result["available"] = self.available_pages();
  result["sequences"] = self.sequences();
  result["sequences_created"] = counters.sequences_created;
  result["sequences_finished"] = counters.sequences_finished;
  result["forks"] = counters.forks;
  result["pages_allocated"] = counters.pages_allocated;
  result["pages_released"] = counters.pages_released;
  result["pages_moved"] = counters.pages_moved;
  result["copies_on_write"] = counters.copies_on_write;
  result["shortages"] = counters.shortages;
  return result;
}

Int64s slots_of(const KvManager& self, SeqId seq, TokenCount first, TokenCount count) {
  if (count < 0) count = self.length(seq) - first;
  if (first < 0 || count < 0 || count > self.capacity(seq) - first) {
    throw InvalidArgument("slots of " + std::to_string(count) + " tokens from " +
                          std::to_string(first) + ", capacity " +
                          std::to_string(self.capacity(seq)));
  }
  std::vector<SlotId> slots(static_cast<std::size_t>(count));
  for (TokenCount i = 0; i < count; ++i) {
    slots[static_cast<std::size_t>(i)] = self.slot(seq, first + i);
  }
  return to_array(std::move(slots));
}

void bind_life(nb::class_<KvManager>& c) {
  c.def(
       "create",
       [](KvManager& self, OwnerTag owner, TokenCount expected, std::optional<Ints> prefix) {
         std::vector<PageId> pages;
         if (prefix) pages = page_list(*prefix, "prefix");
         SeqId seq;
         require_ok(self.create(create_options(owner, expected, pages), seq), "create");
         return seq;
       },
       nb::kw_only(), nb::arg("owner") = 0, nb::arg("expected_tokens") = -1,
       nb::arg("prefix") = nb::none(),
       "A new sequence.\n\n"
       "owner: tag of its pages; 0: its place + 1. expected_tokens: length it will come to, or "
       "-1.\n"
       "prefix: int32 [n], full pages that it shares; its length starts at n * page_size.\n"
       "Raises OutOfSequences, PageError.")
      .def(
          "append",
          [](KvManager& self, SeqId seq, TokenCount tokens) {
            require_ok(self.append(seq, tokens), "append");
          },
          nb::arg("seq"), nb::arg("tokens"),
          "Grows by `tokens` tokens. Raises OutOfPages (nothing consumed).")
      .def(
          "extend",
          [](KvManager& self, const std::vector<std::pair<SeqId, TokenCount>>& batch) {
            std::vector<Growth> growths;
            for (const auto& [seq, length] : batch) growths.push_back({seq, length});
            std::vector<SlotId> slots;
            require_ok(self.extend(growths, &slots), "extend");
            return to_array(std::move(slots));
          },
          nb::arg("batch"),
          "Grows each (seq, length) to its length; int64 [sum of growths]: slots of the new "
          "tokens\n"
          "in batch order. All or nothing. Raises OutOfPages, InvalidArgument.")
      .def(
          "decode",
          [](KvManager& self, const std::vector<SeqId>& batch) {
            std::vector<SlotId> slots(batch.size());
            require_ok(self.decode(batch, slots), "decode");
            return to_array(std::move(slots));
          },
          nb::arg("batch"),
          "One token more for each; int64 [len(batch)]: its slot. All or nothing. Raises "
          "OutOfPages.")
      .def(
          "reserve",
          [](KvManager& self, SeqId seq, TokenCount tokens) {
            require_ok(self.reserve(seq, tokens), "reserve");
          },
          nb::arg("seq"), nb::arg("tokens"),
          "Room for `tokens` tokens past the length, which stays. Raises OutOfPages.")
      .def("commit", &KvManager::commit, nb::arg("seq"), nb::arg("tokens"),
           "Counts `tokens` tokens of the reserved room as written. Raises InvalidArgument.")
      .def("trim", &KvManager::trim, nb::arg("seq"),
           "Releases the pages past the last token; returns how many left the table.")
      .def("truncate", &KvManager::truncate, nb::arg("seq"), nb::arg("length"),
           "Shortens to `length` tokens and releases the pages past them.")
      .def(
          "fork",
          [](KvManager& self, SeqId parent, TokenCount tokens) {
            SeqId seq;
            require_ok(self.fork(parent, tokens, seq), "fork");
            return seq;
          },
          nb::arg("parent"), nb::arg("tokens"),
          "A new sequence that shares the first `tokens` tokens. Raises OutOfSequences.")
      .def("finish", &KvManager::finish, nb::arg("seq"), "Releases every page and ends the handle.")
      .def(
          "take_copies",
          [](KvManager& self) {
            std::vector<std::tuple<std::int32_t, std::int32_t, TokenCount>> copies;
            for (const PageCopy& copy : self.take_copies()) {
              copies.emplace_back(index_of(copy.from), index_of(copy.to), copy.tokens);
            }
            return copies;
          },
          "[(from_page, to_page, tokens)]: copies on write since the last call, to be made in "
          "this\n"
          "order before the next write to `to_page`.");
}

void bind_views(nb::class_<KvManager>& c) {
  c.def_prop_ro("page_size", &KvManager::page_size, "Slots a page.")
      .def_prop_ro("available_pages", &KvManager::available_pages, "Pages that can be had now.")
      .def_prop_ro("sequences", &KvManager::live_sequences, "Live sequences, ascending by place.")
      .def_prop_ro("digest", &KvManager::digest,
                   "64 bits that are equal on ranks that saw the same calls.")
      .def_prop_ro("statistics", &statistics, "Gauges (pages, sequences) and counters, by name.")
      .def("alive", &KvManager::alive, nb::arg("seq"))
      .def("length", &KvManager::length, nb::arg("seq"), "Tokens.")
      .def("capacity", &KvManager::capacity, nb::arg("seq"), "Tokens that its pages hold.")
      .def(
          "pages", [](const KvManager& self, SeqId seq) { return to_array(self.pages(seq)); },
          nb::arg("seq"), "int32 [pages of the sequence]: its page table, a copy.")
      .def("slots", &slots_of, nb::arg("seq"), nb::arg("first") = 0, nb::arg("count") = -1,
           "int64 [count]: slots of tokens first, first + 1, ...; count -1: up to the length.")
      .def(
          "check",
          [](const KvManager& self, std::optional<Ints> held) {
            std::vector<PageId> pages;
            if (held) pages = page_list(*held, "held_outside");
            const nb::gil_scoped_release unlocked;
            self.check(pages);
          },
          nb::arg("held_outside") = nb::none(),
          "O(pool): raises InvariantError. held_outside: int32 [n], pages with references that no\n"
          "table or pin has, as often as held.");
}

void bind_moves(nb::class_<KvManager>& c) {
  c.def("pin", &KvManager::pin, nb::arg("seq"), nb::arg("first"), nb::arg("count"),
        "Pages first .. first + count - 1 of the table stay where they are. Raises "
        "InvalidArgument.")
      .def("unpin", &KvManager::unpin, nb::arg("seq"), nb::arg("first"), nb::arg("count"))
      .def(
          "retain",
          [](KvManager& self, const Ints& pages) {
            self.allocator().retain(page_list(pages, "pages"));
          },
          nb::arg("pages"), "One more reference each, held outside the tables.")
      .def(
          "release",
          [](KvManager& self, const Ints& pages) {
            return self.allocator().release(page_list(pages, "pages"));
          },
          nb::arg("pages"), "Undoes retain; returns how many pages became free.")
      .def("reclaim", &KvManager::reclaim, nb::arg("reached"),
           "Frees what was retired at or before this epoch; returns how many pages.")
      .def("checkpoint", &KvManager::checkpoint,
           "Metadata of every sequence, no KV bytes. Raises InvalidArgument while pages are "
           "pinned,\n"
           "retired or held outside, or copies wait.")
      .def("restore", &KvManager::restore, nb::arg("checkpoint"));
}

}  // namespace

void bind_kv_manager(nb::module_& m) {
  nb::class_<SeqId>(m, "SeqId", "A sequence of a KvManager; stale after finish().")
      .def_ro("index", &SeqId::index)
      .def_ro("generation", &SeqId::generation)
      .def("__eq__",
           [](SeqId self, nb::object other) {
             return nb::isinstance<SeqId>(other) && nb::cast<SeqId>(other) == self;
           })
      .def("__hash__", [](SeqId self) { return std::hash<SeqId>{}(self); })
      .def("__repr__", [](SeqId self) {
        return "SeqId(" + std::to_string(self.index) + ", " + std::to_string(self.generation) + ")";
      });
  nb::class_<KvManager::Checkpoint>(m, "Checkpoint", "See KvManager.checkpoint.");

  nb::class_<KvManager> c(
      m, "KvManager",
      "Sequences over a paged pool: tables, lengths, forks, pins and moves.\n\n"
      "Every call is all or nothing: a shortage raises OutOfPages or OutOfSequences, a mistake\n"
      "InvalidArgument, SequenceError or PageError, and nothing has changed. Not thread-safe.");
  c.def(
      "__init__",
      [](KvManager* self, PageCount pages, std::int64_t page_size, const std::string& policy,
         std::optional<std::int64_t> sequences_max) {
        KvManagerOptions options{.pages = pages, .page_size = page_size, .policy = policy};
        if (sequences_max) options.sequences_max = *sequences_max;
        new (self) KvManager(options);
      },
      nb::arg("pages"), nb::kw_only(), nb::arg("page_size") = 1, nb::arg("policy") = "run",
      nb::arg("sequences_max") = nb::none(),
      "pages: of the pool, page 0 included. page_size: tokens a page.\n"
      "policy: fifo, lifo, sorted, lowest or run. Raises InvalidArgument.");
  bind_life(c);
  bind_views(c);
  bind_moves(c);
  bind_planning(m, c);
}

}  // namespace packstone::python
