// SPDX-License-Identifier: Apache-2.0
// Who waits, who is next, and what becomes of those who leave.
#include <packstone/error.hpp>

#include <sim/scheduler.hpp>

#include <algorithm>

namespace packstone::sim {

TokenCount Scheduler::target_of(const Request& request) const {
  if (request.abort_after_tokens < 0) return request.output_tokens;
  return std::min<TokenCount>(request.output_tokens, request.abort_after_tokens);
}

std::optional<Scheduler::Waiting> Scheduler::head() {
  if (!preempted_.empty()) return preempted_.back();
  while (cursor_ < list_.requests.size() && later_turn_[cursor_]) ++cursor_;
  const bool backlog = options_.arrivals == Arrivals::backlog;
  const std::int64_t fresh =
      cursor_ < list_.requests.size() ? list_.requests[cursor_].arrival_ns : kNeverNs;
  if (!released_.empty()) {
    const auto [time, request] = released_.top();
    // A session under way goes on before a new one begins, when time does not decide.
    if (backlog || (time <= now_ && time <= fresh)) {
      return Waiting{.request = request, .since_ns = time};
    }
  }
  if (fresh == kNeverNs || (!backlog && fresh > now_)) return std::nullopt;
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
      next < list_.requests.size() ? list_.requests[next].arrival_ns : kNeverNs;
  return released_.empty() ? fresh : std::min(fresh, released_.top().first);
}

void Scheduler::release_next_turn(std::int64_t request) {
  const std::int64_t next = next_turn_[static_cast<std::size_t>(request)];
  if (next < 0) return;
  const bool backlog = options_.arrivals == Arrivals::backlog;
  const Request& turn = list_.requests[static_cast<std::size_t>(next)];
  const std::int64_t think = std::min(turn.think_ns, kNeverNs - now_);
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

void Scheduler::give_back(Active& active) {
  counters_.tokens_released += active.length - active.cached;
  if (parts_.reuse != nullptr) parts_.reuse->unlock(active.lock);
  kv_.finish(active.seq);
  batch_changed_ = true;
}

void Scheduler::retire(Active& active, Outcome outcome) {
  const Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  (outcome == Outcome::finished ? counters_.finished : counters_.aborted) += 1;
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
  give_back(active);
  free_progress_.push_back(active.progress);
  release_next_turn(active.request);
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
  Active active = running_.back();
  running_.pop_back();
  Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  progress.generated = active.generated;
  progress.preemptions += 1;
  counters_.preemptions += 1;
  counters_.tokens_recomputed += active.length - active.cached;
  give_back(active);
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

}  // namespace packstone::sim
