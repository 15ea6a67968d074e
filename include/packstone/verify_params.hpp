// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a tree-verify attention call is told: plain data without CUDA, read by `reference_verify`
/// on the CPU (pointers to host memory) and by the kernels (pointers to device memory). `validate`
/// says what a legal value is.
///
/// ## What is computed
/// Sequence b has `prefix_lens[b]` tokens of prefix and q_len = q_indptr[b + 1] - q_indptr[b] query
/// tokens, the *nodes* of its tree; node j is query token q_indptr[b] + j. A node attends the whole
/// prefix (or, with sparse lists, the listed tokens instead) and those nodes of its own tree that
/// the mask shows it, which are the *tail*. With K_t, V_t the rows of the attended tokens, and for
/// each head h (with its kv head h / (heads / kv_heads)):
///
///     s_t = scale * dot(q_h, K_t);  if logit_cap > 0: s_t = logit_cap * tanh(s_t / logit_cap)
///     lse = log(sum_t exp(s_t));    out_h = sum_t exp(s_t - lse) * V_t
///
/// A node that attends nothing has out = 0 and lse = -inf in every base. So decode is q_len 1, a
/// chain is MaskKind::causal, and a query without a tail at all is TailPlace::none. Keys that are
/// not attended are never multiplied: NaN in them, in padded table entries or behind a tensor's
/// live part does not reach the output.
///
/// ## Units
/// Strides of q, KV rows, out and lse are in bytes, 64 bits, and may exceed the dense value.
/// Strides of tables and masks are in entries. Pointers to KV rows, q and out are 16-byte aligned
/// and their strides multiples of 16.

#include <packstone/kv_layout.hpp>

#include <cstdint>

namespace packstone {

/// A query tensor: value d of (token t, head h) at data + t * stride_token + h * stride_head + d *
/// bytes_of(type).
struct QueryView {
  const void* data{
      nullptr};  ///< [tokens, heads, head_dim_k]; 16-byte aligned; null only when tokens = 0
  FloatType type{
      FloatType::bf16};          ///< bf16 or fp16; equal to the KV type where that is bf16 or fp16
  std::int64_t stride_token{0};  ///< bytes, multiple of 16
  std::int64_t stride_head{0};   ///< bytes, multiple of 16
};

/// Rows by number: the pool (row = slot) or a separate tail tensor (row = query token). Part x of
/// row r, for kv head g, is at x + r * x_stride_row + g * x_stride_head.
struct KvRows {
  /// [rows, kv_heads, ...]; MLA: the latent part, GQA: K. 16-byte aligned. Address of row 0.
  const void* k{nullptr};
  /// [rows, 64]; MLA: the rope part, apart. 16-byte aligned. Null: it lies in the row of `k`, right
  /// behind the latent part (at mla_latent_bytes(type)), or there is none (rope_dim = 0).
  const void* k_rope{nullptr};
  /// [rows, kv_heads, head_dim_v]; GQA: V. 16-byte aligned. Null for MLA, whose V is the latent
  /// part.
  const void* v{nullptr};
  std::int64_t k_stride_row{0};       ///< bytes, multiple of 16; e.g. mla_row_bytes(type)
  std::int64_t k_rope_stride_row{0};  ///< bytes, multiple of 16; ignored when k_rope is null
  std::int64_t v_stride_row{0};       ///< bytes, multiple of 16; ignored when v is null
  std::int64_t k_stride_head{0};      ///< bytes, multiple of 16; ignored when kv_heads = 1
  std::int64_t v_stride_head{0};  ///< bytes, multiple of 16; ignored when kv_heads = 1 or v is null
  std::int64_t rows{0};           ///< rows that exist; for the pool: pages * page_size
};

/// Which slot holds token t of sequence b: entry e = t / page_size of b's row is a page id, and the
/// slot is page * page_size + t % page_size. Token-index rows are tables with page_size = 1. Row b
/// starts at entries + b * row_stride (padded rows) or, when indptr is not null, at entries +
/// indptr[b] (CSR). A row needs ceil(length / page_size) entries and no more are read, where length
/// is prefix_lens[b], plus q_len with TailPlace::pool.
struct TokenTable {
  const void* entries{
      nullptr};  ///< [batch, row_stride] or [indptr[batch]]; null only when no entry is ever read
  IndexType type{IndexType::int32};
  std::int32_t page_size{1};  ///< tokens, >= 1, any value
  std::int64_t row_stride{
      0};  ///< entries between rows, and the entries that each has; ignored with CSR
  const std::int32_t* indptr{
      nullptr};  ///< [batch + 1], non-decreasing, in entries; null: padded rows
};

enum class MaskKind : std::uint8_t {
  causal,   ///< node i sees nodes 0..i
  parents,  ///< node i sees itself and its chain of parents
  words,    ///< node i sees node j where bit j of its row is set; its own bit is not implied
  full,     ///< every node sees every node
};

/// Who sees whom in the tail.
struct TreeMask {
  MaskKind kind{MaskKind::causal};
  /// [tokens] for MaskKind::parents: number of the parent within the same tree, less than the
  /// node's own, or -1 for a root, which sees the prefix and itself. A tree may have many roots.
  /// Indexed by query token.
  const std::int32_t* parents{nullptr};
  /// [tokens, words_stride] for MaskKind::words: bit j % 64 of word j / 64 is node j of the same
  /// tree. 8-byte aligned. Bits from q_len up are ignored. Words from ceil(q_len / 64) of the row
  /// up are not read, so a buffer sized for a larger tree works unchanged.
  const std::uint64_t* words{nullptr};
  std::int64_t words_stride{0};  ///< words between rows, >= ceil(q_len / 64) of every sequence
};

/// Where the KV rows of the nodes are.
enum class TailPlace : std::uint8_t {
  pool,      ///< node j is token prefix_lens[b] + j of the table
  separate,  ///< node j is row q_indptr[b] + j of VerifyParams::tail
  none,      ///< no tail: nodes attend the prefix (or the lists) only and the mask is ignored
};

enum class SparseUnit : std::uint8_t {
  position,  ///< entries are token numbers of the prefix, 0 <= e < prefix_lens[b], looked up in the
             ///< table
  slot,      ///< entries are slots of the pool, 0 <= e < pool.rows
};

/// Top-k lists that stand in for the prefix: query token t attends the entries >= 0 of its list, in
/// any order; -1 is none and may stand anywhere; an entry named twice counts twice. The tail is
/// attended besides, as TailPlace says.
struct SparseLists {
  const std::int32_t* entries{nullptr};  ///< [tokens, stride]; null: dense prefix
  std::int64_t stride{0};                ///< entries between rows, >= topk
  std::int32_t topk{0};                  ///< entries of each row
  SparseUnit unit{SparseUnit::position};
};

enum class LseBase : std::uint8_t { natural, two };

/// Results. Value d of (token t, head h) at out + t * stride_token + h * stride_head + d *
/// bytes_of(type). Exactly the rows of the query tokens that belong to a sequence (q_indptr[0] to
/// q_indptr[batch]) are written.
struct OutputView {
  void* out{nullptr};  ///< [tokens, heads, head_dim_v]; 16-byte aligned; null only when tokens = 0
  FloatType type{FloatType::bf16};
  std::int64_t stride_token{0};  ///< bytes, multiple of 16
  std::int64_t stride_head{0};   ///< bytes, multiple of 16
  float* lse{nullptr};  ///< [tokens, heads] or null: not wanted; the output is the same either way
  std::int64_t lse_stride_token{0};  ///< bytes, multiple of 4; heads are adjacent floats
  LseBase lse_base{LseBase::natural};
};

enum class AttentionKind : std::uint8_t {
  mla,  ///< one kv head, head_dim_k = 512 + rope_dim, head_dim_v = 512, V is the latent part of K
  gqa,  ///< kv_heads divides heads, head_dim_k = head_dim_v, rope_dim = 0
};

/// One attention call. Everything but the pointed-to data is read when the call is made; the
/// kernels read lengths, tables, masks and lists from memory when they run, so a captured graph
/// sees their later values.
struct VerifyParams {
  AttentionKind kind{AttentionKind::mla};
  std::int32_t heads{0};       ///< query heads on this GPU, 1 to 128
  std::int32_t kv_heads{1};    ///< divides heads; 1 for MLA
  std::int32_t head_dim_k{0};  ///< values of a q or K row
  std::int32_t head_dim_v{0};  ///< values of a V or output row
  std::int32_t rope_dim{0};    ///< MLA: 64 or 0, the last values of q; GQA: 0

  std::int32_t batch{0};   ///< sequences, padding included; padded ones have q_len = 0
  std::int32_t tokens{0};  ///< rows of q and out, padding included; q_indptr[batch] <= tokens
  /// [batch], tokens, >= 0; null only when batch = 0.
  const std::int32_t* prefix_lens{nullptr};
  /// [batch + 1], non-decreasing, query tokens; equal neighbours are a sequence without nodes.
  const std::int32_t* q_indptr{nullptr};

  QueryView q;
  KvType kv_type{KvType::bf16};  ///< of the pool and of the separate tail
  KvRows pool;
  TokenTable table;
  TailPlace tail_place{TailPlace::pool};
  KvRows tail;  ///< for TailPlace::separate; [tokens] rows
  TreeMask mask;
  SparseLists sparse;

  float scale{1.0F};      ///< of the scores, finite, e.g. 1 / sqrt(192)
  float logit_cap{0.0F};  ///< 0: none; else positive and finite, applied to the scaled score
  float k_scale{1.0F};    ///< value = stored * k_scale, for KvType::e4m3; also of V for MLA
  float v_scale{1.0F};    ///< likewise for V, GQA only

  OutputView output;
};

/// Static maxima, from which a plan's scratch size follows. A call that passes a maximum is refused
/// where the host can see it; lengths that only the device sees are the caller's promise.
struct VerifyBounds {
  std::int32_t batch_max{0};   ///< sequences
  std::int32_t tokens_max{0};  ///< query tokens of the whole batch
  std::int32_t q_len_max{0};   ///< query tokens of one sequence
  std::int32_t length_max{0};  ///< prefix + q_len of one sequence (or topk + q_len), tokens
};

/// Whether a call makes its schedule or takes what an earlier one has left in the workspace.
enum class ScheduleUse : std::uint8_t {
  make,
  /// The layers of a model after the first: the call before with this workspace had the same
  /// options and shape (heads, dims, types, batch, tokens, page size, tail place, kind of mask, use
  /// of lists and their topk), and q_indptr, prefix_lens, the mask and where sequences begin in the
  /// table (indptr, or row_stride) have the same contents as then. Queries, KV rows and their
  /// scales, table and list entries, other strides, scale, cap and outputs may be others. Else the
  /// result is undefined, and reads may go past the arrays.
  reuse,
};

/// How the work of a call is cut. Results are the same bits from run to run whatever is chosen.
struct VerifyPlanOptions {
  VerifyBounds bounds;
  /// Pieces that a sequence's tokens are cut into: 0 leaves it to the schedule, n > 0 asks for n,
  /// of which those without work stay idle.
  std::int32_t splits{0};
  /// Cut at fixed multiples of tokens, so that the bits of a sequence's output do not depend on its
  /// neighbours.
  bool batch_invariant{false};
  /// For batch_invariant: tokens of a piece, a multiple of 64, or 0 for the policy's own.
  std::int32_t split_tokens{0};
};

}  // namespace packstone
