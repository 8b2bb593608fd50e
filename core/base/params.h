// Named numbers that configure a kernel, as the Python configs pass them. A value type; not shared between threads.
#pragma once

#include <map>
#include <string>

#include "base/error.h"

namespace monolith {

class Params {
 public:
  Params() = default;
  explicit Params(std::map<std::string, double> values) : values_(std::move(values)) {}

  // REQUIRES: the name is present; the Python configs always send every field.
  double Get(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw Error(Code::kInvalidArgument, "parameter '" + name + "' is missing");
    return found->second;
  }
  float GetFloat(const std::string& name) const { return static_cast<float>(Get(name)); }
  bool GetBool(const std::string& name) const { return Get(name) != 0.0; }
  const std::map<std::string, double>& values() const { return values_; }

 private:
  std::map<std::string, double> values_;
};

}  // namespace monolith
