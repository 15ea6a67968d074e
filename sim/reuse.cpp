// SPDX-License-Identifier: Apache-2.0
#include <sim/reuse.hpp>

#include <algorithm>

namespace packstone::sim {

PrefixReuse::PrefixReuse(const RequestList& list, KvManager& kv)
    : list_(list),
      kv_(kv),
      block_tokens_(std::max<std::int64_t>(list.block_tokens, 1)),
      cache_(kv.allocator(), {.page_size = kv.page_size(), .id_tokens = block_tokens_}) {}

PrefixKey PrefixReuse::key(const Request& request, TokenCount length) const {
  const std::span<const std::uint64_t> blocks = list_.blocks_of(request);
  const TokenCount named =
      std::min(request.prompt_tokens, std::int64_t{request.block_count} * block_tokens_);
  // The standard lets a signed type look at its unsigned twin; ids are compared, never computed.
  return {.ids = {reinterpret_cast<const std::int64_t*>(blocks.data()), blocks.size()},
          .tokens = std::min(named, length)};
}

PageCount PrefixReuse::pages_needed(const Request& request, TokenCount prefill) const {
  const PrefixKey asked = key(request, prefill);
  const PrefixEstimate estimate = cache_.estimate(asked, asked.tokens < prefill ? 0 : 1);
  return pages_for(prefill, kv_.page_size()) - estimate.pages_reused;
}

PrefixMatch PrefixReuse::match(const Request& request, TokenCount prefill) {
  const PrefixKey asked = key(request, prefill);
  return cache_.match(asked, asked.tokens < prefill ? 0 : 1);
}

void PrefixReuse::count(const Request& request, TokenCount prefill, TokenCount matched) {
  if (request.block_count == 0) return;
  // What is there is counted with the token that the model must compute in any case.
  const PrefixKey asked = key(request, prefill);
  const TokenCount page = kv_.page_size();
  const TokenCount found = cache_.estimate(asked, 0).tokens_reused;
  const std::int64_t blocks = found / block_tokens_;
  const bool last_too = found % block_tokens_ >= page && found == asked.tokens / page * page &&
                        blocks + 1 == request.block_count;
  counters_.blocks_asked += request.block_count;
  counters_.blocks_hit += blocks + (last_too ? 1 : 0);
  counters_.tokens_asked += request.prompt_tokens;
  counters_.tokens_hit += matched;
}

void PrefixReuse::store(const Request& request, TokenCount length, std::span<const PageId> pages,
                        std::optional<PrefixLock>& lock) {
  const PrefixKey stored = key(request, length);
  if (stored.tokens < kv_.page_size()) return;
  const PrefixInsertion insertion = cache_.insert(stored, pages);
  unlock(lock);
  lock = insertion.lock;
}

void PrefixReuse::unlock(std::optional<PrefixLock>& lock) {
  if (lock) cache_.unlock(*lock);
  lock.reset();
}

PageCount PrefixReuse::make_room(PageCount wanted) {
  const PageCount lacking = wanted - kv_.available_pages();
  if (lacking <= 0) return 0;
  const auto freed = static_cast<PageCount>(cache_.evict({.pages = lacking}).freed.size());
  counters_.evictions += freed;
  return freed;
}

}  // namespace packstone::sim
