// SPDX-License-Identifier: Apache-2.0
#include <packstone/error.hpp>

#include <sim/output.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string_view>
#include <system_error>

namespace packstone::sim {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kNames = {"meta.json", "summary.json", "timeseries.csv",
                                                    "requests.csv", "report.html"};

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw Error(path.string() + ": " + reason);
}

void require(const std::error_code& error, const fs::path& path) {
  if (error) fail(path, error.message());
}

bool is_mount_point(const fs::path& folder) {
  struct stat here {};
  struct stat above {};
  return ::stat(folder.c_str(), &here) == 0 &&
         ::stat(fs::absolute(folder).parent_path().c_str(), &above) == 0 &&
         here.st_dev != above.st_dev;
}

/// Empty when the folder may be replaced, else why not.
std::string objection(const fs::path& folder) {
  std::error_code error;
  if (is_mount_point(folder)) {
    return "is a mount point, which cannot be replaced as a whole; name a folder in it";
  }
  if (fs::is_empty(folder, error) && !error) return {};
  std::ifstream meta(folder / "meta.json", std::ios::binary);
  const nlohmann::json parsed = nlohmann::json::parse(meta, nullptr, false);
  if (!parsed.is_object() || parsed.value("program", nlohmann::json()) != "packstone") {
    return "is not empty and not an earlier run of this program; name another folder";
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = std::find(kNames.begin(), kNames.end(), name) != kNames.end();
    if (!ours || entry.is_directory()) {
      return "holds " + name + " beside an earlier run, which would be lost; move it away";
    }
  }
  return {};
}

fs::path without_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) fail(path, "cannot be written");
}

}  // namespace

void require_replaceable(const fs::path& given) {
  const fs::path folder = without_slash(given);
  if (folder.empty() || folder.filename() == "." || folder.filename() == "..") {
    throw InvalidArgument("the output folder '" + given.string() +
                          "' has no name, by which it could be replaced as a whole");
  }
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) throw InvalidArgument(folder.string() + ": is not a folder");
    if (const std::string reason = objection(folder); !reason.empty()) {
      throw InvalidArgument(folder.string() + ": " + reason);
    }
  }
  fs::path above = fs::absolute(folder).parent_path();
  while (!fs::exists(above, error) && above.has_relative_path()) above = above.parent_path();
  if (!fs::is_directory(above, error)) {
    throw InvalidArgument(folder.string() + ": " + above.string() + " is not a folder");
  }
  if (::access(above.c_str(), W_OK | X_OK) != 0) {
    throw InvalidArgument(folder.string() + ": " + above.string() + " cannot be written to");
  }
}

void write_folder(const fs::path& given, const Files& files) {
  const fs::path asked = fs::absolute(without_slash(given));
  require_replaceable(asked);
  std::error_code error;
  fs::create_directories(asked.parent_path(), error);
  require(error, asked.parent_path());
  // A way that goes through the folder itself ends while the folder has its other name.
  const fs::path folder = fs::canonical(asked.parent_path()) / asked.filename();
  const std::string tag = "." + std::to_string(::getpid());
  const fs::path fresh = folder.parent_path() / ("." + folder.filename().string() + tag + ".new");
  const fs::path old = folder.parent_path() / ("." + folder.filename().string() + tag + ".old");
  try {
    fs::create_directory(fresh, error);
    require(error, fresh);
    for (const auto& [name, bytes] : files) write_file(fresh / name, bytes);
    const bool replaces = fs::exists(folder);
    if (replaces) fs::rename(folder, old, error);
    require(error, folder);
    fs::rename(fresh, folder, error);
    if (error && replaces) fs::rename(old, folder);
    require(error, folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    throw;
  }
  fs::remove_all(old, error);
}

}  // namespace packstone::sim
