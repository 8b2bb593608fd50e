// JSON requests. Input: a body. A decoded request must be consistent: it has the values of all its rows.
#include <string>

#include "base/error.h"
#include "input.h"
#include "serving/json_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  JsonRequest request;
  try {
    request = ParseJsonRequest(body, 16, 64);
  } catch (const Error& error) {
    Expect(error.code() == Code::kInvalidArgument);
    return 0;
  }
  Expect(request.columns.size() <= 64);
  for (const JsonColumn& column : request.columns) {
    Expect(column.offsets.back() == static_cast<int64_t>(column.bytes.size()));
    if (column.levels.empty()) continue;
    const auto& rows = column.levels.front();
    Expect(rows.num_lists + rows.num_values == column.num_rows);
    Expect(rows.num_lists == 0 || rows.splits.size() == static_cast<size_t>(column.num_rows) + 1);
    if (column.levels.size() == 1 && rows.num_lists == 0 && column.kinds == kJsonWhole) {
      Expect(column.whole.size() == static_cast<size_t>(column.num_rows));
    }
  }
  return 0;
}
