// A prediction request as JSON, decoded in one pass into arrays, without an object per value.
//
// Plain functions over values; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace monolith {

// Kinds of the values of a column; a column may have several, which its reader may reject.
enum JsonKind : uint32_t {
  kJsonWhole = 1,         // an integer of 64 bits
  kJsonReal = 2,          // a number with a fraction or an exponent
  kJsonText = 4,          // a string
  kJsonBytes = 8,         // {"b64": "..."}
  kJsonBool = 16,         // true or false, stored in `whole` as 1 and 0
  kJsonNull = 32,         // null
  kJsonObject = 64,       // any other object
  kJsonUnsigned = 128,    // an integer above the largest int64; comes with kJsonWhole
  kJsonLarge = 256,       // an integer beyond 64 bits; comes with kJsonReal
  kJsonRowMixed = 512,    // rows that are values, and rows that are lists
  kJsonDeepMixed = 1024,  // values and lists next to each other inside of a row
  kJsonNotBase64 = 2048,  // "b64" with an invalid value; comes with kJsonBytes
};

// A column: one value or list of values for each row.
struct JsonColumn {
  // Lists at one depth. Rows are at depth 0.
  struct Level {
    std::vector<int64_t> splits;  // ends of the lists among the values below; filled at depth 0
    int64_t num_lists = 0;
    int64_t num_values = 0;  // not counting lists
    int64_t width = -1;      // values of each list; -1: no list yet, or they differ
    bool differs = false;
  };

  std::string name;
  uint32_t kinds = 0;
  int64_t num_rows = 0;
  std::vector<Level> levels;
  std::vector<int64_t> whole;  // numbers, if all of them are integers
  std::vector<double> real;    // numbers, if one of them is no int64
  std::string bytes;           // of strings and bytes, end to end
  std::vector<int64_t> offsets = {0};
};

struct JsonRequest {
  std::optional<std::string> signature;
  bool is_rows = false;   // "instances": a row for each example; otherwise "inputs": columns
  bool is_named = false;  // otherwise `columns` is one column without a name
  std::vector<JsonColumn> columns;
};

// Decodes the body of a request. An object may have at most `max_columns` keys. Throws Error(kInvalidArgument) for an
// invalid request, with a message for its client.
JsonRequest ParseJsonRequest(std::string_view body, int max_depth, size_t max_columns);

}  // namespace monolith
