// Properties of each row optimizer besides its rule: the one table that the factory, the dump format, the Python
// package and the tests read. Its lines are in kinds.cc.
//
// Constant data; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/params.h"
#include "optimizer/row_optimizer.h"

namespace monolith {

using RowOptimizerMaker = std::unique_ptr<RowOptimizer>(int dim, const Params& params);

// A part of a rule's state in a row.
struct StateMember {
  enum class Form {
    kPerWeight,  // a float for each weight of the segment
    kPerRun,     // a float for each run of weights that share it; a rule has one such member at most
    kFloat,
    kInteger,  // int64
  };
  uint32_t dump_field;  // of the dump message
  Form form;
};

// How ByteDance Monolith dumps the state of a rule: docs/formats/entry_dump.md.
struct DumpMessage {
  uint32_t field = 0;                // inside SingleOptimizerDump; 0: upstream has no message for the rule
  std::vector<StateMember> members;  // in the order of the row, together the complete state
};

struct RowOptimizerKind {
  std::string_view name;  // in the schema of a saved table: never changes
  RowOptimizerMaker* make;
  // True iff the update of a weight does not depend on its neighbours under these parameters: adjacent segments with
  // the same rule are then joined. Tables are named by their segments, so a change of this makes saved rows unreadable.
  bool (*is_elementwise)(const Params& params);
  DumpMessage dump;
};

// Returns all kinds, each name once.
const std::vector<RowOptimizerKind>& RowOptimizerKinds();

// Returns null when there is none of this name.
const RowOptimizerKind* FindRowOptimizerKind(std::string_view name);

// Throws Error(kInvalidArgument) with the available names.
const RowOptimizerKind& RowOptimizerKindNamed(std::string_view name);

}  // namespace monolith
