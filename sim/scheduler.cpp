// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/scheduler.hpp>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace packstone::sim {

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
                     std::function<void(const Retired&)> on_retire, SchedulerParts parts)
    : list_(list), options_(options), kv_(kv), on_retire_(std::move(on_retire)), parts_(parts) {
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

// ---- a step ----

void Scheduler::rebuild_decoding() {
  decoding_.clear();
  for (const Active& active : running_) {
    if (!active.prefilling()) decoding_.push_back(active.seq);
  }
  batch_changed_ = false;
}

void Scheduler::relieve(PageCount wanted) {
  if (parts_.reuse != nullptr && parts_.reuse->make_room(wanted) > 0) return;
  counters_.alloc_fail_capacity += 1;
  preempt_newest();
}

Status Scheduler::decode_batch() {
  return parts_.drafting != nullptr ? parts_.drafting->reserve(decoding_) : kv_.decode(decoding_);
}

void Scheduler::decode_all() {
  if (batch_changed_) rebuild_decoding();
  while (!decoding_.empty() && decode_batch() != Status::ok) {
    const TokenCount each = parts_.drafting != nullptr ? parts_.drafting->nodes() : 1;
    relieve(static_cast<PageCount>(decoding_.size()) * (pages_for(each, kv_.page_size()) + 1));
    if (batch_changed_) rebuild_decoding();
  }
  decoding_context_ = 0;
  if (decoding_.empty()) return;
  if (parts_.drafting != nullptr) {
    grow_by_drafts();
    return;
  }
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

void Scheduler::grow_by_drafts() {
  left_.clear();
  for (const Active& active : running_) {
    if (!active.prefilling()) left_.push_back(active.target - active.generated);
  }
  parts_.drafting->commit(decoding_, left_, grown_);
  std::size_t next = 0;
  for (Active& active : running_) {
    if (active.prefilling()) continue;
    const TokenCount tokens = grown_[next++];
    active.length += tokens;
    active.generated += tokens;
    decoding_context_ += active.length;
    counters_.tokens_written += tokens;
  }
  budget_ -= static_cast<TokenCount>(decoding_.size()) * parts_.drafting->nodes();
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
    relieve(pages_for(budget_, kv_.page_size()) + static_cast<PageCount>(growths_.size()));
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
    if (parts_.reuse != nullptr) {
      parts_.reuse->store(list_.requests[static_cast<std::size_t>(active.request)], active.length,
                          kv_.pages(active.seq), active.lock);
    }
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

bool Scheduler::can_take(const Request& request, TokenCount prefill, PageCount promised) {
  const PageCount spare = running_.empty() ? 0 : watermark_pages_;
  PageCount wanted = pages_for(prefill, kv_.page_size()) + promised + spare;
  if (parts_.reuse == nullptr) return wanted <= kv_.available_pages();
  wanted += parts_.reuse->pages_needed(request, prefill) - pages_for(prefill, kv_.page_size());
  return wanted <= kv_.available_pages() + parts_.reuse->evictable();
}

bool Scheduler::admit_head(const Waiting& waiting, PageCount& promised) {
  const Request& request = list_.requests[static_cast<std::size_t>(waiting.request)];
  const TokenCount generated =
      waiting.progress >= 0 ? progress_[static_cast<std::size_t>(waiting.progress)].generated : 0;
  const TokenCount prefill = request.prompt_tokens + generated;
  if (!can_take(request, prefill, promised)) return false;

  Active active{.request = waiting.request,
                .prefill_target = prefill,
                .generated = generated,
                .target = target_of(request),
                .progress = waiting.progress};
  PrefixMatch match;
  PageCount pages = pages_for(prefill, kv_.page_size());
  if (parts_.reuse != nullptr) {
    match = parts_.reuse->match(request, prefill);
    active.lock = match.lock;
    pages -= static_cast<PageCount>(match.pages.size());
    const PageCount wanted = pages + promised + (running_.empty() ? 0 : watermark_pages_);
    parts_.reuse->make_room(wanted);
    if (wanted > kv_.available_pages()) {  // pages of the cache that others use cannot be freed
      parts_.reuse->unlock(active.lock);
      return false;
    }
  }
  if (active.progress < 0) active.progress = new_progress();
  Progress& progress = progress_[static_cast<std::size_t>(active.progress)];
  if (progress.admitted_ns < 0) {
    progress.arrival_ns = waiting.since_ns;
    progress.admitted_ns = now_;
    progress.cached = match.tokens;
    if (parts_.reuse != nullptr) parts_.reuse->count(request, prefill, match.tokens);
    if (request.abort_at_ns >= 0) aborts_.emplace(request.abort_at_ns, waiting.request);
  }
  // A prompt's length is known; what it will generate is not, and the manager is not told.
  const Status created =
      kv_.create({.expected_tokens = prefill, .prefix = match.pages}, active.seq);
  PACKSTONE_ASSERT(created == Status::ok);
  const TokenCount chunk = std::min(prefill - match.tokens, budget_);
  // It fits: `pages` are free beyond what the prompts before it have been promised.
  const Status grown = kv_.append(active.seq, chunk);
  PACKSTONE_ASSERT(grown == Status::ok);
  active.cached = match.tokens;
  active.length = match.tokens + chunk;
  promised += pages_for(prefill, kv_.page_size()) - pages_for(active.length, kv_.page_size());
  if (parts_.reuse != nullptr) {
    parts_.reuse->store(request, active.length, kv_.pages(active.seq), active.lock);
  }
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
    const TokenCount drafts = parts_.drafting != nullptr ? parts_.drafting->nodes() : 0;
    const TokenCount most = request.prompt_tokens + target_of(request) + drafts;
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
  if (counters_.drained_at < 0 && next_event_ns() == kNeverNs && preempted_.empty()) {
    counters_.drained_at = counters_.tokens_written + prefilled_in_step_;
  }
}

bool Scheduler::step() {
  if (running_.empty() && preempted_.empty()) {
    const std::int64_t next = next_event_ns();
    if (next == kNeverNs) return false;
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
