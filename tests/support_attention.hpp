// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Inputs for attention tests, with poison around every live value, and the comparison of results.

#include <packstone/float_formats.hpp>
#include <packstone/units.hpp>
#include <packstone/verify_checks.hpp>
#include <packstone/verify_params.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace packstone::test {

enum class TreeShape : std::uint8_t { chain, star, random, deep, binary };
enum class Placement : std::uint8_t { fresh, random };

/// A test case in words; `AttentionInputs` makes the arrays.
struct AttentionCase {
  AttentionKind kind{AttentionKind::mla};
  std::int32_t heads{8};
  std::int32_t kv_heads{1};
  std::int32_t head_dim{128};  ///< GQA only
  std::int32_t rope_dim{kMlaRopeDim};
  FloatType q_type{FloatType::bf16};
  KvType kv_type{KvType::bf16};
  FloatType out_type{FloatType::bf16};
  std::vector<std::int32_t> prefix{100};
  std::vector<std::int32_t> q_len{1};
  std::int32_t page_size{1};
  IndexType index{IndexType::int32};
  bool csr{false};
  bool rope_apart{false};
  Placement placement{Placement::random};
  MaskKind mask{MaskKind::parents};
  TreeShape tree{TreeShape::random};
  std::int32_t words_extra{0};  ///< words of each mask row beyond the needed ones
  TailPlace tail{TailPlace::pool};
  std::int32_t topk{0};  ///< > 0: sparse lists
  SparseUnit sparse_unit{SparseUnit::position};
  float scale{0.5F};
  float logit_cap{0.0F};
  float k_scale{1.0F};
  float v_scale{1.0F};
  float kv_spread{0.1F};  ///< standard deviation of KV values
  LseBase lse_base{LseBase::natural};
  bool want_lse{true};
  std::int32_t spare_pages{7};       ///< unused pages of the pool, all poison
  std::int32_t padded_sequences{0};  ///< sequences at the end without nodes
  std::int32_t padded_tokens{3};     ///< rows of q and out that belong to no sequence
  std::uint64_t seed{1};
};

/// Parents of `count` nodes in a given shape.
inline std::vector<std::int32_t> make_tree(TreeShape shape, std::int32_t count,
                                           std::mt19937_64* rng) {
  std::vector<std::int32_t> parents(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    std::int32_t parent = -1;
    if (i > 0) {
      switch (shape) {
        case TreeShape::chain:
          parent = i - 1;
          break;
        case TreeShape::star:
          parent = 0;
          break;
        case TreeShape::binary:
          parent = (i - 1) / 2;
          break;
        case TreeShape::deep:
          parent = std::max(0, i - 1 - static_cast<std::int32_t>((*rng)() % 3));
          break;
        // One node in eight is a further root.
        case TreeShape::random:
          parent = static_cast<std::int32_t>((*rng)() % static_cast<std::uint64_t>(i + 1)) - 1;
          break;
      }
    }
    parents[static_cast<std::size_t>(i)] = parent;
  }
  return parents;
}

/// Values of a normal distribution in some format, drawn quickly: from a table of 4,096.
class ValueTable {
 public:
  ValueTable(KvType type, double spread) : wide_(type == KvType::bf16 || type == KvType::fp16) {
    std::mt19937_64 rng(977);
    std::normal_distribution<double> normal(0.0, spread);
    for (auto& code : codes_) {
      const auto value = static_cast<float>(normal(rng));
      code = type == KvType::bf16   ? encode_bf16(value)
             : type == KvType::fp16 ? encode_fp16(value)
                                    : std::uint16_t{encode_e4m3(value)};
    }
  }
  void fill(std::uint8_t* to, std::int64_t count, std::mt19937_64* rng) const {
    for (std::int64_t i = 0; i < count; i += 5) {
      std::uint64_t bits = (*rng)();
      for (std::int64_t j = i; j < std::min(count, i + 5); ++j, bits >>= 12U)
        put(to, j, codes_[bits & 4095U]);
    }
  }

 private:
  void put(std::uint8_t* to, std::int64_t index, std::uint16_t code) const {
    if (wide_) {
      std::memcpy(to + 2 * index, &code, 2);
    } else {
      to[index] = static_cast<std::uint8_t>(code);
    }
  }
  bool wide_;
  std::uint16_t codes_[4096];
};

/// Host arrays of one case. Everything that must not be read is NaN (byte 0xFF) or an impossible
/// page; outputs start as NaN.
class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionCase& c) : c_(c), rng_(c.seed) {
    make_lengths();
    make_table();
    make_rows();
    make_masks();
    make_sparse();
    q.assign(static_cast<std::size_t>(std::int64_t{tokens} * q_token_bytes()), 0xFF);
    const ValueTable values(c.q_type == FloatType::bf16 ? KvType::bf16 : KvType::fp16, 1.0);
    const std::int32_t live = q_indptr.back();
    values.fill(q.data(), std::int64_t{live} * c.heads * head_dim_k(), &rng_);
    out.assign(static_cast<std::size_t>(std::int64_t{tokens} * out_token_bytes()), 0xFF);
    lse.assign(static_cast<std::size_t>(tokens * c.heads), std::numeric_limits<float>::quiet_NaN());
  }

  /// Parameters that point into this object's arrays.
  [[nodiscard]] VerifyParams params() {
    VerifyParams p;
    p.kind = c_.kind;
    p.heads = c_.heads;
    p.kv_heads = c_.kv_heads;
    p.head_dim_k = head_dim_k();
    p.head_dim_v = head_dim_v();
    p.rope_dim = c_.kind == AttentionKind::mla ? c_.rope_dim : 0;
    p.batch = static_cast<std::int32_t>(prefix_lens.size());
    p.tokens = tokens;
    p.prefix_lens = prefix_lens.data();
    p.q_indptr = q_indptr.data();
    p.q = {q.data(), c_.q_type, q_token_bytes(), head_dim_k() * bytes_of(c_.q_type)};
    p.kv_type = c_.kv_type;
    p.pool = rows_view(pool_k.data(), pool_rope.data(), pool_v.data(), pool_rows);
    p.table = {table.data(), c_.index, c_.page_size, table_stride,
               c_.csr ? table_indptr.data() : nullptr};
    p.tail_place = c_.tail;
    if (c_.tail == TailPlace::separate)
      p.tail = rows_view(tail_k.data(), tail_rope.data(), tail_v.data(), tokens);
    p.mask = {c_.mask, parents.data(), words.data(), words_stride};
    if (c_.topk > 0) p.sparse = {sparse.data(), sparse_stride, c_.topk, c_.sparse_unit};
    p.scale = c_.scale;
    p.logit_cap = c_.logit_cap;
    p.k_scale = c_.k_scale;
    p.v_scale = c_.v_scale;
    p.output = {out.data(),
                c_.out_type,
                out_token_bytes(),
                head_dim_v() * bytes_of(c_.out_type),
                c_.want_lse ? lse.data() : nullptr,
                std::int64_t{4} * c_.heads,
                c_.lse_base};
    return p;
  }

  /// The same call with float output into `exact_out` and `exact_lse`, for the oracle.
  [[nodiscard]] VerifyParams oracle_params(std::vector<float>* exact_out,
                                           std::vector<float>* exact_lse) {
    VerifyParams p = params();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    exact_out->assign(static_cast<std::size_t>(std::int64_t{tokens} * c_.heads * head_dim_v()),
                      nan);
    exact_lse->assign(static_cast<std::size_t>(tokens * c_.heads), nan);
    p.output = {exact_out->data(),
                FloatType::fp32,
                std::int64_t{4} * c_.heads * head_dim_v(),
                std::int64_t{4} * head_dim_v(),
                exact_lse->data(),
                std::int64_t{4} * c_.heads,
                c_.lse_base};
    return p;
  }

  [[nodiscard]] HostView view() const {
    HostView v;
    v.prefix_lens = {prefix_lens.data(), static_cast<std::int64_t>(prefix_lens.size())};
    v.q_indptr = {q_indptr.data(), static_cast<std::int64_t>(q_indptr.size())};
    v.table = {table.data(), static_cast<std::int64_t>(table.size()) / bytes_of(c_.index)};
    v.table_indptr = {table_indptr.data(), static_cast<std::int64_t>(table_indptr.size())};
    v.parents = {parents.data(), static_cast<std::int64_t>(parents.size())};
    v.words = {words.data(), static_cast<std::int64_t>(words.size())};
    v.sparse = {sparse.data(), static_cast<std::int64_t>(sparse.size())};
    return v;
  }

  [[nodiscard]] const AttentionCase& description() const { return c_; }
  [[nodiscard]] std::int32_t head_dim_k() const {
    return c_.kind == AttentionKind::mla ? kMlaLatentDim + c_.rope_dim : c_.head_dim;
  }
  [[nodiscard]] std::int32_t head_dim_v() const {
    return c_.kind == AttentionKind::mla ? kMlaLatentDim : c_.head_dim;
  }
  [[nodiscard]] std::int64_t k_row_bytes() const {
    if (c_.kind == AttentionKind::gqa) return c_.kv_heads * value_bytes(c_.kv_type, c_.head_dim);
    return mla_latent_bytes(c_.kv_type) + (rope_inside() ? mla_rope_bytes(c_.kv_type) : 0);
  }
  [[nodiscard]] std::int64_t v_row_bytes() const {
    return c_.kind == AttentionKind::gqa ? k_row_bytes() : 0;
  }
  [[nodiscard]] std::int64_t rope_row_bytes() const {
    return has_rope_apart() ? mla_rope_bytes(c_.kv_type) : 0;
  }
  [[nodiscard]] std::int64_t q_token_bytes() const {
    return c_.heads * head_dim_k() * bytes_of(c_.q_type);
  }
  [[nodiscard]] std::int64_t out_token_bytes() const {
    return c_.heads * head_dim_v() * bytes_of(c_.out_type);
  }
  [[nodiscard]] std::int64_t slot_of_token(std::int32_t b, std::int64_t token) const {
    const std::int64_t first =
        c_.csr ? std::int64_t{table_indptr[static_cast<std::size_t>(b)]} : b * table_stride;
    return entry(first + token / c_.page_size) * c_.page_size + token % c_.page_size;
  }

  /// Moves every page to another place of the pool, as a defragmentation does; old places become
  /// poison.
  void permute_pages() {
    std::vector<std::int64_t> to(static_cast<std::size_t>(pool_rows / c_.page_size));
    std::iota(to.begin(), to.end(), std::int64_t{0});
    std::shuffle(to.begin() + 1, to.end(), rng_);
    permute_buffer(&pool_k, k_row_bytes() * c_.page_size, to);
    permute_buffer(&pool_rope, rope_row_bytes() * c_.page_size, to);
    permute_buffer(&pool_v, v_row_bytes() * c_.page_size, to);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(table.size()) / bytes_of(c_.index);
         ++i) {
      const std::int64_t page = entry(i);
      if (page >= 0 && page < static_cast<std::int64_t>(to.size()))
        set_entry(i, to[static_cast<std::size_t>(page)]);
    }
    if (c_.sparse_unit == SparseUnit::slot) {
      for (auto& slot : sparse) {
        if (slot < 0 || slot >= pool_rows) continue;
        slot = static_cast<std::int32_t>(
            to[static_cast<std::size_t>(slot / c_.page_size)] * c_.page_size + slot % c_.page_size);
      }
    }
  }

  std::int64_t entry(std::int64_t index) const {
    if (c_.index == IndexType::int64) return read<std::int64_t>(index);
    return read<std::int32_t>(index);
  }
  void set_entry(std::int64_t index, std::int64_t page) {
    if (c_.index == IndexType::int64) {
      std::memcpy(table.data() + 8 * index, &page, 8);
    } else {
      const auto narrow = static_cast<std::int32_t>(page);
      std::memcpy(table.data() + 4 * index, &narrow, 4);
    }
  }

  static constexpr std::int32_t kImpossiblePage = 0x7FFFFFF0;

  std::int32_t tokens{0};
  std::int64_t pool_rows{0};
  std::int64_t table_stride{0};
  std::int64_t words_stride{0};
  std::int64_t sparse_stride{0};
  std::vector<std::int32_t> prefix_lens, q_indptr, table_indptr, parents, sparse;
  std::vector<std::uint64_t> words;
  std::vector<std::uint8_t> q, pool_k, pool_rope, pool_v, tail_k, tail_rope, tail_v, table, out;
  std::vector<float> lse;

 private:
  template <typename T>
  T read(std::int64_t index) const {
    T value;
    std::memcpy(&value, table.data() + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  [[nodiscard]] bool has_rope_apart() const {
    return c_.kind == AttentionKind::mla && c_.rope_dim > 0 && c_.rope_apart;
  }
  [[nodiscard]] bool rope_inside() const { return c_.rope_dim > 0 && !c_.rope_apart; }

  KvRows rows_view(std::uint8_t* k, std::uint8_t* rope, std::uint8_t* v, std::int64_t rows) const {
    const std::int64_t head = value_bytes(c_.kv_type, c_.head_dim);
    const bool gqa = c_.kind == AttentionKind::gqa;
    return {k,
            has_rope_apart() ? rope : nullptr,
            gqa ? v : nullptr,
            k_row_bytes(),
            rope_row_bytes(),
            v_row_bytes(),
            gqa ? head : 0,
            gqa ? head : 0,
            rows};
  }

  void make_lengths() {
    prefix_lens = c_.prefix;
    q_indptr = {0};
    for (const std::int32_t q_len : c_.q_len) q_indptr.push_back(q_indptr.back() + q_len);
    for (std::int32_t i = 0; i < c_.padded_sequences; ++i) {
      prefix_lens.push_back(0);
      q_indptr.push_back(q_indptr.back());
    }
    tokens = q_indptr.back() + c_.padded_tokens;
  }

  [[nodiscard]] std::int64_t pages_of(std::size_t b) const {
    const std::int64_t tail = c_.tail == TailPlace::pool ? q_indptr[b + 1] - q_indptr[b] : 0;
    return pages_for(prefix_lens[b] + tail, c_.page_size);
  }

  void make_table() {
    std::int64_t pages = 0;
    table_indptr = {0};
    for (std::size_t b = 0; b < prefix_lens.size(); ++b) {
      pages += pages_of(b);
      table_indptr.push_back(static_cast<std::int32_t>(pages));
      table_stride = std::max(table_stride, pages_of(b));
    }
    table_stride += c_.csr ? 0 : 2;
    const auto batch = static_cast<std::int64_t>(prefix_lens.size());
    const std::int64_t entries = c_.csr ? pages : batch * table_stride;
    table.assign(static_cast<std::size_t>((entries + 1) * bytes_of(c_.index)), 0);
    table.resize(static_cast<std::size_t>(entries * bytes_of(c_.index)));
    for (std::int64_t i = 0; i < entries; ++i) set_entry(i, kImpossiblePage);
    const std::int64_t pool_pages = pages + 1 + c_.spare_pages;
    pool_rows = pool_pages * c_.page_size;
    std::vector<std::int64_t> ids(static_cast<std::size_t>(pool_pages - 1));
    std::iota(ids.begin(), ids.end(), std::int64_t{1});
    if (c_.placement == Placement::random) std::shuffle(ids.begin(), ids.end(), rng_);
    std::size_t next = 0;
    for (std::size_t b = 0; b < prefix_lens.size(); ++b) {
      const std::int64_t first =
          c_.csr ? std::int64_t{table_indptr[b]} : static_cast<std::int64_t>(b) * table_stride;
      for (std::int64_t i = 0; i < pages_of(b); ++i) set_entry(first + i, ids[next++]);
    }
  }

  void make_rows() {
    const auto bytes = [](std::int64_t rows, std::int64_t row) {
      return static_cast<std::size_t>(rows * row);
    };
    pool_k.assign(bytes(pool_rows, k_row_bytes()), 0xFF);
    pool_rope.assign(bytes(pool_rows, rope_row_bytes()), 0xFF);
    pool_v.assign(bytes(pool_rows, v_row_bytes()), 0xFF);
    const ValueTable values(c_.kv_type, double{c_.kv_spread});
    const ValueTable rope(c_.kv_type == KvType::e4m3_tile ? KvType::bf16 : c_.kv_type,
                          double{c_.kv_spread});
    const ValueTable full_range(KvType::e4m3, 100.0);
    const ValueTable& main = c_.kv_type == KvType::e4m3_tile ? full_range : values;
    for (std::size_t b = 0; b < prefix_lens.size(); ++b) {
      const std::int32_t q_count = q_indptr[b + 1] - q_indptr[b];
      const std::int64_t length = prefix_lens[b] + (c_.tail == TailPlace::pool ? q_count : 0);
      for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t slot = slot_of_token(static_cast<std::int32_t>(b), t);
        fill_row(pool_k.data() + slot * k_row_bytes(), pool_rope.data() + slot * rope_row_bytes(),
                 pool_v.data() + slot * v_row_bytes(), main, rope);
      }
    }
    if (c_.tail != TailPlace::separate) return;
    tail_k.assign(bytes(tokens, k_row_bytes()), 0xFF);
    tail_rope.assign(bytes(tokens, rope_row_bytes()), 0xFF);
    tail_v.assign(bytes(tokens, v_row_bytes()), 0xFF);
    for (std::int64_t t = 0; t < q_indptr.back(); ++t) {
      fill_row(tail_k.data() + t * k_row_bytes(), tail_rope.data() + t * rope_row_bytes(),
               tail_v.data() + t * v_row_bytes(), main, rope);
    }
  }

  void fill_row(std::uint8_t* k, std::uint8_t* rope, std::uint8_t* v, const ValueTable& main,
                const ValueTable& rope_values) {
    if (c_.kind == AttentionKind::gqa) {
      main.fill(k, std::int64_t{c_.kv_heads} * c_.head_dim, &rng_);
      main.fill(v, std::int64_t{c_.kv_heads} * c_.head_dim, &rng_);
      return;
    }
    main.fill(k, kMlaLatentDim, &rng_);
    if (c_.kv_type == KvType::e4m3_tile) {
      for (std::int32_t t = 0; t < kMlaTiles; ++t) {
        const float scale =
            c_.kv_spread / 100.0F * (0.5F + static_cast<float>(rng_() % 1024U) / 1024.0F);
        std::memcpy(k + kMlaTileScaleOffset + 4 * t, &scale, 4);
      }
    }
    if (c_.rope_dim == 0) return;
    rope_values.fill(rope_inside() ? k + mla_latent_bytes(c_.kv_type) : rope, kMlaRopeDim, &rng_);
  }

  void make_masks() {
    parents.assign(static_cast<std::size_t>(tokens), kImpossiblePage);
    std::int32_t widest = 0;
    for (std::size_t b = 0; b + 1 < q_indptr.size(); ++b) {
      const std::int32_t count = q_indptr[b + 1] - q_indptr[b];
      const auto tree = make_tree(c_.tree, count, &rng_);
      std::copy(tree.begin(), tree.end(), parents.begin() + q_indptr[b]);
      widest = std::max(widest, count);
    }
    words_stride = std::max(1, (widest + 63) / 64) + c_.words_extra;
    // Bits past the live nodes are garbage on purpose: no one may read a meaning into them.
    words.assign(static_cast<std::size_t>(tokens * words_stride), ~std::uint64_t{0});
    for (std::size_t b = 0; b + 1 < q_indptr.size(); ++b) {
      const std::int32_t first = q_indptr[b];
      const std::int32_t count = q_indptr[b + 1] - first;
      for (std::int32_t i = 0; i < count; ++i) {
        for (std::int32_t j = 0; j < count; ++j) set_bit(first + i, j, false);
        for (std::int32_t j = i; j >= 0; j = parents[static_cast<std::size_t>(first + j)])
          set_bit(first + i, j, true);
      }
    }
  }

 public:
  void set_bit(std::int32_t token, std::int32_t node, bool value) {
    std::uint64_t& word = words[static_cast<std::size_t>(token * words_stride + node / 64)];
    const std::uint64_t bit = std::uint64_t{1} << (node % 64);
    word = value ? (word | bit) : (word & ~bit);
  }

 private:
  void make_sparse() {
    if (c_.topk == 0) return;
    sparse_stride = c_.topk + 1;
    sparse.assign(static_cast<std::size_t>(tokens * sparse_stride), kImpossiblePage);
    for (std::size_t b = 0; b + 1 < q_indptr.size(); ++b) {
      for (std::int32_t t = q_indptr[b]; t < q_indptr[b + 1]; ++t) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(prefix_lens[b]));
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), rng_);
        for (std::int32_t i = 0; i < c_.topk; ++i) {
          // One entry in seven is none, as is everything past the prefix.
          const bool none = rng_() % 7 == 0 || static_cast<std::size_t>(i) >= ids.size();
          std::int64_t value = none ? -1 : ids[static_cast<std::size_t>(i)];
          if (!none && c_.sparse_unit == SparseUnit::slot)
            value = slot_of_token(static_cast<std::int32_t>(b), value);
          sparse[static_cast<std::size_t>(t * sparse_stride + i)] =
              static_cast<std::int32_t>(value);
        }
      }
    }
  }

  static void permute_buffer(std::vector<std::uint8_t>* buffer, std::int64_t page_bytes,
                             const std::vector<std::int64_t>& to) {
    if (page_bytes == 0) return;
    std::vector<std::uint8_t> moved(buffer->size(), 0xFF);
    for (std::size_t page = 0; page < to.size(); ++page) {
      std::memcpy(moved.data() + to[page] * page_bytes,
                  buffer->data() + static_cast<std::int64_t>(page) * page_bytes,
                  static_cast<std::size_t>(page_bytes));
    }
    buffer->swap(moved);
  }

  AttentionCase c_;
  std::mt19937_64 rng_;
};

/// Decodes a 16-bit or 32-bit output tensor.
inline std::vector<float> decode_output(const std::vector<std::uint8_t>& bytes, FloatType type) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(bytes_of(type)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    if (type == FloatType::fp32) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    values[i] = type == FloatType::bf16 ? decode_bf16(half) : decode_fp16(half);
  }
  return values;
}

struct Tolerance {
  double absolute{8e-4};
  double relative{2.01 / 128.0};
  double cosine{5e-6};  ///< bound of 1 - 2 sum(ab) / sum(a^2 + b^2)
};

/// Empty when `got` agrees with `want`, else what is wrong first. Positions of NaN and infinity are
/// compared before any value, because a comparison of errors is false for NaN and would pass it.
inline std::string difference(const std::vector<float>& got, const std::vector<float>& want,
                              const Tolerance& tolerance = {}) {
  if (got.size() != want.size())
    return "sizes " + std::to_string(got.size()) + " and " + std::to_string(want.size());
  const auto at = [&](std::size_t i) {
    return "at " + std::to_string(i) + " got " + std::to_string(got[i]) + ", want " +
           std::to_string(want[i]);
  };
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same_kind = std::isfinite(want[i]) ? std::isfinite(got[i])
                           : std::isnan(want[i])  ? std::isnan(got[i])
                                                  : got[i] == want[i];
    if (!same_kind) return "not finite alike: " + at(i);
  }
  double product = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(want[i])) continue;
    const double a = double{got[i]};
    const double b = double{want[i]};
    if (std::fabs(a - b) > tolerance.absolute + tolerance.relative * std::fabs(b))
      return "too far: " + at(i);
    product += a * b;
    squares += a * a + b * b;
  }
  if (squares == 0.0) return {};
  const double cosine = 1.0 - 2.0 * product / squares;
  return cosine <= tolerance.cosine ? std::string{}
                                    : "cosine difference " + std::to_string(cosine * 1e6) + "e-6";
}

/// lse within 1e-5 relative, and absolute near zero.
inline constexpr Tolerance kLseTolerance{1e-5, 1e-5, 1e-9};

}  // namespace packstone::test
