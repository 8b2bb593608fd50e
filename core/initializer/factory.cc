#include <cmath>
#include <map>
#include <string>

#include "initializer/kernels.h"

namespace monolith {
namespace {

const std::map<std::string, InitializerMaker*>& Makers() {
  static const std::map<std::string, InitializerMaker*> makers = {
      {"zeros", MakeZeros},
      {"ones", MakeOnes},
      {"constant", MakeConstant},
      {"random_uniform", MakeRandomUniform},
      {"glorot_uniform", MakeGlorotUniform},
      {"random_normal", MakeRandomNormal},
      {"truncated_normal", MakeTruncatedNormal},
  };
  return makers;
}

}  // namespace

std::unique_ptr<Initializer> MakeInitializer(const std::string& kind, const Params& params) {
  const auto maker = Makers().find(kind);
  if (maker == Makers().end()) throw Error(Code::kInvalidArgument, "Unsupported initializer: '" + kind + "'");
  for (const auto& [name, value] : params.values()) {
    if (!std::isfinite(static_cast<float>(value))) {
      throw Error(Code::kInvalidArgument, kind + ": " + name + " must be a finite float, got " + std::to_string(value));
    }
  }
  return maker->second(params);
}

}  // namespace monolith
