#include "agent/memory_budget.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace smon_rt {
namespace {

constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 60;  // v1 says a little less than 2^63

/// The number in a file; none for "max", or what is no number.
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

/// The number behind a word at the begin of a line.
std::uint64_t read_field(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::uint64_t value = 0;
    if (word == name && file >> value) return value;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

struct CgroupFiles {
  const char* limit;
  const char* used;
  const char* idle_cache;  // of memory.stat
};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

void take_group(MemoryBudget& budget, const std::string& mount, const std::string& group, const CgroupFiles& files) {
  const std::string folder = mount + group + "/";
  const auto limit = read_number(folder + files.limit);
  const auto used = read_number(folder + files.used);
  if (!limit || !used || *limit >= kUnlimited) return;
  const std::uint64_t needed = *used - std::min(*used, read_field(folder + "memory.stat", files.idle_cache));
  const std::uint64_t left = *limit - std::min(*limit, needed);
  if (left >= budget.available_bytes) return;
  budget = {left, "cgroup " + (group.empty() ? "/" : group) + ": " + files.limit + " is " + describe_bytes(*limit) +
                      ", of which " + describe_bytes(needed) + " are used"};
}

/// A group, and those around it: each has its own limit.
void take_groups(MemoryBudget& budget, const std::string& mount, std::string group, const CgroupFiles& files) {
  if (group == "/") group.clear();
  while (true) {
    take_group(budget, mount, group, files);
    if (group.empty()) return;
    const auto slash = group.find_last_of('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

std::string describe_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

MemoryBudget read_memory_budget(const std::string& root) {
  MemoryBudget budget{std::numeric_limits<std::uint64_t>::max(), "no limit is known"};
  if (const std::uint64_t available = read_field(root + "/proc/meminfo", "MemAvailable:") * 1024; available > 0) {
    budget = {available, "this node: MemAvailable is " + describe_bytes(available)};
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/job" (v2), "9:memory:/job" (v1)
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    const std::string mount = root + "/sys/fs/cgroup";
    if (controllers == ",,") take_groups(budget, mount, group, kVersion2);
    if (controllers.find(",memory,") != std::string::npos) take_groups(budget, mount + "/memory", group, kVersion1);
  }
  return budget;
}

Result<void> check_memory_budget(const MemoryBudget& budget, std::uint64_t bytes, const std::string& purpose) {
  constexpr std::uint64_t kLeftAlone = std::uint64_t{1} << 30;
  const std::uint64_t usable = budget.available_bytes - std::min(kLeftAlone, budget.available_bytes / 16);
  if (bytes <= usable) return {};
  return Error{purpose + " need " + describe_bytes(bytes) + " of memory, and " + describe_bytes(usable) +
               " may be taken (" + budget.limit + "): give the job more memory, or capture less"};
}

}  // namespace smon_rt
