#include "device/kernel_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace monolith::device {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public testing::Test {
 protected:
  KernelCacheTest() {
    std::string name = testing::TempDir() + "monolith-kernels-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~KernelCacheTest() override { fs::remove_all(folder_); }

  // Returns the code from a cache whose compiler makes `code`, and counts how often it was called.
  std::string Get(const std::string& key, const std::string& code) { return Get(folder_ + "/kernels", key, code); }
  std::string Get(const std::string& folder, const std::string& key, const std::string& code) {
    return KernelCache(folder).CodeFor(key, [&] {
      ++num_compiled_;
      return code;
    });
  }
  std::string Path(const std::string& key) { return KernelCache(folder_ + "/kernels").PathOf(key); }
  static std::string ReadAll(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void WriteAll(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string folder_;
  int num_compiled_ = 0;
};

TEST_F(KernelCacheTest, CompilesOnceForEachKey) {
  const std::string code("machine\0code", 12);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get("a", code), code);
  EXPECT_EQ(num_compiled_, 1);
  EXPECT_EQ(Get("b", "other"), "other");
  EXPECT_EQ(Get("a", "never made"), code);
  EXPECT_EQ(num_compiled_, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/kernels"), {}), 2) << "temporary files remain";
}

TEST_F(KernelCacheTest, KeepsNothingWithoutAFolder) {
  EXPECT_EQ(Get("", "a", "first"), "first");
  EXPECT_EQ(Get("", "a", "second"), "second");
}

TEST_F(KernelCacheTest, DamagedFilesAreCompiledAgainAndReplaced) {
  const std::string code(1000, 'c');
  Get("key", code);
  const std::string whole = ReadAll(Path("key"));
  int expected = 1;
  for (size_t i = 0; i < whole.size(); i += 41) {  // every part: header, key and code
    std::string damaged = whole;
    damaged[i] ^= 1;
    WriteAll(Path("key"), damaged);
    ASSERT_EQ(Get("key", code), code) << i;
    ASSERT_EQ(num_compiled_, ++expected) << i;
    ASSERT_EQ(ReadAll(Path("key")), whole) << i;
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{32}, size_t{34}, size_t{35}, whole.size() - 1}) {
    WriteAll(Path("key"), whole.substr(0, size));
    ASSERT_EQ(Get("key", code), code) << size;
    ASSERT_EQ(num_compiled_, ++expected) << size;
  }
  WriteAll(Path("key"), whole + "x");
  EXPECT_EQ(Get("key", code), code);
  EXPECT_EQ(num_compiled_, ++expected);
}

TEST_F(KernelCacheTest, CodeOfAnotherKeyIsNeverReturned) {
  Get("key", "code");
  Get("yek", "edoc");
  fs::copy_file(Path("yek"), Path("key"), fs::copy_options::overwrite_existing);  // as if their digests were equal
  EXPECT_EQ(Get("key", "compiled again"), "compiled again");
}

TEST_F(KernelCacheTest, FoldersThatTakeNoFilesCostACompilation) {
  WriteAll(folder_ + "/file", "");
  fs::create_directories(folder_ + "/kernels/" + fs::path(Path("key")).filename().string());
  for (const std::string& folder : {folder_ + "/file", folder_ + "/file/below", folder_ + "/kernels"}) {
    EXPECT_EQ(Get(folder, "key", "first"), "first") << folder;
    EXPECT_EQ(Get(folder, "key", "second"), "second") << folder;
  }
  if (::geteuid() == 0) return;  // root writes everywhere
  fs::create_directories(folder_ + "/locked");
  ::chmod((folder_ + "/locked").c_str(), 0500);
  EXPECT_EQ(Get(folder_ + "/locked", "key", "first"), "first");
  EXPECT_EQ(Get(folder_ + "/locked", "key", "second"), "second");
}

TEST_F(KernelCacheTest, ErrorsOfTheCompilerPassThroughAndNothingIsKept) {
  const KernelCache cache(folder_ + "/kernels");
  EXPECT_THROW(cache.CodeFor("key", []() -> std::string { throw Error(Code::kInternal, "no"); }), Error);
  EXPECT_EQ(Get("key", "code"), "code");
}

TEST_F(KernelCacheTest, ManyWritersOfOneKeyLeaveOneValidFile) {
  const std::string code(100'000, 'c');
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) {
        const std::string got = KernelCache(folder_ + "/kernels").CodeFor("key", [&] { return code; });
        EXPECT_EQ(got, code);
        fs::remove(Path("key"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Get("key", code);
  EXPECT_EQ(Get("key", "never made"), code);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ + "/kernels"), {}), 1);
}

}  // namespace
}  // namespace monolith::device
