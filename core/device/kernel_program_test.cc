#include "device/kernel_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>

#include "device/launcher.h"

namespace monolith::device {
namespace {

// Names between the quotes or brackets of the #include directives of a text, except those for the processor alone.
std::set<std::string> IncludesOf(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("#include ", 0) == 0) names.insert(line.substr(10, line.find_last_of("\">") - 10));
  }
  return names;
}

TEST(KernelProgramTest, HasEveryHeaderThatItIncludes) {
  const KernelProgram program = KernelProgramFor(90);
  std::set<std::string> given;
  for (const SourceFile& header : program.headers) EXPECT_TRUE(given.insert(header.name).second) << header.name;
  EXPECT_TRUE(given.contains("device/kernels/all.h"));
  EXPECT_TRUE(given.contains("base/hash.h"));
  for (const std::string& name : IncludesOf(program.main)) EXPECT_TRUE(given.contains(name)) << name;
  for (const SourceFile& header : program.headers) {
    for (const std::string& name : IncludesOf(header.text)) {
      EXPECT_TRUE(given.contains(name)) << name << " of " << header.name;
    }
  }
}

TEST(KernelProgramTest, HeadersEndWhereTheirFilesEnd) {
  for (const SourceFile& header : KernelProgramFor(90).headers) {
    const std::string text = header.text;
    ASSERT_FALSE(text.empty()) << header.name;
    EXPECT_EQ(text.back(), '\n') << header.name;
    EXPECT_NE(text.find("#pragma once\n"), std::string::npos) << header.name;
  }
}

TEST(KernelProgramTest, OptionsNameTheArchitectureAndForbidInexactArithmetic) {
  const KernelProgram program = KernelProgramFor(100);
  EXPECT_EQ(program.options.front(), "--gpu-architecture=sm_100");
  for (const char* option : {"--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"}) {
    EXPECT_NE(std::find(program.options.begin(), program.options.end(), option), program.options.end()) << option;
  }
}

TEST(KernelProgramTest, KeyDependsOnEverythingThatTheCodeDependsOn) {
  const KernelProgram program = KernelProgramFor(90);
  std::set<std::string> keys = {KeyOf(program, "13.0"), KeyOf(program, "13.1"), KeyOf(KernelProgramFor(80), "13.0")};
  KernelProgram other = program;
  other.main += " ";
  keys.insert(KeyOf(other, "13.0"));
  other = program;
  other.options.push_back("--maxrregcount=64");
  keys.insert(KeyOf(other, "13.0"));
  other = program;
  other.headers[0].text = "";
  keys.insert(KeyOf(other, "13.0"));
  other = program;
  other.headers[0].name = "other.h";
  keys.insert(KeyOf(other, "13.0"));
  EXPECT_EQ(keys.size(), 7u);
  EXPECT_EQ(KeyOf(program, "13.0"), KeyOf(KernelProgramFor(90), "13.0"));
}

TEST(KernelProgramTest, NamesOfKernelsDiffer) {
  const std::set<std::string> names(std::begin(kKernelNames), std::end(kKernelNames));
  EXPECT_EQ(static_cast<int>(names.size()), kNumKernels);
}

}  // namespace
}  // namespace monolith::device
