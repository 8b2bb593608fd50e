// What is known of each row optimizer besides its rule: the one table that the factory, the dump format, the Python
// package and the tests read. Its lines are in kinds.cc.
//
// Constant data; any thread may read it at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/params.h"
#include "optimizer/row_optimizer.h"

namespace monolith {

using RowOptimizerMaker = std::unique_ptr<RowOptimizer>(int dim, const Params& params);

// A part of the state that a rule keeps in a row.
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

// How the original dumps the state of a rule: docs/formats/entry_dump.md.
struct DumpMessage {
  uint32_t field = 0;                // inside SingleOptimizerDump; 0: the original has no message for the rule
  std::vector<StateMember> members;  // in the order of the row, together the whole state
};

struct RowOptimizerKind {
  std::string_view name;  // in the schema of a saved table: never changes
  RowOptimizerMaker* make;
  // True iff neighbouring weights do not know of each other under these parameters: segments that lie side by side and
  // learn alike are then joined. Tables are named by their segments, so a change of this loses sight of saved rows.
  bool (*is_elementwise)(const Params& params);
  DumpMessage dump;
};

// All of them, each name once.
const std::vector<RowOptimizerKind>& RowOptimizerKinds();

// Null when there is none of this name.
const RowOptimizerKind* FindRowOptimizerKind(std::string_view name);

// Throws Error(kInvalidArgument) with the names that there are.
const RowOptimizerKind& RowOptimizerKindNamed(std::string_view name);

}  // namespace monolith
