// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What happens to cached pages, told to whoever listens: a router that keeps an index of which
/// server has which prefix, or a trace.

#include <packstone/units.hpp>

#include <cstdint>
#include <span>

namespace packstone {

enum class KvEventKind : std::uint8_t {
  stored,   ///< a page can be found by its prefix from now on
  moved,    ///< it lies elsewhere; what is in it is the same
  evicted,  ///< it made room for others
  removed,  ///< the caller had it dropped
};

constexpr const char* to_string(KvEventKind kind) {
  switch (kind) {
    case KvEventKind::stored:
      return "stored";
    case KvEventKind::moved:
      return "moved";
    case KvEventKind::evicted:
      return "evicted";
    case KvEventKind::removed:
      return "removed";
  }
  return "unknown event";
}

struct KvEvent {
  KvEventKind kind;
  PageId page;
  PageId to{kNoPage};                   ///< moved: where it lies now
  std::uint64_t hash{0};                ///< of the prefix up to and with this page
  std::uint64_t parent_hash{0};         ///< of the prefix before it
  std::span<const std::int64_t> ids{};  ///< tokens or blocks of the page; valid during the call
};

/// Called within the operation that causes the event, in the order of the changes. Must not call
/// back into the object that it listens to. Without a sink an event costs one branch.
class KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  virtual void on_event(const KvEvent& event) = 0;
};

}  // namespace packstone
