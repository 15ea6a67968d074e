// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where KV rows are kept and attention is computed: the one seam between the runtime and a device.

#include "model.hpp"

#include <packstone/units.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace runtime {

struct KvShape {
  packstone::PageCount pages{0};
  std::int64_t page_size{1};
  int layers{1};
  int heads{1};
  int batch_max{32};     ///< sequences of a step
  int tokens_max{1024};  ///< nodes of a step
};

/// One step's batch, the same for all layers. Host memory, valid during the step.
struct VerifyBatch {
  std::vector<std::int32_t> prefix_lens;  ///< [batch]
  std::vector<std::int32_t> q_indptr;     ///< [batch + 1]
  std::vector<std::int32_t> parents;      ///< [tokens], within the tree, -1 for a root
  std::vector<std::int32_t> table;        ///< [batch, table_stride] pages
  std::int64_t table_stride{0};
  std::vector<packstone::SlotId> slots;  ///< [tokens] where each node's row goes
  float scale{1.0F};
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;
  KvBackend(const KvBackend&) = delete;
  KvBackend& operator=(const KvBackend&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Puts the rows of the batch's nodes, [tokens, kRow] bf16, to their slots, and lets each node
  /// attend its prefix and its ancestors.
  /// @param queries  [tokens, heads, kRow] bf16
  /// @param out      [tokens, heads, kLatent]
  virtual void verify(int layer, const VerifyBatch& batch, std::span<const std::uint16_t> rows,
                      std::span<const std::uint16_t> queries, std::span<float> out) = 0;
  /// Rows of a commit, carried out one after the other, in every layer.
  virtual void move_rows(std::span<const packstone::SlotMove> moves) = 0;
  /// Whole pages, whose destinations are nobody's, in every layer.
  virtual void move_pages(std::span<const packstone::PageMove> moves) = 0;
  /// The last mark before which everything is over: pages that were left before it may be written
  /// again.
  [[nodiscard]] virtual std::uint64_t reached() = 0;
  /// Marks the end of the work queued so far; returns its number, 1 at first.
  virtual std::uint64_t mark() = 0;

 protected:
  KvBackend() = default;
};

/// Host memory and packstone's reference attention: runs everywhere.
[[nodiscard]] std::unique_ptr<KvBackend> make_host_backend(const KvShape& shape, int threads);

#ifdef RUNTIME_CUDA
/// Device memory and the tree-verify kernels. Throws packstone::cuda::UnsupportedDevice where there
/// is no device for them.
[[nodiscard]] std::unique_ptr<KvBackend> make_cuda_backend(const KvShape& shape);
#endif

}  // namespace runtime
