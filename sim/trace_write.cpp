// SPDX-License-Identifier: Apache-2.0
#include <packstone/units.hpp>

#include <fmt/format.h>
#include <sim/trace.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <system_error>
#include <vector>

namespace packstone::sim {
namespace {

// Ids that no block of a list has, in ascending order, wrapping where the largest ids are taken.
class FreshIds {
 public:
  explicit FreshIds(const std::vector<std::uint64_t>& taken) : taken_(taken) {
    std::sort(taken_.begin(), taken_.end());
    if (!taken_.empty()) next_ = taken_.back() + 1;
  }
  std::uint64_t next() {
    while (std::binary_search(taken_.begin(), taken_.end(), next_)) ++next_;
    return next_++;
  }

 private:
  std::vector<std::uint64_t> taken_;
  std::uint64_t next_{0};
};

// Milliseconds with as many digits as the nanoseconds need, exactly.
void append_millis(fmt::memory_buffer& out, std::int64_t nanos) {
  constexpr std::int64_t kNanosPerMilli = 1'000'000;
  const auto into = std::back_inserter(out);
  const std::int64_t rest = nanos % kNanosPerMilli;
  fmt::format_to(into, "{}", nanos / kNanosPerMilli);
  if (rest == 0) return;
  fmt::format_to(into, ".{:06}", rest);
  while (out[out.size() - 1] == '0') out.resize(out.size() - 1);
}

void append_request(fmt::memory_buffer& out, const RequestList& list, const Request& request,
                    std::int32_t block_tokens, FreshIds& fresh) {
  const auto into = std::back_inserter(out);
  fmt::format_to(into, "{{\"timestamp\": ");
  append_millis(out, request.arrival_ns);
  fmt::format_to(into, ", \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [",
                 request.prompt_tokens, request.output_tokens);
  const char* separator = "";
  for (const std::uint64_t id : list.blocks_of(request)) {
    fmt::format_to(into, "{}{}", separator, id);
    separator = ", ";
  }
  const std::int64_t unshared =
      pages_for(request.prompt_tokens, block_tokens) - request.block_count;
  for (std::int64_t i = 0; i < unshared; ++i) {
    fmt::format_to(into, "{}{}", separator, fresh.next());
    separator = ", ";
  }
  fmt::format_to(into, "]");
  if (unshared > 0) fmt::format_to(into, ", \"unshared_blocks\": {}", unshared);
  if (request.session_id >= 0) fmt::format_to(into, ", \"session_id\": {}", request.session_id);
  if (request.closed_loop()) {
    fmt::format_to(into, ", \"think_time\": ");
    append_millis(out, request.think_ns);
  }
  if (request.abort_after_tokens >= 0) {
    fmt::format_to(into, ", \"abort_after\": {}", request.abort_after_tokens);
  }
  if (request.abort_at_ns >= 0) {
    fmt::format_to(into, ", \"abort_at\": ");
    append_millis(out, request.abort_at_ns);
  }
  if (request.source_id >= 0) fmt::format_to(into, ", \"request_id\": {}", request.source_id);
  if (request.client >= 0) fmt::format_to(into, ", \"client\": {}", request.client);
  fmt::format_to(into, "}}\n");
}

}  // namespace

std::int32_t write_mooncake(std::ostream& out, const RequestList& list,
                            const WriteOptions& options) {
  if (options.fresh_block_tokens < 1) {
    throw InvalidArgument(
        fmt::format("fresh_block_tokens is {}, but must be 1 or more", options.fresh_block_tokens));
  }
  const std::int32_t block_tokens =
      list.block_tokens > 0 ? list.block_tokens : options.fresh_block_tokens;
  FreshIds fresh(list.block_ids);
  fmt::memory_buffer buffer;
  for (const Request& request : list.requests) {
    append_request(buffer, list, request, block_tokens, fresh);
    constexpr std::size_t kFlushBytes = std::size_t{1} << 20;
    if (buffer.size() >= kFlushBytes) {
      out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
      buffer.clear();
    }
  }
  out.write(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  return block_tokens;
}

std::int32_t write_mooncake_file(const std::string& path, const RequestList& list,
                                 const WriteOptions& options) {
  const std::string partial = path + "." + std::to_string(::getpid()) + ".partial";
  std::error_code code;
  std::int32_t block_tokens = 0;
  bool written = false;
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    if (!file) throw TraceError(path, 0, "cannot be created");
    block_tokens = write_mooncake(file, list, options);
    file.flush();
    written = static_cast<bool>(file);
  }
  if (written) std::filesystem::rename(partial, path, code);
  if (!written || code) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw TraceError(path, 0, code ? code.message() : "cannot be written, is the disk full?");
  }
  return block_tokens;
}

}  // namespace packstone::sim
