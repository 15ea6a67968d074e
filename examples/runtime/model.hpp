// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A decoder of the DeepSeek kind, small, with random weights: attention is MLA in its absorbed
/// form, so a token keeps one row of 512 latent and 64 rope values a layer, and W_UK and W_UV are
/// applied to the query and to the output (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
///
/// Everything here works on one token at a time, in the same order of operations whoever calls, so
/// a token's values do not depend on what else is in its batch.

#include <cstdint>
#include <span>
#include <vector>

namespace runtime {

using Token = std::int32_t;

inline constexpr int kLatent = 512;  ///< also the width of the attention output of a head
inline constexpr int kRope = 64;
inline constexpr int kRow = kLatent + kRope;  ///< bf16 values of a KV row, and of a query head

struct ModelConfig {
  int layers{3};
  int hidden{64};
  int heads{4};
  int nope_dim{32};   ///< of a query head before absorption
  int value_dim{32};  ///< of an output head after absorption
  int feed_forward{128};
  int vocabulary{211};
  std::uint64_t seed{1};
};

class Model {
 public:
  explicit Model(const ModelConfig& config);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// Of the attention scores.
  [[nodiscard]] float scale() const;

  /// The residual stream of a token that has just been read: [hidden].
  void embed(Token token, std::span<float> stream) const;
  /// What attention needs of the token at `position`.
  /// @param query  [heads, kRow] bf16
  /// @param row    [kRow] bf16, to be kept
  void project(int layer, std::span<const float> stream, std::int64_t position,
               std::span<std::uint16_t> query, std::span<std::uint16_t> row) const;
  /// Adds the attention output, [heads, kLatent], and then the feed-forward part to the stream.
  void finish_layer(int layer, std::span<const float> attended, std::span<float> stream) const;
  /// The most likely next token; the lowest of equals.
  [[nodiscard]] Token next(std::span<const float> stream) const;

 private:
  struct Layer {
    std::vector<float> query;     // [hidden, heads * (nope + kRope)]
    std::vector<float> absorb;    // [heads, nope, kLatent]: W_UK
    std::vector<float> compress;  // [hidden, kRow]
    std::vector<float> expand;    // [heads, kLatent, value]: W_UV
    std::vector<float> output;    // [heads * value, hidden]
    std::vector<float> gate;      // [hidden, feed_forward]
    std::vector<float> up;        // [hidden, feed_forward]
    std::vector<float> down;      // [feed_forward, hidden]
  };

  ModelConfig config_;
  std::vector<float> embedding_;  // [vocabulary, hidden]
  std::vector<float> head_;       // [hidden, vocabulary]
  std::vector<Layer> layers_;
};

}  // namespace runtime
