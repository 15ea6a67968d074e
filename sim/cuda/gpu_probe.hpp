// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Cases measured on the current CUDA device, in a pool of the model's own geometry, by the
/// library's attention kernels, compactor and transfers.

#include <sim/bandwidth.hpp>

#include <memory>
#include <string>

namespace packstone::sim {

struct GpuProbeOptions {
  Bytes pool_bytes_max{std::numeric_limits<Bytes>::max()};  ///< fewer layers past it
  Bytes transfer_bytes_max{Bytes{256} << 20};               ///< to the host, of one transfer
  int passes{3};  ///< over all layers, of one run; the median counts
};

/// A probe of the calling thread's current device, to be used on that thread. Nullptr, with the
/// reason, when there is no device or none that the kernels run on. Measures the card's own limits
/// when it is made. Each pass goes over all layers, with the L2 overwritten before.
[[nodiscard]] std::unique_ptr<BandwidthProbe> make_gpu_probe(std::string& reason,
                                                             const GpuProbeOptions& options = {});

}  // namespace packstone::sim
