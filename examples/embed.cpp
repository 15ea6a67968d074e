// SPDX-License-Identifier: Apache-2.0
#include <packstone/kv_manager.hpp>

#include <cstdio>

int main() {
  // 1,024 pages of 16 tokens; page 0 is for padded rows.
  packstone::KvManager kv({.pages = 1024, .page_size = 16, .policy = "run"});

  packstone::SeqId chat;
  if (kv.create({.expected_tokens = 600}, chat) != packstone::Status::ok) return 1;
  if (kv.append(chat, 500) != packstone::Status::ok) return 1;  // short of pages: evict, try again

  packstone::SeqId answer;  // shares the first 500 tokens
  if (kv.fork(chat, 500, answer) != packstone::Status::ok) return 1;
  std::int64_t slot = 0;  // where the KV row of the next token goes
  if (kv.decode({&answer, 1}, {&slot, 1}) != packstone::Status::ok) return 1;
  for (const auto& copy : kv.take_copies()) {
    std::printf("copy %d tokens of page %d to %d\n", int(copy.tokens), int(copy.from),
                int(copy.to));
  }
  std::printf("token 500 goes to slot %d; %d pages are left\n", int(slot),
              int(kv.available_pages()));
  kv.finish(answer);
  kv.finish(chat);
}
