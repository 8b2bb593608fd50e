// The parts of the extension: one Bind function per concept, each in the file of its name, all called once by
// module.cpp while the interpreter holds the GIL. Bindings convert, check shapes and release the GIL; they hold no
// logic and no state.
#pragma once

#include <nanobind/nanobind.h>

#include "base/error.h"

namespace monolith {

class Group;
namespace device {
class DeviceGroup;
}

// Returns the name of the class in monolith.errors for a code.
const char* ErrorClassName(Code code);

// Registers the translation of monolith::Error to the classes of monolith.errors. Must precede every other Bind.
void BindErrors(nanobind::module_& m);
// Versions, threads, CPU features, huge pages, batch memory and the bucket of an id.
void BindSystem(nanobind::module_& m);
// The kinds of row optimizers.
void BindRowOptimizers(nanobind::module_& m);
void BindTableSpec(nanobind::module_& m);
// Stamps of batches, and the position of an update among those of its worker. Must precede the cut and the group.
void BindWorkerClock(nanobind::module_& m);
// Groups of tables, plans, results of updates.
void BindGroup(nanobind::module_& m);
// Plans exchanged between ranks, and merged plans: their classes, and the calls of a group that use them. Called by
// BindGroup.
void BindPlanMerge(nanobind::module_& m);
void BindGroupMerging(nanobind::class_<Group>& group);
// Reading row blocks from groups and loading them. Called by BindGroup; must follow the cut, whose iterator it uses.
void BindGroupBlocks(nanobind::module_& m, nanobind::class_<Group>& group);
// Tables whose rows are on a device, and where their kernels run. Must follow the group.
void BindDevice(nanobind::module_& m);
void BindDeviceBlocks(nanobind::class_<device::DeviceGroup>& group);
// Pooled lookups of many slots, and their gradients.
void BindPooledSlots(nanobind::module_& m);
// The same by the kernels of a device. Must follow both.
void BindDevicePooling(nanobind::module_& m);
// The cut, and iterators over row blocks.
void BindCut(nanobind::module_& m);
// Packing, unique and partition kernels over ids.
void BindIdKernels(nanobind::module_& m);
void BindTouchedKeySet(nanobind::module_& m);
// Framings of record files, and the conversion of samples to arrays.
void BindExamples(nanobind::module_& m);
// Conversion of the joiner's input records to events.
void BindJoinEvents(nanobind::module_& m);
// Conversion of samples to the inputs of a model. Must follow the group and the samples.
void BindInputLayout(nanobind::module_& m);
// Ids of texts.
void BindTextIds(nanobind::module_& m);
// Base64, sizes and numbers of requests and answers.
void BindRequestText(nanobind::module_& m);
// Conversion of a Kafka client's messages to arrays.
void BindMessages(nanobind::module_& m);
// Frames between processes, and the gate of pushes. Must follow the group.
void BindRpc(nanobind::module_& m);
// Rows stored by other processes. Must follow the frames.
void BindRowClient(nanobind::module_& m);
// Files of row blocks.
void BindSnapshot(nanobind::module_& m);

}  // namespace monolith
