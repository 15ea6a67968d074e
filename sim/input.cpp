// SPDX-License-Identifier: Apache-2.0
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_streambuf.hpp>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sim/input.hpp>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <ios>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

namespace packstone::sim {
namespace {

namespace io = boost::iostreams;

constexpr std::size_t kChunkBytes = std::size_t{1} << 15;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
      throw Error("SHA-256 is not available in the OpenSSL library");
    }
  }
  void update(const char* bytes, std::size_t count) {
    EVP_DigestUpdate(context_.get(), bytes, count);
  }
  [[nodiscard]] std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int length = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &length);
    std::string text;
    for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

// The undecoded input: counts and digests what passes.
class RawInput {
 public:
  RawInput(std::string name, std::FILE* file) : name_(std::move(name)), file_(file) {}
  RawInput(std::string name, std::string_view bytes) : name_(std::move(name)), memory_(bytes) {}

  std::size_t read(char* out, std::size_t wanted) {
    std::size_t got = 0;
    if (peeked_ > 0) {
      got = std::min(wanted, peeked_);
      std::memcpy(out, magic_.data(), got);
      std::memmove(magic_.data(), magic_.data() + got, peeked_ - got);
      peeked_ -= got;
    } else {
      got = read_fresh(out, wanted);
    }
    return got;
  }

  // The first bytes, left in place for read().
  std::string_view peek() {
    while (peeked_ < magic_.size()) {
      const std::size_t got = read_fresh(magic_.data() + peeked_, magic_.size() - peeked_);
      if (got == 0) break;
      peeked_ += got;
    }
    return {magic_.data(), peeked_};
  }

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  std::string finish() {
    std::vector<char> chunk(kChunkBytes);
    while (read_fresh(chunk.data(), chunk.size()) > 0) {
    }
    return sha_.hex();
  }

 private:
  std::size_t read_fresh(char* out, std::size_t wanted) {
    std::size_t got = 0;
    if (file_ != nullptr) {
      got = std::fread(out, 1, wanted, file_.get());
      if (got == 0 && std::ferror(file_.get()) != 0) {
        throw TraceError(name_, 0, fmt::format("cannot be read: {}", std::strerror(errno)));
      }
    } else {
      got = std::min(wanted, memory_.size());
      if (got > 0) std::memcpy(out, memory_.data(), got);
      memory_.remove_prefix(got);
    }
    sha_.update(out, got);
    bytes_ += static_cast<std::int64_t>(got);
    return got;
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string_view memory_;
  std::array<char, 4> magic_{};
  std::size_t peeked_{0};
  std::int64_t bytes_{0};
  Sha256 sha_;
};

// The handle on a RawInput that Boost.Iostreams copies around.
struct RawSource {
  using char_type = char;
  using category = io::source_tag;
  RawInput* raw;
  std::streamsize read(char* out, std::streamsize wanted) {
    const std::size_t got = raw->read(out, static_cast<std::size_t>(wanted));
    return got == 0 ? -1 : static_cast<std::streamsize>(got);
  }
};

// Decodes zstd frames. Not Boost's filter, which takes a file cut in the middle for a whole one.
class ZstdSource {
 public:
  using char_type = char;
  using category = io::source_tag;
  explicit ZstdSource(RawInput& raw) : state_(std::make_shared<State>(raw)) {}

  std::streamsize read(char* out, std::streamsize wanted) {
    State& state = *state_;
    ZSTD_outBuffer target{out, static_cast<std::size_t>(wanted), 0};
    while (target.pos == 0) {
      // Decoded bytes may be left inside the stream after its input is used up.
      if (state.source.pos == state.source.size && !state.full) {
        state.source.size = state.raw.read(state.chunk.data(), state.chunk.size());
        state.source.pos = 0;
        if (state.source.size == 0) {
          if (!state.between_frames) throw std::ios_base::failure("zstd input ends in a frame");
          return -1;
        }
      }
      const std::size_t left = ZSTD_decompressStream(state.stream.get(), &target, &state.source);
      if (ZSTD_isError(left) != 0) throw std::ios_base::failure(ZSTD_getErrorName(left));
      state.between_frames = left == 0;
      state.full = target.pos == target.size && left != 0;
    }
    return static_cast<std::streamsize>(target.pos);
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  struct State {
    explicit State(RawInput& input) : raw(input), stream(ZSTD_createDStream()) {
      if (stream == nullptr) throw std::bad_alloc();
    }
    RawInput& raw;
    std::unique_ptr<ZSTD_DStream, Free> stream;
    std::vector<char> chunk = std::vector<char>(kChunkBytes);
    ZSTD_inBuffer source{chunk.data(), 0, 0};
    bool between_frames{true};
    bool full{false};
  };
  std::shared_ptr<State> state_;
};

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r";
  const std::size_t first = line.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kSpaces) - first + 1);
}

}  // namespace

struct LineReader::State {
  State(std::string file, const TraceLimits& bounds, RawInput input)
      : name(std::move(file)), limits(bounds), raw(std::move(input)) {
    const std::string_view magic = raw.peek();
    if (magic.substr(0, 2) == "\x1F\x8B") {
      compression = "gzip";
      decoder.push(io::gzip_decompressor(), kChunkBytes);
    } else if (magic == "\x28\xB5\x2F\xFD") {
      compression = "zstd";
      decoder.push(ZstdSource(raw), kChunkBytes);
      return;
    }
    decoder.push(RawSource{&raw}, kChunkBytes);
  }

  // Moves what is left of the buffer to its front and reads more behind it; false at the end of the
  // input.
  bool fill() {
    if (ended) return false;
    std::memmove(buffer.data(), buffer.data() + begin, end - begin);
    end -= begin;
    begin = 0;
    if (buffer.size() - end < kChunkBytes) buffer.resize(end + 2 * kChunkBytes);
    const std::size_t got = decode(buffer.data() + end, kChunkBytes);
    if (got == 0) {
      ended = true;
      return false;
    }
    if (std::memchr(buffer.data() + end, 0, got) != nullptr) {
      throw TraceError(name, 0, "holds a NUL byte, so it is no text");
    }
    end += got;
    decoded += static_cast<std::int64_t>(got);
    check_expansion();
    return true;
  }

  std::size_t decode(char* out, std::size_t wanted) {
    try {
      const std::streamsize got = decoder.sgetn(out, static_cast<std::streamsize>(wanted));
      return got <= 0 ? 0 : static_cast<std::size_t>(got);
    } catch (const std::ios_base::failure& failure) {
      // Truncation and corruption alike: gzip_error, zlib_error, or what ZstdSource throws.
      throw TraceError(
          name, 0, fmt::format("corrupt or truncated {} data ({})", compression, failure.what()));
    }
  }

  void check_expansion() const {
    if (decoded > limits.input_bytes) {
      throw TraceError(name, 0, fmt::format("holds more than {} bytes", limits.input_bytes));
    }
    if (decoded > limits.expansion_free_bytes && decoded / limits.expansion > raw.bytes()) {
      throw TraceError(name, 0,
                       fmt::format("{} bytes expand to more than {}, over {} times: refused as a "
                                   "decompression bomb",
                                   raw.bytes(), decoded, limits.expansion));
    }
  }

  std::string name;
  TraceLimits limits;
  RawInput raw;
  const char* compression{"none"};
  io::filtering_streambuf<io::input> decoder;
  std::vector<char> buffer = std::vector<char>(2 * kChunkBytes);
  std::size_t begin{0};
  std::size_t end{0};
  std::int64_t decoded{0};
  std::int64_t line{0};
  bool ended{false};
  bool again{false};
  std::string_view current;
};

LineReader::LineReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
LineReader::LineReader(LineReader&&) noexcept = default;
LineReader& LineReader::operator=(LineReader&&) noexcept = default;
LineReader::~LineReader() = default;

LineReader LineReader::open(const std::string& path, const TraceLimits& limits) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) throw TraceError(path, 0, "no such file");
  if (std::filesystem::is_directory(status)) throw TraceError(path, 0, "is a directory");
  if (!std::filesystem::is_regular_file(status)) throw TraceError(path, 0, "is no regular file");
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    throw TraceError(path, 0, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  return LineReader(std::make_unique<State>(path, limits, RawInput(path, file)));
}

LineReader LineReader::over(std::string_view bytes, const std::string& name,
                            const TraceLimits& limits) {
  return LineReader(std::make_unique<State>(name, limits, RawInput(name, bytes)));
}

bool LineReader::next(std::string_view& line) {
  State& state = *state_;
  if (state.again) {
    state.again = false;
    line = state.current;
    return true;
  }
  std::size_t scanned = 0;
  while (true) {
    const char* start = state.buffer.data() + state.begin;
    const std::size_t have = state.end - state.begin;
    const void* newline = std::memchr(start + scanned, '\n', have - scanned);
    scanned = have;
    std::size_t length = have;
    if (newline != nullptr) {
      length = static_cast<std::size_t>(static_cast<const char*>(newline) - start);
    }
    if (static_cast<std::int64_t>(length) > state.limits.line_bytes) {
      ++state.line;
      fail(fmt::format("the line is longer than {} bytes", state.limits.line_bytes));
    }
    if (newline == nullptr) {
      if (state.fill()) continue;
      if (have == 0) return false;
    }
    state.current = std::string_view(state.buffer.data() + state.begin, length);
    state.begin += length + (newline != nullptr ? 1 : 0);
    ++state.line;
    if (state.line == 1 && state.current.substr(0, 3) == "\xEF\xBB\xBF") {
      state.current.remove_prefix(3);
    }
    state.current = trimmed(state.current);
    if (!state.current.empty()) {
      line = state.current;
      return true;
    }
    scanned = 0;
  }
}

void LineReader::unread() {
  state_->again = true;
}
std::int64_t LineReader::line_number() const {
  return state_->line;
}
const std::string& LineReader::name() const {
  return state_->name;
}
const char* LineReader::compression() const {
  return state_->compression;
}

LineReader::Digest LineReader::finish() {
  std::string hex = state_->raw.finish();
  return {std::move(hex), state_->raw.bytes()};
}

void LineReader::fail(const std::string& reason) const {
  throw TraceError(state_->name, state_->line, reason);
}
void LineReader::fail_file(const std::string& reason) const {
  throw TraceError(state_->name, 0, reason);
}

}  // namespace packstone::sim
