// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What every function of the C ABI passes through: exceptions become statuses here, and structs of
/// other versions are read and written by their size.

#include <packstone/error.hpp>
#include <packstone/packstone.h>
#include <packstone/units.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace packstone::c_api {

/// Turns the exception in flight into a status, and remembers it for packstone_last_error.
packstone_status note_exception() noexcept;
/// Remembers a failure that no exception stands for.
packstone_status fail(packstone_status status, const char* message) noexcept;

/// Runs `body`, which returns a packstone_status.
template <typename Body>
packstone_status guarded(Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return note_exception();
  }
}

constexpr packstone_status status_of(Status status) {
  switch (status) {
    case Status::ok:
      return PACKSTONE_OK;
    case Status::out_of_pages:
      return PACKSTONE_OUT_OF_PAGES;
    case Status::out_of_sequences:
      return PACKSTONE_OUT_OF_SEQUENCES;
  }
  return PACKSTONE_INTERNAL_ERROR;
}

template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) throw InvalidArgument(std::string(name) + " is NULL");
  return *pointer;
}

/// No struct of any version is larger; a larger size was never set.
inline constexpr std::size_t kStructBytesMax = 4096;

/// The size that the caller gave its struct.
template <typename T>
std::size_t size_of(const T* pointer, const char* name) {
  static_assert(sizeof(T) <= kStructBytesMax);
  const std::size_t size = required(pointer, name).size;
  if (size < sizeof(std::size_t) || size > kStructBytesMax) {
    throw InvalidArgument(std::string(name) + "->size is " + std::to_string(size) +
                          "; set it to sizeof");
  }
  return size;
}

/// The caller's struct as this version knows it: members it lacks are zero, members that this
/// version does not know must be.
template <typename T>
T read_struct(const T* from, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t size = size_of(from, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (size > sizeof(T) &&
      std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    throw InvalidArgument(std::string(name) + " uses members of a later version of packstone");
  }
  T result{};
  std::memcpy(static_cast<void*>(&result), from, std::min(size, sizeof(T)));
  return result;
}

/// Writes as much of `value` as the caller's struct has room for.
template <typename T>
void write_struct(T value, T* to, const char* name) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t size = size_of(to, name);
  value.size = size;
  std::memcpy(static_cast<void*>(to), &value, std::min(size, sizeof(T)));
}

/// (pointer, count) as a span; NULL is allowed for none.
template <typename T>
std::span<T> array(T* data, std::size_t count, const char* name) {
  if (data == nullptr && count > 0) throw InvalidArgument(std::string(name) + " is NULL");
  return {data, count};
}

// PageId and int32_t have one layout, and so have PageMove and its C twin.
inline std::span<const PageId> page_ids(const int32_t* data, std::size_t count, const char* name) {
  return array(reinterpret_cast<const PageId*>(data), count, name);
}
inline std::span<PageId> page_ids(int32_t* data, std::size_t count, const char* name) {
  return array(reinterpret_cast<PageId*>(data), count, name);
}
static_assert(sizeof(PageMove) == sizeof(packstone_page_move) && alignof(PageMove) == 4);
static_assert(sizeof(SlotMove) == sizeof(packstone_slot_move));
inline std::span<const PageMove> page_moves(const packstone_page_move* data, std::size_t count,
                                            const char* name) {
  return array(reinterpret_cast<const PageMove*>(data), count, name);
}

constexpr SeqId seq_of(packstone_seq seq) {
  return {.index = static_cast<std::uint32_t>(seq & 0xffffffffU),
          .generation = static_cast<std::uint32_t>(seq >> 32U)};
}
constexpr packstone_seq seq_of(SeqId seq) {
  return (std::uint64_t{seq.generation} << 32U) | seq.index;
}

/// Gives `count` results to (buffer, capacity, *count): `at(i)` is the i-th.
template <typename T, typename At>
packstone_status give(std::size_t found, At&& at, T* buffer, std::size_t capacity,
                      std::size_t* count) {
  required(count, "count") = found;
  if (found > capacity) return fail(PACKSTONE_BUFFER_TOO_SMALL, "the buffer is too small");
  const std::span<T> out = array(buffer, found, "buffer");
  for (std::size_t i = 0; i < found; ++i) out[i] = at(i);
  return PACKSTONE_OK;
}

}  // namespace packstone::c_api
