// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sim/trace_rows.hpp>
#include <sim/trace_servegen.hpp>
#include <sim/workload_parts.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace packstone::sim {
namespace {

constexpr std::string_view kClientsSuffix = "_clients.csv";
constexpr double kCvMin = 0.1;
constexpr double kCvMax = 400.0;
constexpr std::int64_t kRequestsMax = 10'000'000;
constexpr std::int64_t kTableRowsMax = 100'000;

// A CSV table of numbers: named columns of every row, with the skip rule of the readers.
class NumberTable {
 public:
  NumberTable(LineReader& reader, OnBadRow on_bad_row) : reader_(reader), on_bad_row_(on_bad_row) {}

  // Calls accept(values) for each row; it returns a fault for values out of range.
  template <typename Accept>
  RowCounts read(std::initializer_list<const char*> columns, Accept&& accept) {
    std::vector<std::string_view> fields;
    std::string_view line;
    if (!reader_.next(line)) reader_.fail_file("is empty");
    split_csv(line, fields);
    const std::size_t width = fields.size();
    std::vector<std::size_t> places;
    for (const char* column : columns) places.push_back(find(fields, column));
    RowCounts rows;
    std::vector<double> values(places.size());
    while (reader_.next(line)) {
      if (++rows.read > kTableRowsMax) {
        reader_.fail(fmt::format("holds more than {} rows", kTableRowsMax));
      }
      split_csv(line, fields);
      RowFault fault;
      if (fields.size() != width) {
        fault = {"missing_column",
                 fmt::format("the row has {} fields, the header {}", fields.size(), width)};
      }
      for (std::size_t i = 0; i < places.size() && !fault; ++i) {
        fault = parse_real(fields[places[i]], values[i]);
      }
      if (!fault) fault = accept(values);
      if (fault && on_bad_row_ == OnBadRow::error) reader_.fail(fault.detail);
      if (fault) {
        ++rows.dropped[fault.reason];
      } else {
        ++rows.emitted;
      }
    }
    if (rows.emitted == 0) reader_.fail_file("has no usable row");
    return rows;
  }

 private:
  std::size_t find(const std::vector<std::string_view>& header, const char* column) {
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (header[i] == column) return i;
    }
    reader_.fail(fmt::format("the header has no column {}", column));
  }

  static RowFault parse_real(std::string_view text, double& out) {
    const char* end = text.data() + text.size();
    const auto [rest, code] = std::from_chars(text.data(), end, out);
    if (code != std::errc{} || rest != end || !std::isfinite(out) || out < 0.0) {
      return {"bad_number", fmt::format("{} is no number of 0 or more", in_quotes(text))};
    }
    return {};
  }

  LineReader& reader_;
  OnBadRow on_bad_row_;
};

struct Client {
  ClientProfile profile;
  double rate{0.0};
};

RowCounts read_clients(LineReader& reader, const TraceOptions& options,
                       std::vector<Client>& clients) {
  NumberTable table(reader, options.on_bad_row);
  return table.read(
      {"requests_total", "cv_rate_weighted", "gamma_share", "active_windows_600s"},
      [&](const std::vector<double>& values) -> RowFault {
        const double requests = values[0];
        const double cv = values[1];
        const double windows = values[3];
        if (cv < kCvMin || cv > kCvMax) {
          return {"out_of_range",
                  fmt::format("cv_rate_weighted is {}, outside {} to {}", cv, kCvMin, kCvMax)};
        }
        if (values[2] > 1.0) {
          return {"out_of_range", fmt::format("gamma_share is {}, above 1", values[2])};
        }
        if (requests <= 0.0 || requests > 1e15 || windows < 1.0) {
          return {"out_of_range", "the client has no requests, or no active window"};
        }
        constexpr double kWindowSeconds = 600.0;
        clients.push_back({{requests, cv, values[2]}, requests / (windows * kWindowSeconds)});
        return {};
      });
}

LengthHistogram read_histogram(const std::string& path, const TraceOptions& options) {
  LineReader reader = LineReader::open(path, options.limits);
  std::vector<LengthHistogram::Bucket> buckets;
  double sum = 0.0;
  NumberTable table(reader, options.on_bad_row);
  const auto accept = [&](const std::vector<double>& values) -> RowFault {
    if (values[0] >= values[1] || values[1] > static_cast<double>(kRequestTokensMax)) {
      return {"out_of_range", fmt::format("{} to {} is no range of lengths", values[0], values[1])};
    }
    if (values[2] > 1.0) {
      return {"out_of_range", fmt::format("the probability is {}, above 1", values[2])};
    }
    buckets.push_back({values[0], values[1], values[2]});
    sum += values[2];
    return {};
  };
  (void)table.read({"tokens_lo", "tokens_hi", "probability"}, accept);
  if (sum <= 0.0) reader.fail_file("the probabilities add up to 0");
  return LengthHistogram(buckets);
}

void check_options(const TraceOptions& options) {
  if (options.servegen_requests < 1 || options.servegen_requests > kRequestsMax) {
    throw InvalidArgument(fmt::format("servegen_requests is {}, but must be within 1 and {}",
                                      options.servegen_requests, kRequestsMax));
  }
  if (!(options.servegen_rate >= 0.0 && options.servegen_rate <= 1e6)) {
    throw InvalidArgument(
        fmt::format("servegen_rate is {}, but must be within 0 and 1e6", options.servegen_rate));
  }
}

}  // namespace

RowCounts read_servegen(LineReader& reader, const std::string& path, const TraceOptions& options,
                        RequestList& list) {
  check_options(options);
  if (!path.ends_with(kClientsSuffix)) {
    reader.fail_file(fmt::format("a ServeGen client table must be named X{}", kClientsSuffix));
  }
  std::vector<Client> clients;
  RowCounts rows = read_clients(reader, options, clients);
  const std::string stem = path.substr(0, path.size() - kClientsSuffix.size());
  const LengthHistogram inputs = read_histogram(stem + "_in_hist.csv", options);
  const LengthHistogram outputs = read_histogram(stem + "_out_hist.csv", options);

  std::vector<ClientProfile> profiles;
  double rate = 0.0;
  for (const Client& client : clients) {
    profiles.push_back(client.profile);
    rate += client.rate;
  }
  if (options.servegen_rate > 0.0) rate = options.servegen_rate;
  std::int64_t count = options.servegen_requests;
  if (options.requests_max >= 0) count = std::min(count, options.requests_max);
  Prng lengths = Prng::stream(options.seed, "lengths");
  for (const ClientArrival& arrival : client_arrivals(profiles, rate, count, options.seed)) {
    Request request;
    request.arrival_ns = arrival.at_ns;
    request.client = arrival.client;
    request.prompt_tokens = inputs.draw(lengths);
    request.output_tokens = outputs.draw(lengths);
    list.requests.push_back(request);
  }
  return rows;
}

}  // namespace packstone::sim
