// The makers of the row optimizers, for the table of kinds alone: all other code calls MakeRowOptimizer. Each reads the
// parameters it needs from `params` and throws kInvalidArgument for one that is missing or out of range. REQUIRES: dim
// >= 1.
#pragma once

#include <memory>

#include "base/params.h"
#include "optimizer/kinds.h"
#include "optimizer/row_optimizer.h"

namespace monolith {

RowOptimizerMaker MakeSgd;
RowOptimizerMaker MakeAdagrad;
RowOptimizerMaker MakeAdadelta;
RowOptimizerMaker MakeAdam;
RowOptimizerMaker MakeAmsgrad;
RowOptimizerMaker MakeFtrl;
RowOptimizerMaker MakeGroupFtrl;
RowOptimizerMaker MakeGroupAdagrad;
RowOptimizerMaker MakeDynamicWdAdagrad;
RowOptimizerMaker MakeMomentum;
RowOptimizerMaker MakeMovingAverage;
RowOptimizerMaker MakeRmsprop;
RowOptimizerMaker MakeRmspropV2;
RowOptimizerMaker MakeBatchSoftmax;

// Passes g + lambda * g^2 * (w - latest) to the base; the plain gradient when the call has no latest weights.
std::unique_ptr<RowOptimizer> CompensateDelay(std::unique_ptr<RowOptimizer> base, float lambda);

// Rounds the base's result to binary16, up or down at random so that the mean is preserved.
std::unique_ptr<RowOptimizer> RoundStochastically(std::unique_ptr<RowOptimizer> base);

}  // namespace monolith
