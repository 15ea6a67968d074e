// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/scheduler.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

namespace packstone::sim {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

}  // namespace

const char* to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::finished:
      return "finished";
    case Outcome::aborted:
      return "aborted";
    case Outcome::refused:
      return "refused";
  }
  return "unknown";
}

Scheduler::Scheduler(const RequestList& list, const SchedulerOptions& options, KvManager& kv,
                     std::function<void(const Retired&)> on_retire)
    : list_(list), options_(options), kv_(kv), on_retire_(std::move(on_retire)) {
  if (options.concurrency < 1) {
    throw InvalidArgument("concurrency = " + std::to_string(options.concurrency) + " is below 1");
  }
  if (options.token_budget < 1) {
    throw InvalidArgument("token budget = " + std::to_string(options.token_budget) + " is below 1");
  }
  if (!(options.watermark >= 0.0 && options.watermark < 1.0)) {
    throw InvalidArgument("watermark = " + std::to_string(options.watermark) + " is not in [0, 1)");
  }
  watermark_pages_ = static_cast<PageCount>(static_cast<double>(kv.allocator().set().pages() - 1) *
                                            options.watermark);
  const std::size_t count = list.requests.size();
  next_turn_.assign(count, -1);
  later_turn_.assign(count, false);
  std::unordered_map<std::int64_t, std::int64_t> last_of_session;  // looked up, never iterated
  for (std::size_t i = 0; i < count; ++i) {
    const Request& request = list.requests[i];
    if (request.session_id < 0) continue;
    const auto index = static_cast<std::int64_t>(i);
    const auto [last, first_turn] = last_of_session.try_emplace(request.session_id, index);
    if (first_turn) continue;
    if (request.closed_loop()) {
      next_turn_[static_cast<std::size_t>(last->second)] = index;
      later_turn_[i] = true;
    }
    last->second = index;
  }
}

// ---- the queue ----

TokenCount Scheduler::target_of(const Request& request) const {
  if (request.abort_after_tokens < 0) return request.output_tokens;
  return std::min<TokenCount>(request.output_tokens, request.abort_after_tokens);
}

std::optional<Scheduler::Waiting> Scheduler::head() {
  if (!preempted_.empty()) return preempted_.back();
  while (cursor_ < list_.requests.size() && later_turn_[cursor_]) ++cursor_;
  const bool backlog = options_.arrivals == Arrivals::backlog;
  const std::int64_t fresh =
      cursor_ < list_.requests.size() ? list_.requests[cursor_].arrival_ns : kNever;
  if (!released_.empty()) {
    const auto [time, request] = released_.top();
    // A session under way goes on before a new one begins, when time does not decide.
    if (backlog || (time <= now_ && time <= fresh)) {
      return Waiting{.request = request, .since_ns = time};
    }
  }
  if (fresh == kNever || (!backlog && fresh > now_)) return std::nullopt;
  return Waiting{.request = static_cast<std::int64_t>(cursor_), .since_ns = backlog ? 0 : fresh};
}

void Scheduler::pop_head(const Waiting& waiting) {
  if (!preempted_.empty()) {
    preempted_.pop_back();
  } else if (later_turn_[static_cast<std::size_t>(waiting.request)]) {
    released_.pop();
  } else {
    cursor_ += 1;
  }
}

std::int64_t Scheduler::next_event_ns() const {
  std::size_t next = cursor_;
  while (next < list_.requests.size() && later_turn_[next]) ++next;
  const std::int64_t fresh =
      next < list_.requests.size() ? list_.requests[next].arrival_ns : kNever;
  return released_.empty() ? fresh : std::min(fresh, released_.top().first);
}

void Scheduler::release_next_turn(std::int64_t request) {
  const std::int64_t next = next_turn_[static_cast<std::size_t>(request)];
  if (next < 0) return;
  const bool backlog = options_.arrivals == Arrivals::backlog;
  const Request& turn = list_.requests[static_cast<std::size_t>(next)];
  const std::int64_t think = std::min(turn.think_ns, kNever - now_);
  released_.emplace(backlog ? now_ : std::max(now_ + think, turn.arrival_ns), next);
}

// ---- the end of a request ----

std::int32_t Scheduler::new_progress() {
  if (free_progress_.empty()) {
    free_progress_.push_back(static_cast<std::int32_t>(progress_.size()));
    progress_.emplace_back();
  }
  const std::int32_t index = free_progress_.back();
  free_progress_.pop_back();
  progress_[static_cast<std::size_t>(index)] = {};
  return index;
}

void Scheduler::retire(const Active& active, Outcome outcome) {
  const Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  (outcome == Outcome::finished ? counters_.finished : counters_.aborted) += 1;
  counters_.tokens_released += active.length;
  if (on_retire_) {
    on_retire_({.request = active.request,
                .outcome = outcome,
                .arrival_ns = progress.arrival_ns,
                .admitted_ns = progress.admitted_ns,
                .first_token_ns = progress.first_token_ns,
                .finished_ns = now_,
                .generated = active.generated,
                .cached = progress.cached,
                .preemptions = progress.preemptions,
                .prefilled = std::min(active.prefill_target, active.length),
                .seq = active.seq});
  }
  kv_.finish(active.seq);
  free_progress_.push_back(active.progress);
  release_next_turn(active.request);
  batch_changed_ = true;
}

void Scheduler::retire_waiting(const Waiting& waiting, Outcome outcome) {
  Progress progress{.arrival_ns = waiting.since_ns};
  if (waiting.progress >= 0) {
    progress = progress_[static_cast<std::size_t>(waiting.progress)];
    free_progress_.push_back(waiting.progress);
  }
  (outcome == Outcome::refused ? counters_.refused : counters_.aborted) += 1;
  if (on_retire_) {
    on_retire_({.request = waiting.request,
                .outcome = outcome,
                .arrival_ns = progress.arrival_ns,
                .admitted_ns = progress.admitted_ns,
                .first_token_ns = progress.first_token_ns,
                .finished_ns = now_,
                .generated = progress.generated,
                .cached = progress.cached,
                .preemptions = progress.preemptions});
  }
  release_next_turn(waiting.request);
}

void Scheduler::abort_by_time() {
  while (!aborts_.empty() && aborts_.top().first <= now_) {
    const std::int64_t request = aborts_.top().second;
    aborts_.pop();
    const auto active = std::ranges::find(running_, request, &Active::request);
    if (active == running_.end()) continue;  // it has ended, or waits and is found at the head
    retire(*active, Outcome::aborted);
    running_.erase(active);
  }
}

void Scheduler::preempt_newest() {
  PACKSTONE_ASSERT(!running_.empty());
  const Active active = running_.back();
  running_.pop_back();
  Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  progress.generated = active.generated;
  progress.preemptions += 1;
  counters_.preemptions += 1;
  counters_.tokens_released += active.length;
  counters_.tokens_recomputed += active.length;
  kv_.finish(active.seq);
  preempted_.push_back(
      {.request = active.request, .progress = active.progress, .since_ns = progress.arrival_ns});
  batch_changed_ = true;
  preempted_in_step_ = true;
}

void Scheduler::finish_ended() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Active& active = running_[i];
    if (active.generated == 1) {
      std::int64_t& first = progress_[static_cast<std::size_t>(active.progress)].first_token_ns;
      if (first < 0) first = now_;
    }
    if (!active.prefilling() && active.generated >= active.target) {
      const Request& request = list_.requests[static_cast<std::size_t>(active.request)];
      const bool left =
          request.abort_after_tokens >= 0 && request.abort_after_tokens < request.output_tokens;
      retire(active, left ? Outcome::aborted : Outcome::finished);
      continue;
    }
    if (kept != i) running_[kept] = active;
    ++kept;
  }
  running_.resize(kept);
}

// ---- a step ----

void Scheduler::rebuild_decoding() {
  decoding_.clear();
  for (const Active& active : running_) {
    if (!active.prefilling()) decoding_.push_back(active.seq);
  }
  batch_changed_ = false;
}

void Scheduler::decode_all() {
  if (batch_changed_) rebuild_decoding();
  while (!decoding_.empty() && kv_.decode(decoding_) != Status::ok) {
    counters_.alloc_fail_capacity += 1;
    preempt_newest();
    rebuild_decoding();
  }
  decoding_context_ = 0;
  if (decoding_.empty()) return;
  for (Active& active : running_) {
    if (active.prefilling()) continue;
    active.length += 1;
    active.generated += 1;
    decoding_context_ += active.length;
  }
  const auto tokens = static_cast<TokenCount>(decoding_.size());
  counters_.tokens_written += tokens;
  budget_ -= tokens;
}

void Scheduler::continue_prefills() {
  for (;;) {
    growths_.clear();
    std::int64_t left = budget_;
    for (const Active& active : running_) {
      if (!active.prefilling() || left <= 0) continue;
      const TokenCount chunk = std::min(active.prefill_target - active.length, left);
      growths_.push_back({.seq = active.seq, .length = active.length + chunk});
      left -= chunk;
    }
    if (growths_.empty()) return;
    if (kv_.extend(growths_) == Status::ok) break;
    counters_.alloc_fail_capacity += 1;
    preempt_newest();
  }
  std::size_t next = 0;
  for (Active& active : running_) {
    if (next == growths_.size()) break;
    if (active.seq != growths_[next].seq) continue;
    const TokenCount chunk = growths_[next].length - active.length;
    active.length += chunk;
    budget_ -= chunk;
    prefilled_in_step_ += chunk;
    batch_changed_ = batch_changed_ || !active.prefilling();
    ++next;
  }
}

PageCount Scheduler::promised_pages() const {
  PageCount pages = 0;
  for (const Active& active : running_) {
    if (!active.prefilling()) continue;
    pages += pages_for(active.prefill_target, kv_.page_size()) -
             pages_for(active.length, kv_.page_size());
  }
  return pages;
}

bool Scheduler::admit_head(const Waiting& waiting, PageCount& promised) {
  const Request& request = list_.requests[static_cast<std::size_t>(waiting.request)];
  const TokenCount generated =
      waiting.progress >= 0 ? progress_[static_cast<std::size_t>(waiting.progress)].generated : 0;
  const TokenCount prefill = request.prompt_tokens + generated;
  const PageCount pages = pages_for(prefill, kv_.page_size());
  const PageCount spare = running_.empty() ? 0 : watermark_pages_;
  if (pages + promised + spare > kv_.available_pages()) return false;

  Active active{.request = waiting.request,
                .prefill_target = prefill,
                .generated = generated,
                .target = target_of(request),
                .progress = waiting.progress >= 0 ? waiting.progress : new_progress()};
  Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  if (progress.admitted_ns < 0) {
    progress.arrival_ns = waiting.since_ns;
    progress.admitted_ns = now_;
    if (request.abort_at_ns >= 0) aborts_.emplace(request.abort_at_ns, waiting.request);
  }
  if (kv_.create({.expected_tokens = prefill}, active.seq) != Status::ok) return false;
  const TokenCount chunk = std::min(prefill, budget_);
  // It fits: `pages` are free beyond what the prompts before it have been promised.
  const Status grown = kv_.append(active.seq, chunk);
  PACKSTONE_ASSERT(grown == Status::ok);
  active.length = chunk;
  promised += pages - pages_for(chunk, kv_.page_size());
  budget_ -= chunk;
  prefilled_in_step_ += chunk;
  counters_.admitted += 1;
  running_.push_back(active);
  batch_changed_ = true;
  return true;
}

void Scheduler::admit() {
  if (preempted_in_step_) return;
  PageCount promised = promised_pages();
  const PageCount usable = kv_.allocator().set().pages() - 1;
  while (budget_ > 0 && running_.size() < static_cast<std::size_t>(options_.concurrency)) {
    const std::optional<Waiting> waiting = head();
    if (!waiting) break;
    const Request& request = list_.requests[static_cast<std::size_t>(waiting->request)];
    const TokenCount most = request.prompt_tokens + target_of(request);
    if (request.abort_at_ns >= 0 && request.abort_at_ns <= now_) {
      pop_head(*waiting);
      retire_waiting(*waiting, Outcome::aborted);
    } else if (pages_for(most, kv_.page_size()) > usable) {
      pop_head(*waiting);
      retire_waiting(*waiting, Outcome::refused);
    } else if (admit_head(*waiting, promised)) {
      pop_head(*waiting);
    } else {
      return;
    }
  }
  if (counters_.drained_at < 0 && next_event_ns() == kNever && preempted_.empty()) {
    counters_.drained_at = counters_.tokens_written + prefilled_in_step_;
  }
}

bool Scheduler::step() {
  if (running_.empty() && preempted_.empty()) {
    const std::int64_t next = next_event_ns();
    if (next == kNever) return false;
    if (options_.arrivals == Arrivals::trace) now_ = std::max(now_, next);
  }
  budget_ = options_.token_budget;
  prefilled_in_step_ = 0;
  preempted_in_step_ = false;
  abort_by_time();
  decode_all();
  continue_prefills();
  admit();
  counters_.tokens_written += prefilled_in_step_;
  counters_.running_max =
      std::max(counters_.running_max, static_cast<std::int64_t>(running_.size()));
  now_ += options_.time.fixed_ns + prefilled_in_step_ * options_.time.prefill_token_ns +
          decoding_context_ * options_.time.decode_context_token_ns;
  counters_.steps += 1;
  finish_ended();
  return true;
}

}  // namespace packstone::sim
