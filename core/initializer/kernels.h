// The makers of the initializers, one per kind, for the factory alone: all other code calls MakeInitializer. Each
// throws kInvalidArgument for a parameter that is missing or out of range. REQUIRES: parameters are finite as floats.
#pragma once

#include <memory>

#include "base/params.h"
#include "initializer/initializer.h"

namespace monolith {

using InitializerMaker = std::unique_ptr<Initializer>(const Params& params);

InitializerMaker MakeZeros;
InitializerMaker MakeOnes;
InitializerMaker MakeConstant;
InitializerMaker MakeRandomUniform;
InitializerMaker MakeGlorotUniform;
InitializerMaker MakeRandomNormal;
InitializerMaker MakeTruncatedNormal;

}  // namespace monolith
