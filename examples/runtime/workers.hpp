// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Threads that stay, for the host's part of the model: a step has several stretches of a
/// millisecond or less.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace runtime {

class Workers {
 public:
  /// @param threads  that work at once, the caller's included; 0: as many as the machine has
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Calls `each(i)` for every i below `count`, on any thread and in any order, and returns when
  /// all have returned. `each` does not throw.
  void run(std::size_t count, const std::function<void(std::size_t)>& each);

 private:
  void work();
  /// Takes items of the current run until there are none.
  void take(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  const std::function<void(std::size_t)>* each_{nullptr};
  std::size_t next_{0};
  std::size_t count_{0};
  std::size_t open_{0};  // items that have not returned
  bool over_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace runtime
