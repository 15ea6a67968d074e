// SPDX-License-Identifier: Apache-2.0
#include "reference_tile.hpp"

#include <packstone/error.hpp>
#include <packstone/float_formats.hpp>
#include <packstone/reference_verify.hpp>
#include <packstone/verify_checks.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace packstone {
namespace {

using reference::PartialRows;
using reference::RowBlock;
using reference::TokenSource;

constexpr std::int64_t kPieceTokens =
    16'384;  ///< fixed, so that results do not depend on the threads
constexpr std::int64_t kWaveBytes = std::int64_t{64} << 20U;

/// Runs task(0) to task(count - 1) on up to `threads` threads; rethrows the first exception.
void parallel_for(std::int64_t count, std::int32_t threads,
                  const std::function<void(std::int64_t)>& task) {
  const auto hardware =
      static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t workers = std::min<std::int64_t>(threads > 0 ? threads : hardware, count);
  if (workers <= 1) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::int64_t i = next++; i < count; i = next++) task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> pool;
  try {
    for (std::int64_t i = 1; i < workers; ++i) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads are to be had: those that run do the work.
  }
  work();
  for (auto& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

/// One block's tokens within [begin, end) of its source.
struct Piece {
  RowBlock block;
  TokenSource source;
  std::int64_t begin;
  std::int64_t end;
};

/// The pieces of a block in the order of their merge: the prefix (or the list) in fixed steps, then
/// the tail.
void append_pieces(const VerifyParams& p, const RowBlock& block, std::vector<Piece>* pieces) {
  const bool sparse = p.sparse.entries != nullptr;
  const std::int64_t length =
      sparse ? std::int64_t{p.sparse.topk} : std::int64_t{p.prefix_lens[block.sequence]};
  const TokenSource source = sparse ? TokenSource::list : TokenSource::prefix;
  for (std::int64_t begin = 0; begin < length; begin += kPieceTokens) {
    pieces->push_back({block, source, begin, std::min(length, begin + kPieceTokens)});
  }
  if (p.tail_place != TailPlace::none) {
    pieces->push_back(
        {block, TokenSource::tail, 0, p.q_indptr[block.sequence + 1] - p.q_indptr[block.sequence]});
  }
  if (pieces->empty() || pieces->back().block != block) {
    pieces->push_back(
        {block, source, 0, 0});  // A block without any token still has its zeros to write.
  }
}

/// A row with lists has its own tokens, so its block is one node; else the nodes of a block share
/// their tiles.
std::vector<RowBlock> row_blocks(const VerifyParams& p) {
  const std::int32_t group = p.heads / p.kv_heads;
  const std::int32_t nodes_shared = std::max(1, reference::kBlockRows / group);
  const std::int32_t nodes_step = p.sparse.entries != nullptr ? 1 : nodes_shared;
  std::vector<RowBlock> blocks;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    const std::int32_t q_len = p.q_indptr[b + 1] - p.q_indptr[b];
    for (std::int32_t node = 0; node < q_len; node += nodes_step) {
      for (std::int32_t g = 0; g < p.kv_heads; ++g) {
        blocks.push_back({b, node, std::min(nodes_step, q_len - node), g});
      }
    }
  }
  return blocks;
}

void store(const OutputView& output, std::int64_t offset, double value) {
  char* place = static_cast<char*>(output.out) + offset;
  const auto rounded = static_cast<float>(value);
  switch (output.type) {
    case FloatType::fp32:
      *reinterpret_cast<float*>(place) = rounded;
      break;
    case FloatType::bf16:
      *reinterpret_cast<std::uint16_t*>(place) = encode_bf16(rounded);
      break;
    case FloatType::fp16:
      *reinterpret_cast<std::uint16_t*>(place) = encode_fp16(rounded);
      break;
  }
}

/// Adds `piece` to `sum`, row by row, with the rule for empty rows.
void merge_rows(PartialRows* sum, const PartialRows& piece, std::int32_t dim) {
  for (std::size_t r = 0; r < sum->peak.size(); ++r) {
    if (piece.total[r] == 0.0) continue;
    const double peak = std::max(sum->peak[r], piece.peak[r]);
    const double keep = sum->total[r] == 0.0 ? 0.0 : std::exp(sum->peak[r] - peak);
    const double add = std::exp(piece.peak[r] - peak);
    double* to = sum->value(r, dim);
    const double* from = piece.value(r, dim);
    for (std::int32_t d = 0; d < dim; ++d) to[d] = to[d] * keep + from[d] * add;
    sum->total[r] = sum->total[r] * keep + piece.total[r] * add;
    sum->peak[r] = peak;
  }
}

void write_block(const VerifyParams& p, const RowBlock& block, const PartialRows& rows) {
  const std::int32_t group = p.heads / p.kv_heads;
  for (std::size_t r = 0; r < rows.peak.size(); ++r) {
    const std::int64_t token =
        p.q_indptr[block.sequence] + block.node + static_cast<std::int64_t>(r) / group;
    const std::int64_t head =
        std::int64_t{block.kv_head} * group + static_cast<std::int64_t>(r) % group;
    const bool empty = rows.total[r] == 0.0;
    const double* value = rows.value(r, p.head_dim_v);
    const std::int64_t row = token * p.output.stride_token + head * p.output.stride_head;
    for (std::int32_t d = 0; d < p.head_dim_v; ++d) {
      store(p.output, row + d * bytes_of(p.output.type), empty ? 0.0 : value[d] / rows.total[r]);
    }
    if (p.output.lse == nullptr) continue;
    double lse =
        empty ? -std::numeric_limits<double>::infinity() : rows.peak[r] + std::log(rows.total[r]);
    if (p.output.lse_base == LseBase::two) lse *= 1.0 / std::log(2.0);
    auto* lse_row = reinterpret_cast<float*>(reinterpret_cast<char*>(p.output.lse) +
                                             token * p.output.lse_stride_token);
    lse_row[head] = static_cast<float>(lse);
  }
}

}  // namespace

void reference_verify(const VerifyParams& params, const ReferenceOptions& options) {
  validate(params, host_view_of(params));
  const std::vector<RowBlock> blocks = row_blocks(params);
  const std::int64_t piece_bytes = std::int64_t{8} * params.head_dim_v * reference::kBlockRows;
  const auto wave = static_cast<std::size_t>(std::max<std::int64_t>(64, kWaveBytes / piece_bytes));
  std::size_t next = 0;
  while (next < blocks.size()) {
    std::vector<Piece> pieces;
    std::vector<std::size_t> ends;  // of each block of the wave, in pieces
    const std::size_t first = next;
    for (; next < blocks.size() && pieces.size() < wave; ++next) {
      append_pieces(params, blocks[next], &pieces);
      ends.push_back(pieces.size());
    }
    std::vector<PartialRows> partial(pieces.size());
    parallel_for(static_cast<std::int64_t>(pieces.size()), options.threads, [&](std::int64_t i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      partial[static_cast<std::size_t>(i)] =
          reference::attend(params, piece.block, piece.source, piece.begin, piece.end);
    });
    parallel_for(static_cast<std::int64_t>(ends.size()), options.threads, [&](std::int64_t i) {
      const auto block = static_cast<std::size_t>(i);
      const std::size_t begin = block == 0 ? 0 : ends[block - 1];
      for (std::size_t k = begin + 1; k < ends[block]; ++k) {
        merge_rows(&partial[begin], partial[k], params.head_dim_v);
      }
      write_block(params, blocks[first + block], partial[begin]);
    });
  }
}

void reference_merge(const StateParts& states, float* out, float* lse) {
  if (states.parts < 1 || states.rows < 0 || states.dim < 1) {
    throw InvalidArgument("merge: parts = " + std::to_string(states.parts) + ", rows = " +
                          std::to_string(states.rows) + ", dim = " + std::to_string(states.dim));
  }
  const float none = -std::numeric_limits<float>::infinity();
  const bool natural = states.lse_base == LseBase::natural;
  std::vector<double> sum(static_cast<std::size_t>(states.dim));
  for (std::int64_t row = 0; row < states.rows; ++row) {
    double peak = none;
    for (std::int32_t part = 0; part < states.parts; ++part) {
      const float value = states.lse[part * states.rows + row];
      peak = (std::isnan(value) || value == -none)
                 ? std::numeric_limits<double>::quiet_NaN()
                 : std::max(peak, std::isnan(peak) ? peak : double{value});
      if (std::isnan(peak)) break;
    }
    double total = 0.0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int32_t part = 0; part < states.parts; ++part) {
      const float value = states.lse[part * states.rows + row];
      if (value == none) continue;
      const double weight = natural ? std::exp(value - peak) : std::exp2(value - peak);
      const float* from = states.out + (part * states.rows + row) * states.dim;
      for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weight * double{from[d]};
      total += weight;
    }
    float* to = out + row * states.dim;
    for (std::size_t d = 0; d < sum.size(); ++d) {
      to[d] = total == 0.0 ? 0.0F : static_cast<float>(sum[d] / total);
    }
    lse[row] = total == 0.0
                   ? none
                   : static_cast<float>(peak + (natural ? std::log(total) : std::log2(total)));
  }
}

}  // namespace packstone
