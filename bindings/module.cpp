// The table of contents of monolith._core.
#include "bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of monolith. Private: use monolith.tables, monolith.ids and monolith.data.";
  nanobind::set_leak_warnings(false);  // a model that is alive when the interpreter exits is not a bug of the user
  monolith::BindErrors(m);
  monolith::BindSystem(m);
  monolith::BindIdKernels(m);
  monolith::BindTouchedKeySet(m);
  monolith::BindRowOptimizers(m);
  monolith::BindTableSpec(m);
  monolith::BindWorkerClock(m);
  monolith::BindCut(m);
  monolith::BindGroup(m);
  monolith::BindDevice(m);
  monolith::BindPooledSlots(m);
  monolith::BindDevicePooling(m);
  monolith::BindSnapshot(m);
  monolith::BindExamples(m);
  monolith::BindInputLayout(m);
  monolith::BindJoinEvents(m);
  monolith::BindTextIds(m);
  monolith::BindRequestText(m);
  monolith::BindMessages(m);
  monolith::BindRpc(m);
  monolith::BindRowClient(m);
}
