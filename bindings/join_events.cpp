// Converts records of the joiner's inputs to the input of its state machine: tuples of key, time, sample and actions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "data/join_event.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using EventTuple = nb::typed<nb::tuple, nb::bytes, int64_t, nb::bytes, nb::typed<nb::tuple, int64_t, nb::ellipsis>>;
using EventList = nb::typed<nb::list, EventTuple>;
using Problems = std::vector<std::pair<size_t, std::string>>;

nb::object Owned(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object BytesOf(std::string_view bytes) {
  return Owned(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

// Caches tuples of one action: nearly all lists have one, and there are few distinct ones.
class ActionTuples {
 public:
  nb::object Of(const std::vector<int32_t>& actions) {
    if (actions.empty()) return Remembered(&none_, actions);
    if (actions.size() > 1 || actions[0] < 0 || actions[0] >= kSmall) return Made(actions);
    if (single_.empty()) single_.resize(kSmall);
    return Remembered(&single_[static_cast<size_t>(actions[0])], actions);
  }

 private:
  static constexpr int32_t kSmall = 256;

  static nb::object Made(const std::vector<int32_t>& actions) {
    nb::object made = Owned(PyTuple_New(static_cast<Py_ssize_t>(actions.size())));
    for (size_t i = 0; i < actions.size(); ++i) {
      PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), Owned(PyLong_FromLong(actions[i])).release().ptr());
    }
    return made;
  }

  static nb::object Remembered(nb::object* place, const std::vector<int32_t>& actions) {
    if (!place->is_valid()) *place = Made(actions);
    return *place;
  }

  nb::object none_;
  std::vector<nb::object> single_;
};

// The key is the request, followed by the item in 8 bytes, little-endian.
nb::object KeyOf(const JoinEvent& event, std::string* scratch) {
  scratch->assign(event.request);
  for (int shift = 0; shift < 64; shift += 8) scratch->push_back(static_cast<char>(event.item >> shift));
  return BytesOf(*scratch);
}

nb::object TupleOf(const JoinEvent& event, ActionTuples* actions, std::string* scratch) {
  nb::object made = Owned(PyTuple_New(4));
  PyTuple_SetItem(made.ptr(), 0, KeyOf(event, scratch).release().ptr());
  PyTuple_SetItem(made.ptr(), 1, Owned(PyLong_FromLongLong(event.time_ms)).release().ptr());
  PyTuple_SetItem(made.ptr(), 2, BytesOf(event.sample).release().ptr());
  PyTuple_SetItem(made.ptr(), 3, actions->Of(event.actions).release().ptr());
  return made;
}

// Returns every event that can be read and, for those that cannot, the index in the list and the reason.
std::tuple<EventList, Problems> DecodeJoinEvents(const nb::typed<nb::list, nb::bytes>& records) {
  nb::object events = Owned(PyList_New(0));
  Problems problems;
  ActionTuples actions;
  JoinEvent event;
  std::string scratch;
  for (size_t i = 0; i < records.size(); ++i) {
    const auto record = nb::cast<nb::bytes>(records[i]);
    std::string reason = ReadJoinEvent({record.c_str(), record.size()}, &event);
    if (!reason.empty()) {
      problems.emplace_back(i, std::move(reason));
    } else if (PyList_Append(events.ptr(), TupleOf(event, &actions, &scratch).ptr()) != 0) {
      throw nb::python_error();
    }
  }
  return {nb::borrow<EventList>(events), std::move(problems)};
}

}  // namespace

void BindJoinEvents(nb::module_& m) { m.def("decode_join_events", &DecodeJoinEvents, "records"_a); }

}  // namespace monolith
