// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/kv_model.hpp>

#include <algorithm>
#include <vector>

namespace packstone::sim {

Bytes KvModel::row_bytes() const {
  return kind == AttentionKind::mla ? mla_row_bytes(type) : kv_heads * value_bytes(type, head_dim);
}

Bytes KvModel::token_bytes() const {
  return row_bytes() * buffers();
}

PoolLayout KvModel::layout(std::int64_t page_size, std::int32_t model_layers) const {
  if (kind == AttentionKind::gqa) {
    return gqa_layout({.layers = model_layers,
                       .page_size = page_size,
                       .type = type,
                       .kv_heads = kv_heads,
                       .head_dim = head_dim});
  }
  MlaPoolOptions options{.layers = model_layers, .page_size = page_size, .type = type};
  if (indexer_bytes > 0) {
    options.indexer_scale_bytes = 4;
    options.indexer_key_bytes = indexer_bytes - 4;
  }
  return mla_layout(options);
}

std::span<const KvModel> kv_models() {
  constexpr auto kMla = AttentionKind::mla;
  constexpr auto kGqa = AttentionKind::gqa;
  // Both MLA models have 64 query heads, 8 of them on each of eight GPUs; GLM-5 has indexer keys of
  // 128 bytes with a 4-byte scale beside.
  static const std::vector<KvModel> models = {
      {.name = "glm-5", .kind = kMla, .layers = 78, .heads = 8, .indexer_bytes = 132},
      {.name = "glm-5-fp8",
       .kind = kMla,
       .type = KvType::e4m3_tile,
       .layers = 78,
       .heads = 8,
       .indexer_bytes = 132},
      {.name = "kimi-k2", .kind = kMla, .layers = 61, .heads = 8},
      {.name = "kimi-k2-fp8", .kind = kMla, .type = KvType::e4m3_tile, .layers = 61, .heads = 8},
      {.name = "llama-3-70b-tp1", .kind = kGqa, .layers = 80, .heads = 64, .kv_heads = 8},
      {.name = "llama-3-70b-tp8", .kind = kGqa, .layers = 80, .heads = 8, .kv_heads = 1},
  };
  return models;
}

const KvModel& kv_model(const std::string& name) {
  const auto found = std::ranges::find(kv_models(), name, &KvModel::name);
  if (found != kv_models().end()) return *found;
  std::string names;
  for (const KvModel& model : kv_models()) names += (names.empty() ? "" : ", ") + model.name;
  throw InvalidArgument("model " + name + " is none of " + names);
}

}  // namespace packstone::sim
