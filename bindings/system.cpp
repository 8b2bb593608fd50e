// Properties of the core and its machine: version, buckets, threads, CPU features, huge pages, batch memory.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu_share.h"
#include "base/hash.h"
#include "base/instruction_set.h"
#include "base/machine.h"
#include "base/thread_pool.h"
#include "bindings.h"
#include "format/crc32c.h"
#include "memory/buffer.h"

namespace nb = nanobind;

namespace monolith {
namespace {

using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Buckets = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>, nb::c_contig>;

Buckets BucketOfAll(const Ids& ids) {
  const size_t count = ids.shape(0);
  auto* buckets = new int32_t[count];
  const nb::capsule owner(buckets, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
  {
    const nb::gil_scoped_release release;
    const int64_t* source = ids.data();
    for (size_t i = 0; i < count; ++i) buckets[i] = static_cast<int32_t>(BucketOf(source[i]));
  }
  return Buckets(buckets, {count}, owner);
}

// Returns uninitialised floats; their memory is returned to the core's store of batch memory, so that the next batch
// need not clear pages again.
nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig> NewFloats(size_t count) {
  auto* floats = new Buffer<float>(count);
  const nb::capsule owner(floats, [](void* p) noexcept { delete static_cast<Buffer<float>*>(p); });
  return {floats->data(), {count}, owner};
}

// The instruction sets fixed at compile time, then those chosen at run time.
std::vector<std::string> FeaturesInUse() {
  std::vector<std::string> features = CpuFeatures();
  if (Crc32cUsesHardware()) features.emplace_back("crc32c");
  return features;
}

}  // namespace

void BindSystem(nb::module_& m) {
  m.attr("VERSION") = MONOLITH_CORE_VERSION;
  m.attr("NUM_BUCKETS") = kNumBuckets;
  m.def("set_num_threads", &SetNumThreads, nb::arg("n"));
  m.def("num_threads", &NumThreads);
  nb::class_<CpuShare>(m, "CpuShare")
      .def_ro("cpus", &CpuShare::cpus)
      .def_ro("machine", &CpuShare::machine)
      .def_ro("affinity", &CpuShare::affinity)
      .def_ro("quota", &CpuShare::quota)
      .def_ro("why", &CpuShare::why);
  m.def("cpu_share", &CpuShareOfThisProcess);
  m.def("cpu_features", &FeaturesInUse);
  m.def("instruction_set", &InstructionSetInUse);
  m.def("instruction_sets", &AvailableInstructionSets);
  m.def("use_instruction_set", &UseInstructionSet, nb::arg("name"));
  m.def("huge_pages", &HugePages);
  m.def("new_floats", &NewFloats, nb::arg("count"));
  m.def("bucket_of", &BucketOfAll, nb::arg("ids").noconvert());
}

}  // namespace monolith
