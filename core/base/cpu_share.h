// How many processors this process may use, and what says so: the machine, its affinity, or the quota of its control
// group, which is how containers are held to a part of a machine. Pure functions of what the kernel says when they are
// called; any thread may call.
#pragma once

#include <string>

namespace monolith {

struct CpuShare {
  int cpus;         // whole ones, at least 1: threads beyond the quota would all be stopped together, again and again
  int machine;      // processors of the machine that are online
  int affinity;     // processors that the process may run on
  double quota;     // of time, in processors; 0 when there is none
  std::string why;  // what decides, in words: "the quota of 2.5 cpus of its control group"
};

CpuShare CpuShareOfThisProcess();

// The smallest quota on the way from the process's control group to the root of them, versions 1 and 2; 0 when there is
// none or it cannot be read. Reads /proc/self and what is mounted, each path behind `root`, which is "" but in tests.
double CpuQuota(const std::string& root);

}  // namespace monolith
