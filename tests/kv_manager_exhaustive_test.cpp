// SPDX-License-Identifier: Apache-2.0
// Every command sequence up to a depth, in pools of up to 6 pages: small enough to leave nothing
// out, deep enough to reach every pair of features with a full pool between them.
#include "model.hpp"

#include <packstone/placement.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace packstone::test {
namespace {

constexpr std::uint32_t kLast = 0xffffffffU;

struct Pool {
  PageCount pages;
  std::int64_t page_size;
};

/// One letter of the alphabet: a few commands that make sense together.
using Letter = std::vector<Command>;

std::vector<Letter> alphabet(std::uint32_t page_size) {
  const std::uint32_t partial = page_size > 1 ? page_size + 1 : 2;
  return {
      {{Op::create, 0, 0, 0}, {Op::append, kLast, 0, 1}},
      {{Op::create, 7, 3, 0}, {Op::append, kLast, 0, partial}},
      {{Op::append, 0, 0, 1}},
      {{Op::decode, 0, 0, 0}},
      {{Op::reserve, kLast, page_size, 0}, {Op::commit, kLast, 1, 0}},
      {{Op::fork, 0, 0, 0}},
      {{Op::truncate, kLast, 1, 0}},
      {{Op::finish, 0, 0, 0}},
      {{Op::finish, kLast, 0, 0}},
      {{Op::pin, 0, 0, 1}},
      {{Op::unpin, 0, 0, 0}, {Op::reclaim, 0, 0, 0}},
      {{Op::move, 0, 1, 1}},
  };
}

/// kLast stands for the sequence that was created last.
Command resolved(Command command, const KvManager& manager) {
  const auto live = static_cast<std::uint32_t>(manager.sequences());
  if (command.a == kLast) command.a = live > 0 ? live - 1 : 0;
  return command;
}

/// Runs every word of `depth` letters; the words below it are their beginnings.
std::int64_t run_words(const KvManagerOptions& options, int depth) {
  const std::vector<Letter> letters = alphabet(static_cast<std::uint32_t>(options.page_size));
  std::vector<std::size_t> word(static_cast<std::size_t>(depth), 0);
  std::int64_t words = 0;
  for (;;) {
    words += 1;
    Driver driver(options);
    for (std::size_t i = 0; i < word.size(); ++i) {
      for (const Command& command : letters[word[i]]) {
        driver.step(resolved(command, driver.manager()));
      }
      // A beginning is looked at once, by the first word that has it.
      bool first = true;
      for (std::size_t j = i + 1; j < word.size(); ++j) first = first && word[j] == 0;
      if (first) driver.check();
    }
    std::size_t at = word.size();
    while (at > 0 && ++word[at - 1] == letters.size()) word[--at] = 0;
    if (at == 0) return words;
  }
}

TEST(KvManagerExhaustive, EverySequenceOfCommandsKeepsEveryInvariant) {
  constexpr std::array<Pool, 5> kPools = {{{2, 2}, {3, 1}, {4, 2}, {5, 1}, {7, 2}}};
  for (const std::string_view policy : placement_names()) {
    for (const Pool& pool : kPools) {
      const KvManagerOptions options{
          .pages = pool.pages, .page_size = pool.page_size, .policy = std::string(policy)};
      try {
        const int depth = pool.pages == 7 ? 5 : 4;
        EXPECT_EQ(run_words(options, depth), depth == 5 ? 248'832 : 20'736);
      } catch (const std::exception& error) {
        FAIL() << error.what() << ", policy " << policy << ", pages " << pool.pages
               << ", page size " << pool.page_size;
      }
    }
  }
}

}  // namespace
}  // namespace packstone::test
