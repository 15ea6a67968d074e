// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where KV rows are kept and attention is computed: the one seam between the runtime and a device.

#include "model.hpp"

#include <packstone/units.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace runtime {

struct KvShape {
  packstone::PageCount pages{0};
  std::int64_t page_size{1};
  int layers{1};
  int heads{1};
  int batch_max{32};    ///< sequences of a step
  int tokens_max{512};  ///< nodes of a step
};

/// One step's batch, the same for all layers.
struct VerifyBatch {
  std::vector<std::int32_t> prefix_lens;  ///< [batch]
  std::vector<std::int32_t> q_indptr;     ///< [batch + 1]
  std::vector<std::int32_t> parents;      ///< [tokens], within the tree, -1 for a root
  std::vector<std::int32_t> table;        ///< [batch, table_stride] pages
  std::int64_t table_stride{0};
  std::vector<packstone::SlotId> slots;  ///< [tokens] where each node's row goes
};

class KvBackend {
 public:
  virtual ~KvBackend() = default;
  KvBackend(const KvBackend&) = delete;
  KvBackend& operator=(const KvBackend&) = delete;

  /// What computes the attention, and on which device.
  [[nodiscard]] virtual std::string name() const = 0;
  /// The batch of the `verify` calls that follow; read until the next `begin`.
  /// Throws packstone::InvalidArgument for one beyond the shape.
  virtual void begin(const VerifyBatch& batch) = 0;
  /// Puts the rows of the batch's nodes, [tokens, kRow] bf16, to their slots, and lets each node
  /// attend its prefix and its ancestors. Returns when `out` is there.
  /// @param queries  [tokens, heads, kRow] bf16
  /// @param out      [tokens, heads, kLatent]
  virtual void verify(int layer, std::span<const std::uint16_t> rows,
                      std::span<const std::uint16_t> queries, std::span<float> out) = 0;
  /// Rows of the step's commits, in every layer: no move reads what an earlier one has overwritten.
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
/// @param scale  of the attention scores
[[nodiscard]] std::unique_ptr<KvBackend> make_host_backend(const KvShape& shape, float scale,
                                                           int threads);

#ifdef RUNTIME_CUDA
/// Device memory and the tree-verify kernels, captured once a layer and replayed for every step.
/// Throws packstone::cuda::UnsupportedDevice where there is no device for them.
[[nodiscard]] std::unique_ptr<KvBackend> make_cuda_backend(const KvShape& shape, float scale);
#endif

}  // namespace runtime
