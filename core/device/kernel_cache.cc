#include "device/kernel_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "format/crc32c.h"
#include "format/file_io.h"
#include "table/table_spec.h"

namespace monolith::device {
namespace {

// A file is this header, the key and the code. The complete key is compared: its digest, the name of the file, could be
// that of another one.
struct FileHeader {
  char magic[8] = {'m', 'n', 'k', 'e', 'r', 'n', 'l', '1'};
  uint64_t key_size = 0;
  uint64_t code_size = 0;
  uint64_t checksum = 0;  // of key and code
};

FileHeader HeaderFor(std::string_view key, std::string_view code) {
  FileHeader header;
  header.key_size = key.size();
  header.code_size = code.size();
  header.checksum = Crc32cExtend(Crc32c(key), code.data(), code.size());
  return header;
}

// Returns nothing if the file is missing, damaged, or of another key.
std::optional<std::string> ReadCode(const std::string& path, std::string_view key) {
  try {
    const InputFile file(path);
    FileHeader header;
    if (file.size() < sizeof(header) + key.size()) return std::nullopt;
    file.ReadAt(0, reinterpret_cast<char*>(&header), sizeof(header));
    std::string kept(file.size() - sizeof(header), '\0');
    file.ReadAt(sizeof(header), kept.data(), kept.size());
    std::string code = kept.substr(key.size());
    const FileHeader expected = HeaderFor(key, code);
    if (std::memcmp(&header, &expected, sizeof(header)) != 0 || kept.compare(0, key.size(), key) != 0) {
      return std::nullopt;
    }
    return code;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void WriteCode(const std::string& path, std::string_view key, std::string_view code) {
  static std::atomic<uint64_t> num_writes{0};
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  try {
    // Processes and threads that write the same file each have a temporary name; the last to rename wins.
    OutputFile file(path, path + "." + std::to_string(getpid()) + "." + std::to_string(num_writes++) + ".tmp");
    const FileHeader header = HeaderFor(key, code);
    file.Append({reinterpret_cast<const char*>(&header), sizeof(header)});
    file.Append(key);
    file.Append(code);
    file.Commit();
  } catch (const Error&) {
    return;  // compiled again next time
  }
}

}  // namespace

std::string KernelCache::PathOf(const std::string& key) const {
  char name[32];
  std::snprintf(name, sizeof(name), "%016llx.kernels", static_cast<unsigned long long>(DigestOf(key)));
  return folder_ + "/" + name;
}

std::string KernelCache::CodeFor(const std::string& key, const std::function<std::string()>& compile) const {
  if (folder_.empty()) return compile();
  const std::string path = PathOf(key);
  if (std::optional<std::string> code = ReadCode(path, key)) return *std::move(code);
  std::string code = compile();
  WriteCode(path, key, code);
  return code;
}

}  // namespace monolith::device
