// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Models whose KV geometry a study can take on: what a token keeps in each layer on one GPU.

#include <packstone/pool_layout.hpp>
#include <packstone/verify_params.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace packstone::sim {

struct KvModel {
  std::string name;
  AttentionKind kind{AttentionKind::mla};
  KvType type{KvType::bf16};
  std::int32_t layers{1};
  std::int32_t heads{8};       ///< query heads on one GPU
  std::int32_t kv_heads{1};    ///< on one GPU
  std::int32_t head_dim{128};  ///< GQA only
  Bytes indexer_bytes{0};      ///< page-shaped keys and scales that move along, a token and layer

  /// What lies together: an MLA row, or the K (or V) rows of a token's kv heads.
  [[nodiscard]] Bytes row_bytes() const;
  /// Bytes that attention reads of a token in one layer.
  [[nodiscard]] Bytes token_bytes() const;
  /// Buffers of a layer that attention reads: 1 for MLA, 2 for GQA.
  [[nodiscard]] std::int32_t buffers() const { return kind == AttentionKind::mla ? 1 : 2; }
  /// The pool of `model_layers` of its layers.
  [[nodiscard]] PoolLayout layout(std::int64_t page_size, std::int32_t model_layers) const;
};

/// glm-5, glm-5-fp8, kimi-k2, kimi-k2-fp8 (tensor-parallel 8), llama-3-70b-tp1, llama-3-70b-tp8.
[[nodiscard]] std::span<const KvModel> kv_models();
/// Throws InvalidArgument naming those that there are.
[[nodiscard]] const KvModel& kv_model(const std::string& name);

}  // namespace packstone::sim
