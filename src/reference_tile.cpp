// SPDX-License-Identifier: Apache-2.0
#include "reference_tile.hpp"

#include <packstone/float_formats.hpp>
#include <packstone/units.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace packstone::reference {
namespace {

constexpr std::int32_t kTile = 16;  ///< tokens; one row's scores then stay in registers

using Words = std::vector<std::uint64_t>;

template <typename T>
T load(const void* base, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

void decode_values(const void* from, KvType type, std::int32_t count, double scale, double* to) {
  switch (type) {
    case KvType::bf16:
      for (std::int32_t d = 0; d < count; ++d)
        to[d] = double{decode_bf16(load<std::uint16_t>(from, d))};
      break;
    case KvType::fp16:
      for (std::int32_t d = 0; d < count; ++d)
        to[d] = double{decode_fp16(load<std::uint16_t>(from, d))};
      break;
    case KvType::e4m3:
    case KvType::e4m3_tile:
      for (std::int32_t d = 0; d < count; ++d)
        to[d] = scale * double{decode_e4m3(load<std::uint8_t>(from, d))};
      break;
  }
}

std::int64_t slot_of_token(const VerifyParams& p, std::int32_t sequence, std::int64_t token) {
  const std::int64_t row = p.table.indptr != nullptr ? std::int64_t{p.table.indptr[sequence]}
                                                     : sequence * p.table.row_stride;
  const std::int64_t entry = row + token / p.table.page_size;
  const std::int64_t page = p.table.type == IndexType::int64
                                ? load<std::int64_t>(p.table.entries, entry)
                                : std::int64_t{load<std::int32_t>(p.table.entries, entry)};
  return page * p.table.page_size + token % p.table.page_size;
}

/// value += sum of weights[i] * sources[i], eight values at a time in registers; dim is a multiple
/// of 16.
void add_weighted(const double* weights, const double* const* sources, std::size_t count,
                  std::size_t dim, double* value) {
  for (std::size_t d = 0; d < dim; d += 8) {
    double sum[8];
    for (std::size_t j = 0; j < 8; ++j) sum[j] = value[d + j];
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += weights[i] * sources[i][d + j];
    }
    for (std::size_t j = 0; j < 8; ++j) value[d + j] = sum[j];
  }
}

/// dot[t] = sum over d of q[d] * k[d * kTile + t].
void dot_products(const double* q, const double* k, std::size_t dim, double* dot) {
  for (std::size_t half = 0; half < kTile; half += 8) {
    double sum[8] = {};
    for (std::size_t d = 0; d < dim; ++d) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += q[d] * k[d * kTile + half + j];
    }
    for (std::size_t j = 0; j < 8; ++j) dot[half + j] = sum[j];
  }
}

/// Computes one block over one stretch; holds the decoded q, tile and mask.
class BlockAttention {
 public:
  BlockAttention(const VerifyParams& params, const RowBlock& block, TokenSource source);
  PartialRows run(std::int64_t begin, std::int64_t end);

 private:
  void decode_queries();
  void read_mask();
  void decode_row(const KvRows& rows, std::int64_t row, std::int32_t lane);
  void transpose_keys();
  /// Decodes token `token` into tile place `lane`; false when it is no token (-1 in a list).
  bool decode_token(std::int64_t token, std::int32_t lane);
  [[nodiscard]] bool visible(std::size_t row, std::int64_t token) const;
  void attend_tile(std::int64_t first, std::int32_t count, const bool* present);

  const VerifyParams& p_;
  RowBlock block_;
  TokenSource source_;
  std::int32_t group_;
  std::size_t rows_;
  std::vector<double> q_;  ///< [rows, head_dim_k]
  std::vector<double>
      k_;  ///< [head_dim_k, kTile]: transposed, so that the loops run over adjacent tokens
  std::vector<double> v_;      ///< [kTile, head_dim_v]
  std::vector<double> lines_;  ///< [kTile, head_dim_k], the K rows as decoded
  std::vector<Words> mask_;    ///< [nodes]: visible nodes of the tail
  PartialRows result_;
};

BlockAttention::BlockAttention(const VerifyParams& params, const RowBlock& block,
                               TokenSource source)
    : p_(params),
      block_(block),
      source_(source),
      group_(params.heads / params.kv_heads),
      rows_(static_cast<std::size_t>(block.nodes) * static_cast<std::size_t>(group_)),
      q_(rows_ * static_cast<std::size_t>(params.head_dim_k)),
      k_(static_cast<std::size_t>(params.head_dim_k) * kTile),
      v_(static_cast<std::size_t>(params.head_dim_v) * kTile),
      lines_(static_cast<std::size_t>(params.head_dim_k) * kTile) {
  decode_queries();
  if (source_ == TokenSource::tail) read_mask();
  result_.peak.assign(rows_, -std::numeric_limits<double>::infinity());
  result_.total.assign(rows_, 0.0);
  result_.values.assign(rows_ * static_cast<std::size_t>(p_.head_dim_v), 0.0);
}

void BlockAttention::decode_queries() {
  const KvType type = p_.q.type == FloatType::bf16 ? KvType::bf16 : KvType::fp16;
  for (std::size_t r = 0; r < rows_; ++r) {
    const std::int64_t token =
        p_.q_indptr[block_.sequence] + block_.node + static_cast<std::int64_t>(r) / group_;
    const std::int64_t head =
        std::int64_t{block_.kv_head} * group_ + static_cast<std::int64_t>(r) % group_;
    const char* from =
        static_cast<const char*>(p_.q.data) + token * p_.q.stride_token + head * p_.q.stride_head;
    decode_values(from, type, p_.head_dim_k, 1.0,
                  q_.data() + r * static_cast<std::size_t>(p_.head_dim_k));
  }
}

void BlockAttention::read_mask() {
  const std::int32_t first = p_.q_indptr[block_.sequence];
  const std::int32_t q_len = p_.q_indptr[block_.sequence + 1] - first;
  const auto words = static_cast<std::size_t>((q_len + 63) / 64);
  for (std::int32_t node = block_.node; node < block_.node + block_.nodes; ++node) {
    Words row(words, 0);
    const auto show = [&row](std::int32_t j) {
      row[static_cast<std::size_t>(j) / 64] |= std::uint64_t{1} << (j % 64);
    };
    switch (p_.mask.kind) {
      case MaskKind::causal:
        for (std::int32_t j = 0; j <= node; ++j) show(j);
        break;
      case MaskKind::full:
        for (std::int32_t j = 0; j < q_len; ++j) show(j);
        break;
      case MaskKind::parents:
        for (std::int32_t j = node; j >= 0; j = p_.mask.parents[first + j]) show(j);
        break;
      case MaskKind::words:
        for (std::size_t w = 0; w < words; ++w) {
          row[w] =
              p_.mask.words[(first + node) * p_.mask.words_stride + static_cast<std::int64_t>(w)];
        }
        break;
    }
    mask_.push_back(std::move(row));
  }
}

void BlockAttention::decode_row(const KvRows& rows, std::int64_t row, std::int32_t lane) {
  const char* k = static_cast<const char*>(rows.k) + row * rows.k_stride_row +
                  block_.kv_head * rows.k_stride_head;
  double* v = v_.data() + static_cast<std::size_t>(lane) * static_cast<std::size_t>(p_.head_dim_v);
  double* line =
      lines_.data() + static_cast<std::size_t>(lane) * static_cast<std::size_t>(p_.head_dim_k);
  if (p_.kind == AttentionKind::gqa) {
    decode_values(k, p_.kv_type, p_.head_dim_k, double{p_.k_scale}, line);
    const char* value = static_cast<const char*>(rows.v) + row * rows.v_stride_row +
                        block_.kv_head * rows.v_stride_head;
    decode_values(value, p_.kv_type, p_.head_dim_v, double{p_.v_scale}, v);
  } else {
    const bool tiles = p_.kv_type == KvType::e4m3_tile;
    for (std::int32_t t = 0; t < kMlaTiles; ++t) {
      const double scale =
          tiles ? double{load<float>(k + kMlaTileScaleOffset, t)} : double{p_.k_scale};
      decode_values(k + value_bytes(p_.kv_type, t * kMlaTileDim), p_.kv_type, kMlaTileDim, scale,
                    line + std::ptrdiff_t{t} * kMlaTileDim);
    }
    std::copy_n(line, kMlaLatentDim, v);
    if (p_.rope_dim > 0) {
      const char* rope = rows.k_rope != nullptr
                             ? static_cast<const char*>(rows.k_rope) + row * rows.k_rope_stride_row
                             : k + mla_latent_bytes(p_.kv_type);
      decode_values(rope, tiles ? KvType::bf16 : p_.kv_type, kMlaRopeDim, double{p_.k_scale},
                    line + kMlaLatentDim);
    }
  }
}

/// All tokens of a tile at once: a row alone would touch a cache line for each of its values.
void BlockAttention::transpose_keys() {
  const auto dim = static_cast<std::size_t>(p_.head_dim_k);
  for (std::size_t d = 0; d < dim; ++d) {
    for (std::size_t t = 0; t < kTile; ++t) k_[d * kTile + t] = lines_[t * dim + d];
  }
}

bool BlockAttention::decode_token(std::int64_t token, std::int32_t lane) {
  const std::int32_t b = block_.sequence;
  if (source_ == TokenSource::tail) {
    if (p_.tail_place == TailPlace::separate) {
      decode_row(p_.tail, p_.q_indptr[b] + token, lane);
    } else {
      decode_row(p_.pool, slot_of_token(p_, b, p_.prefix_lens[b] + token), lane);
    }
    return true;
  }
  std::int64_t slot = 0;
  if (source_ == TokenSource::list) {
    const std::int32_t entry =
        p_.sparse.entries[(p_.q_indptr[b] + block_.node) * p_.sparse.stride + token];
    if (entry < 0) return false;
    slot = p_.sparse.unit == SparseUnit::slot ? std::int64_t{entry} : slot_of_token(p_, b, entry);
  } else {
    slot = slot_of_token(p_, b, token);
  }
  decode_row(p_.pool, slot, lane);
  return true;
}

bool BlockAttention::visible(std::size_t row, std::int64_t token) const {
  if (source_ != TokenSource::tail) return true;
  const Words& words = mask_[row / static_cast<std::size_t>(group_)];
  return ((words[static_cast<std::size_t>(token) / 64] >> (token % 64)) & 1U) != 0;
}

void BlockAttention::attend_tile(std::int64_t first, std::int32_t count, const bool* present) {
  const auto dim_k = static_cast<std::size_t>(p_.head_dim_k);
  const auto dim_v = static_cast<std::size_t>(p_.head_dim_v);
  for (std::size_t r = 0; r < rows_; ++r) {
    double score[kTile];
    dot_products(q_.data() + r * dim_k, k_.data(), dim_k, score);
    bool seen[kTile] = {};
    bool any = false;
    double peak = result_.peak[r];
    for (std::int32_t t = 0; t < count; ++t) {
      seen[t] = present[t] && visible(r, first + t);
      if (!seen[t]) continue;
      score[t] *= double{p_.scale};
      if (p_.logit_cap > 0.0F)
        score[t] = double{p_.logit_cap} * std::tanh(score[t] / double{p_.logit_cap});
      peak = (any || result_.total[r] != 0.0) ? std::max(peak, score[t]) : score[t];
      any = true;
    }
    if (!any) continue;
    double* value = result_.value(r, p_.head_dim_v);
    if (result_.total[r] != 0.0 && peak != result_.peak[r]) {
      const double keep = std::exp(result_.peak[r] - peak);
      result_.total[r] *= keep;
      for (std::size_t d = 0; d < dim_v; ++d) value[d] *= keep;
    }
    result_.peak[r] = peak;
    // A token that is not attended is never multiplied: its V may be NaN.
    double weights[kTile];
    const double* sources[kTile];
    std::size_t attended = 0;
    for (std::int32_t t = 0; t < count; ++t) {
      if (!seen[t]) continue;
      weights[attended] = std::exp(score[t] - peak);
      result_.total[r] += weights[attended];
      sources[attended++] = v_.data() + static_cast<std::size_t>(t) * dim_v;
    }
    add_weighted(weights, sources, attended, dim_v, value);
  }
}

PartialRows BlockAttention::run(std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = begin; first < end; first += kTile) {
    const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(kTile, end - first));
    bool present[kTile] = {};
    for (std::int32_t t = 0; t < count; ++t) present[t] = decode_token(first + t, t);
    transpose_keys();
    attend_tile(first, count, present);
  }
  return std::move(result_);
}

}  // namespace

PartialRows attend(const VerifyParams& params, const RowBlock& block, TokenSource source,
                   std::int64_t begin, std::int64_t end) {
  return BlockAttention(params, block, source).run(begin, end);
}

}  // namespace packstone::reference
