// Messages of a Kafka client: reads all of them in one call, instead of several Python calls per message.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings.h"
#include "chunk.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

// Values end to end; offset and length of the value of each message (-1: it has none), its offset and partition.
using Gathered = std::tuple<VectorArray<uint8_t>, VectorArray<int64_t>, VectorArray<int64_t>, VectorArray<int64_t>,
                            VectorArray<int64_t>>;

// A method without arguments, of messages that all have the class of the first. A method written in C, as those of the
// client are, is called directly: the detour through the interpreter costs more than the method.
class Method {
 public:
  Method(PyObject* first, const char* name)
      : type_(Py_TYPE(first)), name_(nb::steal(PyUnicode_InternFromString(name))), bound_(nb::getattr(first, name)) {
    if (PyCFunction_CheckExact(bound_.ptr()) && PyCFunction_GetFlags(bound_.ptr()) == METH_NOARGS) {
      function_ = PyCFunction_GetFunction(bound_.ptr());
    }
  }

  nb::object operator()(PyObject* message) const {
    PyObject* result = function_ != nullptr && Py_TYPE(message) == type_
                           ? function_(message, nullptr)
                           : PyObject_CallMethodObjArgs(message, name_.ptr(), nullptr);
    if (result == nullptr) throw nb::python_error();
    return nb::steal(result);
  }

  int64_t Number(PyObject* message) const {
    const int64_t number = PyLong_AsLongLong((*this)(message).ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return number;
  }

 private:
  PyTypeObject* type_;
  nb::object name_;
  nb::object bound_;
  PyCFunction function_ = nullptr;
};

VectorArray<uint8_t> EndToEnd(const std::vector<nb::object>& values, const std::vector<int64_t>& lengths, size_t size) {
  auto chunk = std::make_unique<Chunk>(size);
  char* at = chunk->bytes().data();
  for (size_t i = 0; i < values.size(); ++i) {
    if (lengths[i] <= 0) continue;
    std::memcpy(at, PyBytes_AsString(values[i].ptr()), static_cast<size_t>(lengths[i]));
    at += lengths[i];
  }
  return ArrayOfChunk(std::move(chunk), size);
}

// Returns nothing if one of the messages is an event instead.
std::optional<Gathered> GatherMessages(const nb::list& messages) {
  const size_t count = messages.size();
  if (count == 0) throw Error(Code::kInvalidArgument, "expected at least one message, got none");
  PyObject* first = PyList_GetItem(messages.ptr(), 0);
  const Method error(first, "error"), partition(first, "partition"), offset(first, "offset"), value(first, "value");
  std::vector<nb::object> values(count);
  std::vector<int64_t> begins(count), lengths(count), offsets(count), partitions(count);
  int64_t size = 0;
  for (size_t i = 0; i < count; ++i) {
    PyObject* message = PyList_GetItem(messages.ptr(), static_cast<Py_ssize_t>(i));  // borrowed
    if (!error(message).is_none()) return std::nullopt;
    partitions[i] = partition.Number(message);
    offsets[i] = offset.Number(message);
    values[i] = value(message);
    begins[i] = size;
    lengths[i] = values[i].is_none() ? -1 : PyBytes_Size(values[i].ptr());
    if (lengths[i] < 0 && !values[i].is_none()) throw nb::python_error();
    if (lengths[i] > 0) size += lengths[i];
  }
  return Gathered{EndToEnd(values, lengths, static_cast<size_t>(size)), ArrayOf(std::move(begins)),
                  ArrayOf(std::move(lengths)), ArrayOf(std::move(offsets)), ArrayOf(std::move(partitions))};
}

}  // namespace

void BindMessages(nb::module_& m) { m.def("gather_messages", &GatherMessages, "messages"_a); }

}  // namespace monolith
