// What the extension is made of: one Bind function per concept, each in the file of its name, all called once by
// module.cpp while the interpreter holds the GIL. Bindings convert, check shapes and release the GIL; they hold no
// logic and no state.
#pragma once

#include <nanobind/nanobind.h>

#include "base/error.h"

namespace monolith {

class Group;

// The class of monolith.errors that a code becomes.
const char* ErrorClassName(Code code);

// Registers the translation of monolith::Error to the classes of monolith.errors. Comes before every other Bind.
void BindErrors(nanobind::module_& m);
// Versions, threads, CPU features, huge pages, batch memory and the bucket of an id.
void BindSystem(nanobind::module_& m);
// The kinds of row optimizers.
void BindRowOptimizers(nanobind::module_& m);
void BindTableSpec(nanobind::module_& m);
// Stamps of batches, and the place of an update among those of its worker. Comes before the cut and the group.
void BindWorkerClock(nanobind::module_& m);
// Groups of tables, plans, what an update did.
void BindGroup(nanobind::module_& m);
// Plans between ranks, and several plans as one: their classes, and what a group does with them. Called by BindGroup.
void BindPlanMerge(nanobind::module_& m);
void BindGroupMerging(nanobind::class_<Group>& group);
// Row blocks out of groups and into them. Called by BindGroup; comes after the cut, whose iterator it uses.
void BindGroupBlocks(nanobind::module_& m, nanobind::class_<Group>& group);
// Lookups of many slots at once, and their gradients.
void BindPooledSlots(nanobind::module_& m);
// The cut, and iterators over row blocks.
void BindCut(nanobind::module_& m);
// Packing, unique and partition kernels over ids.
void BindIdKernels(nanobind::module_& m);
void BindTouchedKeySet(nanobind::module_& m);
// Framings of record files, and samples to arrays.
void BindExamples(nanobind::module_& m);
// Records of the joiner's inputs to events.
void BindJoinEvents(nanobind::module_& m);
// Samples to the inputs of a model. Comes after the group and the samples.
void BindInputLayout(nanobind::module_& m);
// Texts to ids.
void BindTextIds(nanobind::module_& m);
// Base64, sizes and numbers of requests and answers.
void BindRequestText(nanobind::module_& m);
// Messages of a Kafka client to arrays.
void BindMessages(nanobind::module_& m);
// Frames between processes, and the gate of pushes. Comes after the group.
void BindRpc(nanobind::module_& m);
// Rows that other processes keep. Comes after the frames.
void BindRowClient(nanobind::module_& m);
// Files of row blocks.
void BindSnapshot(nanobind::module_& m);

}  // namespace monolith
