// Waiting that Ctrl-C ends: the interpreter handles signals only when it is called to do so.
#pragma once

#include <nanobind/nanobind.h>

#include "vector_array.h"

namespace monolith {

// Calls `has_ended_in(seconds)`, without the GIL, until it returns true. Throws the exception of a signal handler.
// REQUIRES: the GIL is held.
template <typename HasEndedIn>
void WaitHearingSignals(const HasEndedIn& has_ended_in) {
  constexpr double kSeconds = 0.2;
  while (!WithoutGil([&] { return has_ended_in(kSeconds); })) {
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

}  // namespace monolith
