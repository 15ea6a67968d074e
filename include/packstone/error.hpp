// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The three kinds of failure and their idioms.
///
/// - A **bug** in the library is an assertion: PACKSTONE_ASSERT (O(1), always on) and
/// PACKSTONE_ASSERT_SLOW (O(n),
///   on with PACKSTONE_CHECKS).
/// - A **shortage** (no page, no sequence place) is a `Status` that consumed nothing; the caller
/// evicts or preempts.
/// - A **mistake of the caller** (double free, foreign page, bad tree, negative size) throws an
/// error derived from
///   `Error` that names the page, sequence, node or line, and changes nothing.
///
/// CUDA faults throw `packstone::cuda::CudaError` (cuda/error.hpp) with the call and place.

#include <packstone/units.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace packstone {

/// Outcome of an operation that may run short. Anything but `ok` consumed nothing.
enum class [[nodiscard]] Status : std::uint8_t{
    ok,
    out_of_pages,      ///< fewer free pages than asked for
    out_of_sequences,  ///< every sequence place is taken
};

constexpr const char* to_string(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::out_of_pages:
      return "out of pages";
    case Status::out_of_sequences:
      return "out of sequences";
  }
  return "unknown status";
}

/// Base of every error that this library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument outside its documented range. The message names the argument and its value.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A page was named that the operation may not touch.
class PageError : public Error {
 public:
  enum class Kind : std::uint8_t {
    out_of_range,   ///< id below 0, or past the pool
    reserved_page,  ///< page 0
    not_live,       ///< double free, or never allocated
    foreign,        ///< live, but owned by another tag
    pinned,         ///< live, but a reader holds it in place
    duplicate,      ///< named twice in one call
  };
  PageError(Kind kind, PageId page, OwnerTag owner, const std::string& message)
      : Error(message), kind_(kind), page_(page), owner_(owner) {}

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] PageId page() const { return page_; }
  /// The tag the page is, or last was, allocated to; 0 when it has none.
  [[nodiscard]] OwnerTag owner() const { return owner_; }

 private:
  Kind kind_;
  PageId page_;
  OwnerTag owner_;
};

/// A sequence handle that names no live sequence (finished, or from another manager).
class SequenceError : public Error {
 public:
  SequenceError(SeqId seq, const std::string& message) : Error(message), seq_(seq) {}
  [[nodiscard]] SeqId seq() const { return seq_; }

 private:
  SeqId seq_;
};

/// A draft tree that is no tree; names the first offending node.
class TreeError : public Error {
 public:
  TreeError(std::int64_t node, const std::string& message) : Error(message), node_(node) {}
  [[nodiscard]] std::int64_t node() const { return node_; }

 private:
  std::int64_t node_;
};

/// What `check()` throws: an invariant does not hold. Always a bug of the library, or memory
/// written over.
class InvariantError : public Error {
 public:
  using Error::Error;
};

namespace detail {
/// Prints the expression and place on standard error and aborts: only a bug of this library comes
/// here.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;
}  // namespace detail

}  // namespace packstone

#define PACKSTONE_ASSERT(expression) \
  ((expression) ? void() : ::packstone::detail::assertion_failed(#expression, __FILE__, __LINE__))

#ifndef PACKSTONE_CHECKS
#define PACKSTONE_CHECKS 0
#endif
#if PACKSTONE_CHECKS
#define PACKSTONE_ASSERT_SLOW(expression) PACKSTONE_ASSERT(expression)
#else
#define PACKSTONE_ASSERT_SLOW(expression) void()
#endif
