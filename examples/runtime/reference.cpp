// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <packstone/float_formats.hpp>

#include <algorithm>
#include <cmath>

namespace runtime {
namespace {

using Row = std::vector<std::uint16_t>;

std::vector<float> attend(std::span<const std::uint16_t> query, const std::vector<Row>& rows,
                          int heads, double scale) {
  std::vector<float> out;
  for (int h = 0; h < heads; ++h) {
    const std::span<const std::uint16_t> q =
        query.subspan(static_cast<std::size_t>(h) * kRow, kRow);
    std::vector<double> scores;
    for (const Row& row : rows) {
      double score = 0;
      for (std::size_t d = 0; d < kRow; ++d) {
        score += double{packstone::decode_bf16(q[d])} * double{packstone::decode_bf16(row[d])};
      }
      scores.push_back(score * scale);
    }
    const double most = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    std::vector<double> mixed(kLatent, 0.0);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      for (std::size_t d = 0; d < kLatent; ++d) {
        mixed[d] += scores[t] * double{packstone::decode_bf16(rows[t][d])};
      }
    }
    for (const double value : mixed) out.push_back(static_cast<float>(value / sum));
  }
  return out;
}

}  // namespace

std::vector<Token> decode_plainly(const Model& model, const Request& request) {
  const ModelConfig& config = model.config();
  std::vector<std::vector<Row>> kept(static_cast<std::size_t>(config.layers));
  std::vector<Token> tokens = request.prompt;
  std::vector<Token> generated;
  std::vector<float> stream(static_cast<std::size_t>(config.hidden));
  std::vector<std::uint16_t> query(static_cast<std::size_t>(config.heads) * kRow);
  for (std::size_t i = 0; std::ssize(generated) < request.tokens_max; ++i) {
    model.embed(tokens[i], stream);
    for (int layer = 0; layer < config.layers; ++layer) {
      std::vector<Row>& rows = kept[static_cast<std::size_t>(layer)];
      rows.emplace_back(kRow);
      model.project(layer, stream, static_cast<std::int64_t>(i), query, rows.back());
      model.finish_layer(layer, attend(query, rows, config.heads, double{model.scale()}), stream);
    }
    if (i + 1 < tokens.size()) continue;
    tokens.push_back(model.next(stream));
    generated.push_back(tokens.back());
  }
  return generated;
}

}  // namespace runtime
