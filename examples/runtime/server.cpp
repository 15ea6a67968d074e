// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include "phase.hpp"

#include <packstone/move_plan.hpp>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace runtime {

using packstone::Status;
using packstone::TokenCount;

namespace {

std::vector<std::int64_t> ids_of(const std::vector<Token>& tokens, TokenCount count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::size_t size(TokenCount count) {
  return static_cast<std::size_t>(count);
}

}  // namespace

KvShape shape_of(const Model& model, const ServerOptions& options) {
  return {.pages = options.pages,
          .page_size = options.page_size,
          .layers = model.config().layers,
          .heads = model.config().heads,
          .batch_max = options.batch_max,
          .tokens_max = options.batch_max * std::max(options.chunk, options.draft.nodes_max)};
}

Server::Server(const Model& model, KvBackend& backend, const ServerOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      workers_(options.threads),
      manager_({.pages = options.pages, .page_size = options.page_size, .policy = options.policy}),
      prefixes_(manager_.allocator(), {.page_size = options.page_size}),
      speculation_(manager_, {.mode = options.mode}),
      drafter_(options.draft) {}

std::vector<std::vector<Token>> Server::serve(const std::vector<Request>& requests) {
  const std::size_t first = served_.size();
  for (const Request& request : requests) {
    waiting_.push_back(served_.size());
    served_.push_back({.request = request, .tokens = request.prompt});
  }
  while (!waiting_.empty() || !running_.empty()) {
    VerifyBatch step;
    {
      const Phase phase("schedule", counters_.seconds.schedule);
      admit();
      draft_all();
      reserve_all();
      step = batch();
    }
    const std::vector<Token> next = run_model(step);
    {
      const Phase phase("commit", counters_.seconds.commit);
      commit_all(next);
    }
    if (options_.defrag && (counters_.steps + 1) % options_.defrag_every == 0) {
      const Phase phase("defrag", counters_.seconds.defrag);
      move_between_steps();
    }
    counters_.steps += 1;
    if (options_.check) check();
  }
  std::vector<std::vector<Token>> results;
  for (std::size_t i = first; i < served_.size(); ++i) {
    const auto prompt = static_cast<std::ptrdiff_t>(served_[i].request.prompt.size());
    results.emplace_back(served_[i].tokens.begin() + prompt, served_[i].tokens.end());
  }
  return results;
}

void Server::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.batch_max) {
    const std::size_t request = waiting_.front();
    Running running{.request = request, .seq = {}, .tokens = served_[request].tokens, .locks = {}};
    packstone::PrefixMatch match;
    if (options_.share_prefixes) {
      const std::vector<std::int64_t> ids = ids_of(running.tokens, std::ssize(running.tokens));
      match = prefixes_.match({.ids = ids});
      running.locks.push_back(match.lock);
    }
    const TokenCount expected =
        std::ssize(served_[request].request.prompt) + served_[request].request.tokens_max;
    const Status status =
        manager_.create({.expected_tokens = expected, .prefix = match.pages}, running.seq);
    if (status != Status::ok) throw std::runtime_error(packstone::to_string(status));
    waiting_.pop_front();
    running_.push_back(std::move(running));
  }
}

void Server::draft_all() {
  for (Running& running : running_) {
    const TokenCount read = manager_.length(running.seq);
    const TokenCount unread = std::ssize(running.tokens) - read;
    if (unread > 1) {
      const TokenCount count = std::min<TokenCount>(unread, options_.chunk);
      const auto begin = running.tokens.begin() + static_cast<std::ptrdiff_t>(read);
      running.draft = Draft{.tree = packstone::DraftTree::chain(count),
                            .tokens = {begin, begin + static_cast<std::ptrdiff_t>(count)}};
      running.whole = count == unread;
      continue;
    }
    const Request& request = served_[running.request].request;
    const TokenCount left =
        std::ssize(request.prompt) + request.tokens_max - std::ssize(running.tokens);
    const Token last = running.tokens.back();
    const Token before = running.tokens.size() > 1 ? running.tokens[running.tokens.size() - 2] : -1;
    running.draft = drafter_.draft(before, last, options_.speculation ? static_cast<int>(left) : 1);
    running.whole = true;
    counters_.drafts += running.draft->tree.nodes() - 1;
  }
}

void Server::reserve_all() {
  while (true) {
    std::vector<packstone::DraftRequest> requests;
    packstone::PageCount pages = 0;
    for (const Running& running : running_) {
      requests.push_back({.seq = running.seq, .nodes = running.draft->tree.nodes()});
      pages += packstone::pages_for(running.draft->tree.nodes(), options_.page_size) + 1;
    }
    if (speculation_.reserve(requests) == Status::ok) return;
    if (!prefixes_.evict({.pages = pages}).freed.empty()) continue;
    if (running_.size() == 1) throw std::runtime_error("the pool cannot hold one request");
    preempt_youngest();
  }
}

VerifyBatch Server::batch() const {
  VerifyBatch step;
  step.q_indptr.push_back(0);
  for (const Running& running : running_) {
    step.table_stride = std::max(step.table_stride, std::ssize(manager_.pages(running.seq)));
  }
  for (const Running& running : running_) {
    const packstone::DraftTree& tree = running.draft->tree;
    step.prefix_lens.push_back(static_cast<std::int32_t>(manager_.length(running.seq)));
    step.q_indptr.push_back(step.q_indptr.back() + static_cast<std::int32_t>(tree.nodes()));
    step.parents.insert(step.parents.end(), tree.parents().begin(), tree.parents().end());
    for (std::int64_t node = 0; node < tree.nodes(); ++node) {
      step.slots.push_back(speculation_.slot(running.seq, node));
    }
    const std::size_t end = step.table.size() + size(step.table_stride);
    for (const packstone::PageId page : manager_.pages(running.seq)) {
      step.table.push_back(packstone::index_of(page));
    }
    step.table.resize(end, packstone::index_of(packstone::kReservedPage));
  }
  return step;
}

std::vector<Token> Server::run_model(const VerifyBatch& step) {
  const std::size_t tokens = step.slots.size();
  const auto hidden = static_cast<std::size_t>(model_.config().hidden);
  const std::size_t query = static_cast<std::size_t>(model_.config().heads) * kRow;
  const std::size_t value = static_cast<std::size_t>(model_.config().heads) * kLatent;
  std::vector<float> streams(tokens * hidden);
  std::vector<std::uint16_t> queries(tokens * query);
  std::vector<std::uint16_t> rows(tokens * kRow);
  std::vector<float> attended(tokens * value);
  std::vector<Token> read;
  std::vector<TokenCount> positions(tokens);
  for (const Running& running : running_) {
    const packstone::DraftTree& tree = running.draft->tree;
    tree.positions(manager_.length(running.seq),
                   std::span(positions).subspan(read.size(), size(tree.nodes())));
    read.insert(read.end(), running.draft->tokens.begin(), running.draft->tokens.end());
  }
  const auto stream = [&](std::size_t i) { return std::span(streams).subspan(i * hidden, hidden); };
  const auto project = [&](int layer, std::size_t i) {
    model_.project(layer, stream(i), positions[i], std::span(queries).subspan(i * query, query),
                   std::span(rows).subspan(i * kRow, kRow));
  };
  const auto finish = [&](int layer, std::size_t i) {
    model_.finish_layer(layer, std::span(attended).subspan(i * value, value), stream(i));
  };

  backend_.begin(step);
  const int layers = model_.config().layers;
  std::vector<Token> next(tokens);
  for (int layer = 0; layer <= layers; ++layer) {
    {
      // The end of the layer before and the beginning of this one, token by token.
      const Phase phase("model", counters_.seconds.model);
      workers_.run(tokens, [&](std::size_t i) {
        if (layer == 0) model_.embed(read[i], stream(i));
        if (layer > 0) finish(layer - 1, i);
        if (layer < layers) project(layer, i);
        if (layer == layers) next[i] = model_.next(stream(i));
      });
    }
    if (layer == layers) break;
    const Phase phase("verify", counters_.seconds.verify);
    backend_.verify(layer, rows, queries, attended);
  }
  counters_.tokens_computed += static_cast<std::int64_t>(tokens);
  return next;
}

void Server::commit_all(const std::vector<Token>& next) {
  std::size_t at = 0;
  std::vector<packstone::SlotMove> moves;
  for (Running& running : running_) {
    const std::size_t nodes = size(running.draft->tree.nodes());
    accept(running, std::span(next).subspan(at, nodes), moves);
    at += nodes;
  }
  // No page that a commit gave back is in use again yet, so those of all sequences go together.
  backend_.move_rows(moves);
  counters_.rows_moved += std::ssize(moves);
  for (Running& running : running_) {
    const Served& served = served_[running.request];
    if (std::ssize(running.tokens) ==
        std::ssize(served.request.prompt) + served.request.tokens_max) {
      end(running);
    }
  }
  std::erase_if(running_, [&](const Running& running) { return served_[running.request].done; });
}

/// Follows the model's own choices down the tree, and one token past it.
void Server::accept(Running& running, std::span<const Token> next,
                    std::vector<packstone::SlotMove>& moves) {
  const packstone::DraftTree& tree = running.draft->tree;
  const bool reads_prompt = std::ssize(running.tokens) - manager_.length(running.seq) > 1;
  std::vector<std::int32_t> path;
  if (reads_prompt) {
    path = tree.path_to(tree.nodes() - 1);
  } else {
    path = {0};
    for (std::int32_t node = 1; node < tree.nodes(); ++node) {
      if (tree.parents()[size(node)] == path.back() &&
          running.draft->tokens[size(node)] == next[size(path.back())]) {
        path.push_back(node);
        running.tokens.push_back(running.draft->tokens[size(node)]);
      }
    }
    counters_.drafts_accepted += std::ssize(path) - 1;
  }
  const packstone::DraftCommit commit = speculation_.commit(running.seq, tree, path);
  moves.insert(moves.end(), commit.moves.begin(), commit.moves.end());
  if (!running.whole) return;
  if (reads_prompt) share(running);
  running.tokens.push_back(next[size(path.back())]);
  const auto generated = reads_prompt ? 1 : std::ssize(path);
  counters_.tokens_generated += generated;
  for (auto i = running.tokens.size() - size(generated); i < running.tokens.size(); ++i) {
    if (i >= 2) drafter_.learn(running.tokens[i - 2], running.tokens[i - 1], running.tokens[i]);
  }
}

void Server::share(Running& running) {
  if (!options_.share_prefixes) return;
  const std::vector<std::int64_t> ids = ids_of(running.tokens, manager_.length(running.seq));
  running.locks.push_back(prefixes_.insert({.ids = ids}, manager_.pages(running.seq)).lock);
}

void Server::end(Running& running) {
  share(running);  // what was generated, for a request that continues it
  for (const packstone::PrefixLock lock : running.locks) prefixes_.unlock(lock);
  manager_.finish(running.seq);
  served_[running.request].tokens = std::move(running.tokens);
  served_[running.request].done = true;
}

void Server::preempt_youngest() {
  Running& running = running_.back();
  for (const packstone::PrefixLock lock : running.locks) prefixes_.unlock(lock);
  manager_.finish(running.seq);
  served_[running.request].tokens = std::move(running.tokens);
  waiting_.push_front(running.request);
  running_.pop_back();
  counters_.preemptions += 1;
}

void Server::move_between_steps() {
  manager_.reclaim(backend_.reached());
  const packstone::MovePlan plan = packstone::plan_moves(
      manager_.snapshot(),
      {.objective = packstone::PlanObjective::straighten, .moves_max = options_.defrag_moves});
  planner_.add(plan);
  if (plan.moves.empty()) return;
  backend_.move_pages(plan.moves);
  manager_.apply(plan.moves, plan.patches, backend_.mark());
  prefixes_.remap(plan.moves);
}

void Server::check() const {
  manager_.check(prefixes_.held());
  prefixes_.check();
}

}  // namespace runtime
