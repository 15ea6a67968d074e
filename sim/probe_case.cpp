// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>
#include <packstone/move_plan.hpp>

#include <sim/probe_case.hpp>

#include <algorithm>
#include <charconv>

namespace packstone::sim {

namespace {

constexpr Bytes kRegionBytes = Bytes{2} << 20;

[[noreturn]] void bad_spec(const std::string& text, const std::string& what) {
  throw InvalidArgument("--probe " + text + ": " + what);
}

std::int32_t number_of(const std::string& part, const std::string& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc{} || end != part.data() + part.size() || value < 1)
    bad_spec(text, "'" + part + "' is not a number from 1 up");
  return value;
}

/// Retires the oldest until `pages` are available; false when none is left and they are not.
bool make_room(KvManager& kv, std::vector<SeqId>& live, std::size_t& gone, PageCount pages) {
  while (kv.available_pages() < pages) {
    if (gone == live.size()) return false;
    kv.finish(live[gone++]);
  }
  return true;
}

PlanOptions straightening(const KvManager& kv, PageCount budget,
                          std::span<const ReadWeight> weights) {
  return {.objective = PlanObjective::straighten,
          .moves_max = budget,
          .keep_free = std::min<PageCount>(kv.sequences() * 2, kv.allocator().set().pages() / 100),
          .run_target = std::max<PageCount>(2, 256 / kv.page_size()),
          .weights = weights};
}

TableSet tables_of(const KvManager& kv, std::span<const SeqId> read) {
  TableSet set{.page_size = kv.page_size(),
               .pool_pages = kv.allocator().set().pages(),
               .tables = {},
               .lengths = {}};
  for (const SeqId seq : read) {
    const std::span<const PageId> pages = kv.pages(seq);
    const auto count = static_cast<std::size_t>(pages_for(kv.length(seq), kv.page_size()));
    set.tables.emplace_back(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count));
    set.lengths.push_back(kv.length(seq));
  }
  return set;
}

std::int64_t empty_regions(const KvManager& kv, Bytes page_bytes) {
  // Whole regions between the bytes of one page in use and of the next.
  const FreeSet& set = kv.allocator().set();
  std::int64_t empty = 0;
  std::int32_t begin = 1;
  for (std::int32_t page = 1; page <= set.pages(); ++page) {
    if (page < set.pages() && set.state(PageId{page}) == PageState::free) continue;
    const Bytes first = (begin * page_bytes + kRegionBytes - 1) / kRegionBytes;
    empty += std::max<Bytes>(page * page_bytes / kRegionBytes - first, 0);
    begin = page + 1;
  }
  return empty;
}

/// Above every epoch of the replay's own defrag.
constexpr Epoch kMadeHere = Epoch{1} << 40;

void carry_out(KvManager& kv, PrefixCache* cache, const MovePlan& plan, Epoch epoch) {
  kv.apply(plan.moves, plan.patches, epoch);
  if (cache != nullptr) cache->remap(plan.moves);
  kv.reclaim(epoch);
}

void plan_defrag(KvManager& kv, PrefixCache* cache, std::span<const SeqId> read,
                 const ProbeCaseOptions& options, ProbeCase& probe) {
  const auto note = [&](const MovePlan& plan) {
    if (options.progress == nullptr) return;
    options.progress->plans.fetch_add(1, std::memory_order_relaxed);
    options.progress->moves.fetch_add(std::ssize(plan.moves), std::memory_order_relaxed);
  };
  // Only what is read counts as gain, so only that is straightened.
  std::vector<ReadWeight> weights;
  for (const SeqId seq : kv.live_sequences()) {
    const bool is_read = std::ranges::find(read, seq) != read.end();
    weights.push_back({seq, is_read ? kv.length(seq) : 0});
  }
  for (const PageCount budget : {64, 256, 1024, 4096}) {
    MovePlan plan = plan_moves(kv.snapshot(), straightening(kv, budget, weights));
    if (!plan.moves.empty()) probe.budgets.push_back({budget, std::move(plan.moves)});
  }
  // The tables are kept after 1/8, 1/4, 1/2 .. of as many moves as there are pages to read.
  const PageCount wanted = probe.churned.pages();
  PageCount next = std::max<PageCount>(wanted >> (options.stages - 1), 1);
  PageCount moved = 0;
  DefragStage stage;
  Epoch epoch = kMadeHere / 2;
  const auto close_stage = [&] {
    if (stage.plans.empty()) return;
    stage.tables = tables_of(kv, read);
    probe.stages.push_back(std::move(stage));
    stage = {};
    while (next <= moved) next *= 2;
  };
  for (int plans = 0; plans < options.plans_max; ++plans) {
    MovePlan plan = plan_moves(kv.snapshot(), straightening(kv, options.budget, weights));
    if (plan.moves.empty()) {
      probe.straight = true;
      break;
    }
    carry_out(kv, cache, plan, ++epoch);
    note(plan);
    moved += std::ssize(plan.moves);
    stage.plans.push_back(std::move(plan.moves));
    if (moved >= next && std::ssize(probe.stages) + 1 < options.stages) close_stage();
  }
  close_stage();
}

void plan_reclaim(KvManager& kv, PrefixCache* cache, const std::vector<SeqId>& live,
                  ProbeCase& probe) {
  // Every other one leaves: what a pool looks like when its load has fallen.
  for (std::size_t i = 0; i < live.size(); i += 2) kv.finish(live[i]);
  const Bytes page_bytes = kv.page_size() * probe.spec.model.row_bytes();
  ReclaimPlan reclaim{
      .plans = {}, .regions_before = empty_regions(kv, page_bytes), .regions_after = 0};
  PlanOptions options{.objective = PlanObjective::granules,
                      .moves_max = std::max<PageCount>(64, kv.allocator().set().pages() / 8),
                      .granule_bytes = kRegionBytes,
                      .granule_page_bytes = page_bytes};
  Epoch epoch = kMadeHere;
  for (int i = 0; i < 32; ++i) {
    MovePlan plan = plan_moves(kv.snapshot(), options);
    if (plan.moves.empty()) break;
    carry_out(kv, cache, plan, ++epoch);
    reclaim.plans.push_back(std::move(plan.moves));
  }
  reclaim.regions_after = empty_regions(kv, page_bytes);
  probe.reclaim = std::move(reclaim);
}

}  // namespace

ProbeSpec probe_spec_from(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) bad_spec(text, "not MODEL:B,H,q,L or MODEL:live,H,q");
  ProbeSpec spec{.model = kv_model(text.substr(0, colon)), .shape = {}};
  std::vector<std::string> parts(1);
  for (const char c : text.substr(colon + 1)) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const bool live = parts[0] == "live";
  if (parts.size() != (live ? 3U : 4U)) bad_spec(text, "not MODEL:B,H,q,L or MODEL:live,H,q");
  ProbeShape& shape = spec.shape;
  shape.batch = live ? 0 : number_of(parts[0], text);
  shape.heads = number_of(parts[1], text);
  shape.q_len = number_of(parts[2], text);
  if (!live) shape.length = number_of(parts[3], text);
  if (shape.batch > 1024 || shape.heads > 128 || shape.q_len > 256 || shape.length > (1 << 24))
    bad_spec(text, "past 1024 sequences, 128 heads, 256 query tokens or 2^24 tokens");
  if (shape.heads % spec.model.kv_heads != 0)
    bad_spec(text, std::to_string(spec.model.kv_heads) + " kv heads do not divide the heads");
  return spec;
}

std::optional<std::vector<SeqId>> place_sequences(KvManager& kv, std::vector<SeqId>& live,
                                                  const ProbeShape& shape,
                                                  std::int64_t token_budget) {
  std::size_t gone = 0;
  const auto done = [&](std::optional<std::vector<SeqId>> result) {
    live.erase(live.begin(), live.begin() + static_cast<std::ptrdiff_t>(gone));
    return result;
  };
  const TokenCount length = TokenCount{shape.length} + shape.q_len;
  const TokenCount prompt = length - length / 8;
  std::vector<SeqId> read;
  for (std::int32_t b = 0; b < shape.batch; ++b) {
    if (!make_room(kv, live, gone, pages_for(prompt, kv.page_size()))) return done(std::nullopt);
    SeqId seq;
    if (kv.create({.expected_tokens = prompt}, seq) != Status::ok) return done(std::nullopt);
    for (TokenCount at = 0; at < prompt; at += token_budget) {
      if (kv.append(seq, std::min(token_budget, prompt - at)) != Status::ok)
        return done(std::nullopt);
    }
    read.push_back(seq);
  }
  std::vector<Growth> growth;
  growth.reserve(read.size());
  for (const SeqId seq : read) growth.push_back({seq, prompt});
  for (TokenCount at = prompt; at < length; ++at) {
    for (Growth& each : growth) each.length = at + 1;
    if (!make_room(kv, live, gone, kv.pages_needed(growth)) || kv.decode(read) != Status::ok)
      return done(std::nullopt);
  }
  return done(std::move(read));
}

std::optional<ProbeCase> make_case(KvManager& kv, PrefixCache* cache, std::vector<SeqId> live,
                                   const ProbeSpec& spec, const ProbeCaseOptions& options) {
  ProbeCase probe{
      .spec = spec, .churned = {}, .stages = {}, .budgets = {}, .reclaim = std::nullopt};
  const std::size_t before = live.size();
  std::vector<SeqId> read;
  const PageCount room = kv.allocator().set().pages() / 20;
  const auto leave_room = [&] {
    std::size_t gone = 0;
    (void)make_room(kv, live, gone, room);
    live.erase(live.begin(), live.begin() + static_cast<std::ptrdiff_t>(gone));
  };
  if (spec.shape.live()) {
    leave_room();
    std::ranges::copy_if(live, std::back_inserter(read),
                         [&](SeqId seq) { return kv.length(seq) > spec.shape.q_len; });
    if (read.empty()) return std::nullopt;
  } else {
    auto placed = place_sequences(kv, live, spec.shape, options.token_budget);
    if (!placed) return std::nullopt;
    read = std::move(*placed);
    leave_room();
  }
  probe.retired = static_cast<PageCount>(before - live.size());
  probe.churned = tables_of(kv, read);
  (void)kv.take_copies();
  kv.reclaim(kMadeHere / 2);
  if (options.defrag) plan_defrag(kv, cache, read, options, probe);
  if (options.reclaim) plan_reclaim(kv, cache, live, probe);
  return probe;
}

bool share_a_case(const ProbeSpec& a, const ProbeSpec& b) {
  if (a.shape.live() || b.shape.live())
    return a.shape.live() && b.shape.live() && a.model.row_bytes() == b.model.row_bytes();
  return a.shape.batch == b.shape.batch &&
         TokenCount{a.shape.length} + a.shape.q_len == TokenCount{b.shape.length} + b.shape.q_len;
}

bool serves(const ProbeCase& made, const ProbeSpec& spec) {
  const TokenCount least = spec.shape.live() ? spec.shape.q_len : 0;
  return share_a_case(made.spec, spec) && (!spec.shape.live() || made.spec.shape.q_len <= least) &&
         std::ranges::all_of(made.churned.lengths, [&](TokenCount each) { return each > least; });
}

std::int64_t checkpoint_step(const RunResult& result) {
  std::int64_t step = 0;
  for (const Sample& sample : result.samples) {
    if (sample.steady) step = sample.step;
  }
  return step;
}

}  // namespace packstone::sim
