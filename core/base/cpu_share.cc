#include "base/cpu_share.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "base/text_file.h"

namespace monolith {
namespace {

std::vector<std::string> SplitWords(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool HasWord(const std::string& list, const std::string& word) {
  const std::vector<std::string> words = SplitWords(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Returns the numbers at the beginning of a file, or none: "max" is not a number.
std::vector<double> ReadNumbers(const std::string& path) {
  const std::string text = ReadTextFile(path);
  std::vector<double> numbers;
  const char* place = text.c_str();
  for (char* end = nullptr;; place = end) {
    const double number = std::strtod(place, &end);
    if (end == place) return numbers;
    numbers.push_back(number);
  }
}

std::optional<double> QuotaOf(const std::vector<double>& quota, const std::vector<double>& period) {
  if (quota.empty() || period.empty() || !(quota[0] > 0.0) || !(period[0] > 0.0)) return std::nullopt;
  return quota[0] / period[0];
}

std::optional<double> QuotaOfFolder(const std::string& folder, bool unified) {
  if (!unified) return QuotaOf(ReadNumbers(folder + "/cpu.cfs_quota_us"), ReadNumbers(folder + "/cpu.cfs_period_us"));
  const std::vector<double> numbers = ReadNumbers(folder + "/cpu.max");
  return numbers.size() < 2 ? std::nullopt : QuotaOf({numbers[0]}, {numbers[1]});
}

// A mount of the control groups of one version: `group` is mounted at `folder`.
struct Mount {
  std::string group;
  std::string folder;
  bool unified;
};

// Parses a line of mountinfo: "36 35 98:0 /group /folder options [more ...] - type source super-options".
std::optional<Mount> ParseMount(const std::string& line) {
  const size_t end = line.find(" - ");
  if (end == std::string::npos) return std::nullopt;
  const std::vector<std::string> place = SplitWords(line.substr(0, end), ' ');
  const std::vector<std::string> kind = SplitWords(line.substr(end + 3), ' ');
  if (place.size() < 5 || kind.size() < 3) return std::nullopt;
  const bool unified = kind[0] == "cgroup2";
  if (!unified && !(kind[0] == "cgroup" && HasWord(kind[2], "cpu"))) return std::nullopt;
  return Mount{place[3], place[4], unified};
}

// Returns the process's group in the hierarchy of a mount, from the lines "number:controllers:group" of
// /proc/self/cgroup.
std::optional<std::string> GroupOf(const std::string& root, bool unified) {
  for (const std::string& line : SplitWords(ReadTextFile(root + "/proc/self/cgroup"), '\n')) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (unified ? controllers.empty() : HasWord(controllers, "cpu")) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Returns the path of the group inside the mount. A group outside of the mount is not visible: then the mount itself is
// the best guess, and in a container usually the right one.
std::string Below(const Mount& mount, const std::string& group) {
  if (mount.group == "/") return group;
  const bool inside = group == mount.group || group.starts_with(mount.group + "/");
  return inside ? group.substr(mount.group.size()) : "";
}

std::string InWords(double quota) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", quota);
  return text;
}

int Affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(
      std::max(1u, std::thread::hardware_concurrency()));  // more processors than the set can represent
}

}  // namespace

double CpuQuota(const std::string& root) {
  double smallest = 0.0;
  for (const std::string& line : SplitWords(ReadTextFile(root + "/proc/self/mountinfo"), '\n')) {
    const std::optional<Mount> mount = ParseMount(line);
    if (!mount) continue;
    const std::optional<std::string> group = GroupOf(root, mount->unified);
    if (!group) continue;
    std::string below = Below(*mount, *group);
    for (;;) {
      const std::optional<double> quota = QuotaOfFolder(root + mount->folder + below, mount->unified);
      if (quota && (smallest == 0.0 || *quota < smallest)) smallest = *quota;
      if (below.empty()) break;
      below.resize(below.find_last_of('/') == std::string::npos ? 0 : below.find_last_of('/'));
    }
  }
  return smallest;
}

CpuShare CpuShareOfThisProcess() {
  const int machine = static_cast<int>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));
  CpuShare share{Affinity(), machine, Affinity(), CpuQuota(""), ""};
  if (share.quota > 0.0 && share.quota < share.affinity) {
    share.cpus = std::max(1, static_cast<int>(std::floor(share.quota)));
    share.why = "the quota of " + InWords(share.quota) + " cpus of its control group";
  } else if (share.affinity < machine) {
    share.why = "the " + std::to_string(share.affinity) + " cpus that the process may run on";
  } else {
    share.why = "the cpus of the machine";
  }
  return share;
}

}  // namespace monolith
