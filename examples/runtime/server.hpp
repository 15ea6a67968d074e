// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Continuous batching over packstone: requests join and leave the batch between steps; prompts are
/// read in chunks beside the ones that generate; a tree of guesses is verified in each step.

#include "drafter.hpp"
#include "kv_backend.hpp"
#include "model.hpp"
#include "workers.hpp"

#include <packstone/kv_manager.hpp>
#include <packstone/metrics.hpp>
#include <packstone/prefix_cache.hpp>
#include <packstone/speculation.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace runtime {

struct Request {
  std::vector<Token> prompt;  ///< at least one token
  int tokens_max{16};         ///< to generate, >= 1
};

struct ServerOptions {
  packstone::PageCount pages{256};
  std::int64_t page_size{16};
  std::string policy{"run"};
  int batch_max{8};
  int chunk{32};  ///< prompt tokens of one sequence in one step
  bool speculation{true};
  packstone::SpeculationMode mode{packstone::SpeculationMode::tree_front};
  DraftOptions draft{};
  bool share_prefixes{true};
  bool defrag{true};
  int defrag_every{8};                    ///< steps from one plan to the next, >= 1
  packstone::PageCount defrag_moves{64};  ///< pages that a plan moves, at most
  int threads{0};                         ///< of the host's part of the model; 0: all
  bool check{false};                      ///< every invariant after every step
};

/// What a backend has to hold for a server of these options.
[[nodiscard]] KvShape shape_of(const Model& model, const ServerOptions& options);

/// Wall time of the steps, each part by itself.
struct PhaseSeconds {
  double schedule{0};  ///< admission, drafts, room for them
  double model{0};     ///< on the host
  double verify{0};    ///< rows to the pool and attention, waited for
  double commit{0};
  double defrag{0};  ///< reclaim, plan, moves queued
};

struct ServerCounters {
  std::int64_t steps{0};
  std::int64_t tokens_generated{0};
  std::int64_t tokens_computed{0};  ///< nodes that went through the model
  std::int64_t drafts{0};           ///< nodes guessed
  std::int64_t drafts_accepted{0};
  std::int64_t rows_moved{0};  ///< of commits
  std::int64_t preemptions{0};
  PhaseSeconds seconds;
};

class Server {
 public:
  /// `model` and `backend` outlive the server; the backend has the shape that the options ask for.
  Server(const Model& model, KvBackend& backend, const ServerOptions& options);

  /// Serves the requests to their ends; the generated tokens of each. Throws std::runtime_error
  /// when the pool cannot hold one of them alone.
  std::vector<std::vector<Token>> serve(const std::vector<Request>& requests);

  [[nodiscard]] const packstone::KvManager& manager() const { return manager_; }
  [[nodiscard]] const packstone::PrefixCache& prefixes() const { return prefixes_; }
  [[nodiscard]] const packstone::PlannerCounters& planner() const { return planner_; }
  [[nodiscard]] const ServerCounters& counters() const { return counters_; }

 private:
  struct Running {
    std::size_t request{0};
    packstone::SeqId seq{};
    std::vector<Token> tokens{};  // prompt and generated; KV rows exist for the first length(seq)
    std::vector<packstone::PrefixLock> locks{};
    std::optional<Draft> draft{};  // of this step
    bool whole{false};             // this step reads up to the last token
  };
  struct Served {
    Request request;
    std::vector<Token> tokens;  // of a request that was preempted, else its prompt
    bool done{false};
  };

  void admit();
  void draft_all();
  void reserve_all();
  [[nodiscard]] VerifyBatch batch() const;
  [[nodiscard]] std::vector<Token> run_model(const VerifyBatch& step);
  void commit_all(const std::vector<Token>& next);
  void accept(Running& running, std::span<const Token> next,
              std::vector<packstone::SlotMove>& moves);
  void share(Running& running);
  void end(Running& running);
  void preempt_youngest();
  void move_between_steps();
  void check() const;

  const Model& model_;
  KvBackend& backend_;
  ServerOptions options_;
  Workers workers_;
  packstone::KvManager manager_;
  packstone::PrefixCache prefixes_;
  packstone::Speculation speculation_;
  Drafter drafter_;
  std::vector<Served> served_;
  std::deque<std::size_t> waiting_;
  std::vector<Running> running_;
  packstone::PlannerCounters planner_;
  ServerCounters counters_;
};

/// The manager's and the server's state in the text format of Prometheus.
[[nodiscard]] std::string prometheus_text(const Server& server);

}  // namespace runtime
