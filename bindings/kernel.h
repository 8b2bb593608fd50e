// Conversion of a kernel's kind and parameters from Python: a pair of its name and a dictionary of numbers.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "table/table_spec.h"

namespace monolith {

using KernelPair = std::pair<std::string, std::map<std::string, double>>;

inline Kernel KernelOf(const KernelPair& pair) { return {pair.first, Params(pair.second)}; }

}  // namespace monolith
