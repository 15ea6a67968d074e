// SPDX-License-Identifier: Apache-2.0
// The CPU oracle where the machine gives it fewer threads than it was told to take.
#include "tests/support_attention.hpp"

#include <packstone/reference_verify.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <vector>

namespace packstone {
namespace {

// GCC defines macros for its sanitizers, clang answers a question.
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kAddressesAreTheSanitizers = true;
#else
constexpr bool kAddressesAreTheSanitizers = false;
#endif

/// Bytes of address space that this process has.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

TEST(ReferenceThreads, FewerThreadsThanAskedForGiveTheSameBits) {
  if (kAddressesAreTheSanitizers) GTEST_SKIP() << "no limit binds beside the sanitizer's shadow";
  test::AttentionCase c;
  c.kind = AttentionKind::gqa;
  c.head_dim = 16;
  c.prefix.assign(64, 5);
  c.q_len.assign(64, 1);
  test::AttentionInputs inputs(c);
  std::vector<float> alone;
  std::vector<float> alone_lse;
  reference_verify(inputs.oracle_params(&alone, &alone_lse), {.threads = 1});
  std::vector<float> out;
  std::vector<float> lse;
  const VerifyParams params = inputs.oracle_params(&out, &lse);

  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  // Room for the stacks of a few threads, far from 63.
  const rlimit narrow{.rlim_cur = address_space() + (rlim_t{48} << 20U),
                      .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &narrow), 0);
  EXPECT_NO_THROW(reference_verify(params, {.threads = 64}));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(test::difference(out, alone, {0, 0, 1e-12}), "");
  EXPECT_EQ(test::difference(lse, alone_lse, {0, 0, 1e-12}), "");
}

}  // namespace
}  // namespace packstone
