// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the fuzzers of the trace readers share: read the bytes as one format under both rules for
/// bad rows. Only a TraceError may come out; rows must add up, lists must be in order, and what was
/// read must survive being written.

#include <packstone/error.hpp>

#include <sim/prng.hpp>
#include <sim/trace.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string_view>

namespace packstone::sim {

inline void check_read(const Trace& trace) {
  const RequestList& list = trace.list;
  PACKSTONE_ASSERT(trace.rows.read == trace.rows.emitted + trace.rows.dropped_total());
  PACKSTONE_ASSERT(trace.rows.emitted == static_cast<std::int64_t>(list.requests.size()));
  std::int64_t last = 0;
  for (const Request& request : list.requests) {
    PACKSTONE_ASSERT(request.arrival_ns >= last);
    PACKSTONE_ASSERT(request.prompt_tokens >= 1 && request.prompt_tokens <= kRequestTokensMax);
    PACKSTONE_ASSERT(request.output_tokens >= 0 && request.output_tokens <= kRequestTokensMax);
    PACKSTONE_ASSERT(list.blocks_of(request).size() ==
                     static_cast<std::size_t>(request.block_count));
    PACKSTONE_ASSERT(std::int64_t{request.block_count} * list.block_tokens <
                     request.prompt_tokens + list.block_tokens + 1);
    last = request.arrival_ns;
  }
  // A prompt of 2^30 tokens would be written as millions of ids.
  for (const Request& request : list.requests) {
    if (request.prompt_tokens > 100'000) return;
  }
  std::ostringstream out;
  const std::int32_t block = write_mooncake(out, list);
  const Trace again = read_trace_bytes(out.str(), "again",
                                       {.format = TraceFormat::mooncake, .block_tokens = block});
  PACKSTONE_ASSERT(list.requests.empty() || again.list == list);
}

inline int fuzz_trace(TraceFormat format, const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const OnBadRow rule : {OnBadRow::skip, OnBadRow::error}) {
    TraceOptions options{.format = format, .on_bad_row = rule};
    // Small bounds, so that the fuzzer comes to them.
    options.limits.block_ids = 100'000;
    options.limits.line_bytes = 1 << 16;
    options.limits.rows = 10'000;
    options.limits.expansion_free_bytes = 1 << 20;
    try {
      check_read(read_trace_bytes(bytes, "fuzz", options));
    } catch (const TraceError&) {
      // The one allowed way to refuse.
      continue;
    }
  }
  return 0;
}

}  // namespace packstone::sim

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max);

/// One mutation in eight puts a header, a row or a telling number into the input: no corpus is kept
/// in the repository, and a whole header is more than chance finds.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max, unsigned int seed) {
  static constexpr std::array kPieces{
      "TIMESTAMP,ContextTokens,GeneratedTokens\n",
      "2023-11-16 18:17:03.9799600,4808,10\n",
      "2024-05-10 00:00:00.009930+00:00,2162,5\n",
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n",
      "5,s,1.5,ChatGPT,472,18\n",
      "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n",
      "0,2518,3,154,117,1,131.5\n",
      "{\"timestamp\": 12.5, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [1, 2]}\n",
      "{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 3, \"session_id\": 4}\n",
      "{\"timestamp\": 9, \"input_length\": 5, \"output_length\": 3, \"hash_ids\": [7], "
      "\"session_id\": 4, \"think_time\": 1, \"abort_after\": 1, \"unshared_blocks\": 1}\n",
      "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 6.1, \"input_length\": 20, "
      "\"output_length\": 9, \"hash_ids\": [1, 2]}\n",
      "{\"session_id\": \"s\", \"round_index\": 0, \"input_tokens_total\": 700, "
      "\"prefix_tokens\": 600, \"output_tokens\": 4, \"timing_events\": [{\"timestamp\": "
      "\"2026-08-25T00:00:09Z\"}], \"tools\": [{\"tool_wall_latency_ms\": 5}]}\n",
      "client,requests_total,share,cv_rate_weighted,gamma_share,active_windows_600s\n",
      "big,6000.0,0.6,2.0,0.5,10\n",
      "tokens_lo,tokens_hi,probability\n",
      "10.0,20.0,0.5\n",
      "\"hash_ids\": [18446744073709551615, 9223372036854775808]",
      "18446744073709551616",
      "1e400",
      "-0.0",
      "4611686018427387904",
      "\r\n",
      "\xEF\xBB\xBF",
      "\x1F\x8B\x08",
      "\x28\xB5\x2F\xFD"};
  packstone::sim::Prng prng(seed);
  if (prng.below(8) != 0) return LLVMFuzzerMutate(data, size, max);
  const char* piece = kPieces[prng.below(kPieces.size())];
  const std::size_t length = std::strlen(piece);
  if (size + length > max) return LLVMFuzzerMutate(data, size, max);
  const std::size_t at = prng.below(size + 1);
  std::memmove(data + at + length, data + at, size - at);
  std::memcpy(data + at, piece, length);
  return size + length;
}
