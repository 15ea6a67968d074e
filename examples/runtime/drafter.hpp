// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Guesses what comes next from what came after the same tokens before, in any request (the idea
/// of prompt lookup decoding), and lays the guesses out as a tree.

#include "model.hpp"

#include <packstone/draft_tree.hpp>

#include <map>
#include <utility>
#include <vector>

namespace runtime {

struct DraftOptions {
  int nodes_max{8};  ///< of a tree, the root included
  int branches{2};   ///< children of a node
  int depth_max{5};  ///< of the deepest node
};

struct Draft {
  packstone::DraftTree tree;
  std::vector<Token> tokens;  ///< [nodes]; tokens[0] is the last token of the sequence
};

class Drafter {
 public:
  explicit Drafter(const DraftOptions& options) : options_(options) {}
  /// Learns that `next` came after the two tokens before it.
  void learn(Token before, Token last, Token next);
  /// A tree that continues `before, last`; at most `nodes` nodes.
  [[nodiscard]] Draft draft(Token before, Token last, int nodes) const;

 private:
  [[nodiscard]] std::vector<Token> likely(Token before, Token last) const;

  DraftOptions options_;
  std::map<std::pair<Token, Token>, std::map<Token, int>> seen_;
};

}  // namespace runtime
