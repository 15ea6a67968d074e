// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <packstone/float_formats.hpp>

#include <algorithm>
#include <cmath>
#include <random>

namespace runtime {
namespace {

/// Uniform values of the given standard deviation; no distribution of the library, whose values
/// differ from one standard library to the next.
std::vector<float> weights(std::mt19937_64& random, int rows, int columns) {
  const double deviation = 1.0 / std::sqrt(static_cast<double>(rows));
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (float& value : values) {
    const double uniform = static_cast<double>(random() >> 11U) * 0x1p-53;
    value = static_cast<float>((2.0 * uniform - 1.0) * std::sqrt(3.0) * deviation);
  }
  return values;
}

/// out += in x matrix [in, out]; row by row, so that the compiler can use vectors in a fixed order.
void multiply_add(std::span<const float> in, std::span<const float> matrix, std::span<float> out) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float* row = matrix.data() + i * out.size();
    const float value = in[i];
    for (std::size_t o = 0; o < out.size(); ++o) out[o] += value * row[o];
  }
}

std::vector<float> multiply(std::span<const float> in, std::span<const float> matrix) {
  std::vector<float> out(matrix.size() / in.size(), 0.0F);
  multiply_add(in, matrix, out);
  return out;
}

std::vector<float> normalised(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(values.size()) + 1e-6));
  std::vector<float> out(values.begin(), values.end());
  for (float& value : out) value *= factor;
  return out;
}

/// Rotary position embedding of [kRope] values (Su et al., "RoFormer", 2021), pairs of neighbours.
void rotate(std::span<float> values, std::int64_t position) {
  for (int i = 0; i < kRope / 2; ++i) {
    const double angle =
        static_cast<double>(position) * std::pow(10000.0, -2.0 * i / static_cast<double>(kRope));
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    float& a = values[static_cast<std::size_t>(2 * i)];
    float& b = values[static_cast<std::size_t>(2 * i + 1)];
    const float rotated = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = rotated;
  }
}

std::size_t size(int count) {
  return static_cast<std::size_t>(count);
}

}  // namespace

Model::Model(const ModelConfig& config) : config_(config) {
  std::mt19937_64 random(config.seed);
  const int c = config.hidden;
  embedding_ = weights(random, 1, config.vocabulary * c);
  head_ = weights(random, c, config.vocabulary);
  for (int i = 0; i < config.layers; ++i) {
    Layer layer;
    layer.query = weights(random, c, config.heads * (config.nope_dim + kRope));
    for (int h = 0; h < config.heads; ++h) {
      const std::vector<float> absorb = weights(random, config.nope_dim, kLatent);
      layer.absorb.insert(layer.absorb.end(), absorb.begin(), absorb.end());
      const std::vector<float> expand = weights(random, kLatent, config.value_dim);
      layer.expand.insert(layer.expand.end(), expand.begin(), expand.end());
    }
    layer.compress = weights(random, c, kRow);
    layer.output = weights(random, config.heads * config.value_dim, c);
    layer.gate = weights(random, c, config.feed_forward);
    layer.up = weights(random, c, config.feed_forward);
    layer.down = weights(random, config.feed_forward, c);
    layers_.push_back(std::move(layer));
  }
}

float Model::scale() const {
  return 1.0F / std::sqrt(static_cast<float>(config_.nope_dim + kRope));
}

void Model::embed(Token token, std::span<float> stream) const {
  const std::size_t at = size(token) * size(config_.hidden);
  std::copy_n(embedding_.begin() + static_cast<std::ptrdiff_t>(at), stream.size(), stream.begin());
}

void Model::project(int layer, std::span<const float> stream, std::int64_t position,
                    std::span<std::uint16_t> query, std::span<std::uint16_t> row) const {
  const Layer& weights = layers_[size(layer)];
  const std::vector<float> in = normalised(stream);
  std::vector<float> heads = multiply(in, weights.query);
  const std::size_t nope = size(config_.nope_dim);
  for (std::size_t h = 0; h < size(config_.heads); ++h) {
    const std::span<float> head = std::span(heads).subspan(h * (nope + kRope), nope + kRope);
    std::vector<float> latent(kLatent, 0.0F);
    multiply_add(head.first(nope),
                 std::span(weights.absorb).subspan(h * nope * kLatent, nope * kLatent), latent);
    rotate(head.subspan(nope), position);
    const std::span<std::uint16_t> out = query.subspan(h * kRow, kRow);
    std::ranges::transform(latent, out.begin(), packstone::encode_bf16);
    std::ranges::transform(head.subspan(nope), out.begin() + kLatent, packstone::encode_bf16);
  }
  std::vector<float> compressed = multiply(in, weights.compress);
  const std::vector<float> latent = normalised(std::span(compressed).first(kLatent));
  rotate(std::span(compressed).subspan(kLatent), position);
  std::ranges::transform(latent, row.begin(), packstone::encode_bf16);
  std::ranges::transform(std::span(compressed).subspan(kLatent), row.begin() + kLatent,
                         packstone::encode_bf16);
}

void Model::finish_layer(int layer, std::span<const float> attended,
                         std::span<float> stream) const {
  const Layer& weights = layers_[size(layer)];
  const std::size_t value = size(config_.value_dim);
  std::vector<float> values(size(config_.heads) * value, 0.0F);
  for (std::size_t h = 0; h < size(config_.heads); ++h) {
    multiply_add(attended.subspan(h * kLatent, kLatent),
                 std::span(weights.expand).subspan(h * kLatent * value, kLatent * value),
                 std::span(values).subspan(h * value, value));
  }
  multiply_add(values, weights.output, stream);
  const std::vector<float> in = normalised(stream);
  std::vector<float> gate = multiply(in, weights.gate);
  const std::vector<float> up = multiply(in, weights.up);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
  }
  multiply_add(gate, weights.down, stream);
}

Token Model::next(std::span<const float> stream) const {
  const std::vector<float> logits = multiply(normalised(stream), head_);
  return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace runtime
