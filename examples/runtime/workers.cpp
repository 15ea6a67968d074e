// SPDX-License-Identifier: Apache-2.0
#include "workers.hpp"

#include <algorithm>

namespace runtime {

Workers::Workers(int threads) {
  const int all = threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < all; ++i) threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  begun_.notify_all();
}

void Workers::take(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t item = next_++;
    const std::function<void(std::size_t)>& each = *each_;
    lock.unlock();
    each(item);
    lock.lock();
    open_ -= 1;
  }
  if (open_ == 0) ended_.notify_all();
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return over_ || next_ < count_; });
    if (over_) return;
    take(lock);
  }
}

void Workers::run(std::size_t count, const std::function<void(std::size_t)>& each) {
  std::unique_lock lock(mutex_);
  each_ = &each;
  next_ = 0;
  count_ = count;
  open_ = count;
  if (count > 1) begun_.notify_all();
  take(lock);
  ended_.wait(lock, [&] { return open_ == 0; });
}

}  // namespace runtime
