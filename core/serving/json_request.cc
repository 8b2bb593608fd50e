#include "serving/json_request.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "serving/json_reader.h"
#include "serving/request_text.h"

namespace monolith {
namespace {

constexpr std::string_view kBytesKey = "b64";

[[noreturn]] void Refuse(const std::string& sentence) { throw Error(Code::kInvalidArgument, sentence); }

std::string KindOf(char first) {
  switch (first) {
    case '{': return "an object";
    case '[': return "a list";
    case '"': return "a text";
    case 't':
    case 'f': return "true or false";
    case 'n': return "null";
    default: return "a number";
  }
}

std::string Quoted(std::string_view name) { return "'" + std::string(name.substr(0, 80)) + "'"; }

class RequestParser {
 public:
  RequestParser(std::string_view body, int max_depth, size_t max_columns)
      : reader_(body, max_depth), max_columns_(max_columns) {}

  JsonRequest Parse() {
    RequireBody();
    reader_.Expect('{');
    reader_.Enter();
    if (!reader_.Take('}')) {
      do {
        const std::string key(reader_.ReadString());
        reader_.Expect(':');
        ReadMember(key);
      } while (reader_.Take(','));
      reader_.Expect('}');
    }
    reader_.ExpectEnd();
    if (!has_content_) Refuse("the body must have one of 'instances' and 'inputs'");
    return std::move(request_);
  }

 private:
  void RequireBody() {
    const char first = reader_.Peek();
    if (first == '{') return;
    const size_t begin = reader_.position();
    reader_.SkipValue();
    reader_.ExpectEnd();
    const size_t end = reader_.position();
    reader_.Return(begin);
    const bool is_empty = first == '[' && (reader_.Expect('['), reader_.Peek() == ']');
    reader_.Return(end);
    Refuse("the body must be an object with 'instances' or 'inputs', got " +
           (is_empty ? std::string("an empty list") : KindOf(first)));
  }

  void ReadMember(const std::string& key) {
    if (key == "signature_name") {
      if (request_.signature) Refuse("the body has the key 'signature_name' twice");
      if (reader_.Peek() != '"') Refuse("signature_name must be a text, got " + KindOf(reader_.Peek()));
      request_.signature = std::string(reader_.ReadString());
      return;
    }
    if (key != "instances" && key != "inputs") {
      Refuse("the body has the unknown key " + Quoted(key) + "; keys are: signature_name, instances, inputs");
    }
    if (has_content_) Refuse("the body must have one of 'instances' and 'inputs'");
    has_content_ = true;
    request_.is_rows = key == "instances";
    if (request_.is_rows) {
      ReadRows();
    } else {
      ReadColumns();
    }
  }

  // "instances": a list of objects with the same keys, or of values of the only column.
  void ReadRows() {
    if (reader_.Peek() != '[') {
      Refuse("instances must be a list of at least one example, got " + KindOf(reader_.Peek()));
    }
    reader_.Expect('[');
    reader_.Enter();
    if (reader_.Peek() == ']') Refuse("instances must be a list of at least one example, got an empty list");
    int64_t row = 0;
    do {
      const bool is_named = reader_.Peek() == '{' && !IsBytes();
      if (row == 0) {
        request_.is_named = is_named;
        if (!is_named) AddColumn("");
      } else if (is_named != request_.is_named) {
        Refuse("instances must be all objects or all values");
      }
      if (is_named) {
        ReadRow(row);
      } else {
        ReadValue(request_.columns.front(), 0);
      }
      ++row;
    } while (reader_.Take(','));
    reader_.Expect(']');
    reader_.Leave();
  }

  void ReadRow(int64_t row) {
    reader_.Expect('{');
    reader_.Enter();
    size_t count = 0;
    if (!reader_.Take('}')) {
      do {
        const std::string_view key = reader_.ReadString();
        JsonColumn* const column = row == 0 ? &AddColumn(key) : FindColumn(key, count);
        if (column == nullptr || column->num_rows != row) RefuseRow(row, key, column != nullptr);
        reader_.Expect(':');
        ReadValue(*column, 0);
        ++count;
      } while (reader_.Take(','));
      reader_.Expect('}');
    }
    reader_.Leave();
    if (count != request_.columns.size()) RefuseShortRow(row);
    if (row == 0 && count == 0) Refuse("instances: an example must name its values, got an empty object");
  }

  // "inputs": an object of columns, or the rows of the only column.
  void ReadColumns() {
    request_.is_named = reader_.Peek() == '{' && !IsBytes();
    if (!request_.is_named) {
      ReadColumn(AddColumn(""));
      return;
    }
    reader_.Expect('{');
    reader_.Enter();
    if (!reader_.Take('}')) {
      do {
        JsonColumn& column = AddColumn(reader_.ReadString());
        reader_.Expect(':');
        ReadColumn(column);
      } while (reader_.Take(','));
      reader_.Expect('}');
    }
    reader_.Leave();
  }

  void ReadColumn(JsonColumn& column) {
    if (reader_.Peek() != '[') {
      ReadValue(column, 0);
      return;
    }
    reader_.Expect('[');
    reader_.Enter();
    if (!reader_.Take(']')) {
      do {
        ReadValue(column, 0);
      } while (reader_.Take(','));
      reader_.Expect(']');
    }
    reader_.Leave();
  }

  JsonColumn& AddColumn(std::string_view name) {
    const auto [place, is_new] = numbers_.emplace(name, request_.columns.size());
    if (!is_new) Refuse("input " + Quoted(name) + " is given twice");
    if (numbers_.size() > max_columns_) {
      Refuse("a request may have " + std::to_string(max_columns_) + " inputs, got more");
    }
    JsonColumn& column = request_.columns.emplace_back();
    column.name = place->first;
    return column;
  }

  // Finds the column of a key; most rows have their keys in the order of the first.
  JsonColumn* FindColumn(std::string_view key, size_t expected) {
    auto& columns = request_.columns;
    if (expected < columns.size() && columns[expected].name == key) return &columns[expected];
    const auto found = numbers_.find(key);
    return found == numbers_.end() ? nullptr : &columns[found->second];
  }

  [[noreturn]] void RefuseRow(int64_t row, std::string_view key, bool is_twice) {
    Refuse("instances: example " + std::to_string(row) + " must have " + Names() + " as the first one, got " +
           Quoted(key) + (is_twice ? " twice" : ""));
  }

  [[noreturn]] void RefuseShortRow(int64_t row) {
    const auto& columns = request_.columns;
    const auto missing = std::ranges::find_if(columns, [&](const auto& each) { return each.num_rows != row + 1; });
    Refuse("instances: example " + std::to_string(row) + " must have " + Names() + " as the first one, and " +
           Quoted(missing->name) + " is missing");
  }

  std::string Names() const {
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(request_.columns.size(), 8); ++i) {
      names += (i == 0 ? "" : ", ") + request_.columns[i].name.substr(0, 80);
    }
    return request_.columns.size() > 8 ? names + ", ..." : names;
  }

  // Whether the next object is {"b64": "..."}. Its text is kept, so that it is not looked through again.
  bool IsBytes() {
    const size_t begin = reader_.position();
    if (base64_.begin == begin) return true;
    reader_.Expect('{');
    bool is_bytes = reader_.Peek() == '"' && reader_.ReadString() == kBytesKey && reader_.Take(':');
    is_bytes = is_bytes && reader_.Peek() == '"';
    if (is_bytes) {
      const size_t text = reader_.position();
      const std::string_view raw = reader_.ReadRawString();
      is_bytes = reader_.Take('}');
      if (is_bytes) base64_ = {begin, text, reader_.position(), raw};
    }
    reader_.Return(begin);
    return is_bytes;
  }

  // Reads a value of a column, in a list at depth `level`, or a row if `level` is 0.
  void ReadValue(JsonColumn& column, size_t level) {
    if (column.levels.size() <= level) column.levels.resize(level + 1);
    const char first = reader_.Peek();
    if (first == '[') {
      ReadList(column, level);
    } else {
      ReadLeaf(column, first);
      CountLeaf(column, level);
    }
    if (level == 0) ++column.num_rows;
  }

  void CountLeaf(JsonColumn& column, size_t depth) {
    auto& level = column.levels[depth];
    ++level.num_values;
    if (level.num_lists == 0) return;
    if (depth > 0) {
      column.kinds |= kJsonDeepMixed;
    } else {
      column.kinds |= kJsonRowMixed;
      level.splits.push_back(level.splits.back() + 1);
    }
  }

  void ReadList(JsonColumn& column, size_t depth) {
    BeginList(column, depth);
    reader_.Expect('[');
    reader_.Enter();
    int64_t count = 0;
    if (!reader_.Take(']')) {
      do {
        ReadValue(column, depth + 1);
        ++count;
      } while (reader_.Take(','));
      reader_.Expect(']');
    }
    reader_.Leave();
    auto& level = column.levels[depth];  // looked up again: deeper lists add levels
    if (depth == 0) level.splits.push_back(level.splits.back() + count);
    level.differs = level.differs || (level.width >= 0 && level.width != count);
    level.width = count;
  }

  void BeginList(JsonColumn& column, size_t depth) {
    auto& level = column.levels[depth];
    if (depth == 0 && level.num_lists == 0) {  // earlier rows are values, each equivalent to a list of one
      level.splits.resize(static_cast<size_t>(level.num_values) + 1);
      for (size_t i = 0; i < level.splits.size(); ++i) level.splits[i] = static_cast<int64_t>(i);
    }
    if (level.num_values > 0) column.kinds |= depth > 0 ? kJsonDeepMixed : kJsonRowMixed;
    ++level.num_lists;
  }

  void ReadLeaf(JsonColumn& column, char first) {
    if (first == '"') {
      AddText(column, reader_.ReadString());
    } else if (first == '{') {
      ReadObject(column);
    } else if (first == 't' || first == 'f' || first == 'n') {
      AddLiteral(column, reader_.ReadLiteral());
    } else {
      AddNumber(column, reader_.ReadNumber());
    }
  }

  void ReadObject(JsonColumn& column) {
    if (!IsBytes()) {
      column.kinds |= kJsonObject;
      reader_.SkipValue();
      return;
    }
    if (!AddBase64(column, base64_.raw)) {
      reader_.Return(base64_.text);
      const std::string text(reader_.ReadString());  // it may have escapes
      if (!AddBase64(column, text)) column.kinds |= kJsonBytes | kJsonNotBase64;
    }
    reader_.Return(base64_.end);
  }

  static bool AddBase64(JsonColumn& column, std::string_view text) {
    const auto size = DecodedSize(text);
    if (!size) return false;
    const size_t begin = column.bytes.size();
    column.bytes.resize(begin + *size);
    const bool is_base64 = DecodeBase64(text, column.bytes.data() + begin);
    if (!is_base64) {
      column.bytes.resize(begin);
      return false;
    }
    column.offsets.push_back(static_cast<int64_t>(column.bytes.size()));
    column.kinds |= kJsonBytes;
    return true;
  }

  static void AddText(JsonColumn& column, std::string_view text) {
    column.bytes.append(text);
    column.offsets.push_back(static_cast<int64_t>(column.bytes.size()));
    column.kinds |= kJsonText;
  }

  static void AddLiteral(JsonColumn& column, char first) {
    if (first == 'n') {
      column.kinds |= kJsonNull;
      return;
    }
    column.kinds |= kJsonBool;
    if (!column.real.empty()) column.real.push_back(first == 't' ? 1 : 0);
    if ((column.kinds & kJsonReal) == 0) column.whole.push_back(first == 't' ? 1 : 0);
  }

  static void AddNumber(JsonColumn& column, const JsonNumber& number) {
    if (number.is_whole) {
      column.kinds |= kJsonWhole | (number.is_unsigned ? kJsonUnsigned : 0U);
    } else {
      column.kinds |= kJsonReal | (number.is_large ? kJsonLarge : 0U);
    }
    if (!number.is_whole || number.is_unsigned || !column.real.empty()) {
      if (column.real.empty()) column.real.assign(column.whole.begin(), column.whole.end());
      column.real.push_back(number.real);
    }
    if ((column.kinds & kJsonReal) == 0) column.whole.push_back(number.whole);
  }

  // The last object that holds bytes: positions of the object, of its text and of its end; the text with its escapes.
  struct Base64Object {
    size_t begin = std::string_view::npos;
    size_t text = 0;
    size_t end = 0;
    std::string_view raw;
  };

  JsonReader reader_;
  Base64Object base64_;
  size_t max_columns_;
  bool has_content_ = false;
  JsonRequest request_;
  std::map<std::string, size_t, std::less<>> numbers_;  // of columns, by name
};

}  // namespace

JsonRequest ParseJsonRequest(std::string_view body, int max_depth, size_t max_columns) {
  return RequestParser(body, max_depth, max_columns).Parse();
}

}  // namespace monolith
