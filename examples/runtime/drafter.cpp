// SPDX-License-Identifier: Apache-2.0
#include "drafter.hpp"

#include <algorithm>

namespace runtime {

void Drafter::learn(Token before, Token last, Token next) {
  seen_[{before, last}][next] += 1;
}

std::vector<Token> Drafter::likely(Token before, Token last) const {
  const auto found = seen_.find({before, last});
  if (found == seen_.end()) return {};
  std::vector<std::pair<Token, int>> counts(found->second.begin(), found->second.end());
  std::ranges::stable_sort(counts,
                           [](const auto& a, const auto& b) { return a.second > b.second; });
  counts.resize(std::min(counts.size(), static_cast<std::size_t>(options_.branches)));
  std::vector<Token> tokens;
  for (const auto& [token, count] : counts) tokens.push_back(token);
  return tokens;
}

Draft Drafter::draft(Token before, Token last, int nodes) const {
  std::vector<std::int32_t> parents{-1};
  std::vector<Token> tokens{last};
  std::vector<Token> befores{before};
  std::vector<int> depths{0};
  const auto most = static_cast<std::size_t>(std::min(nodes, options_.nodes_max));
  for (std::size_t node = 0; node < tokens.size() && tokens.size() < most; ++node) {
    if (depths[node] == options_.depth_max) break;  // breadth first: the rest is as deep
    for (const Token token : likely(befores[node], tokens[node])) {
      if (tokens.size() == most) break;
      parents.push_back(static_cast<std::int32_t>(node));
      befores.push_back(tokens[node]);
      depths.push_back(depths[node] + 1);
      tokens.push_back(token);
    }
  }
  return {.tree = packstone::DraftTree(parents), .tokens = std::move(tokens)};
}

}  // namespace runtime
