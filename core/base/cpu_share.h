// Number of processors that this process may use, and what limits it: the machine, its affinity, or the quota of its
// control group, by which containers are limited to a part of a machine. Pure functions of the kernel's state at the
// time of the call; thread-safe.
#pragma once

#include <string>

namespace monolith {

struct CpuShare {
  int cpus;      // an integer, at least 1: the kernel would repeatedly throttle all threads if they exceeded the quota
  int machine;   // processors of the machine that are online
  int affinity;  // processors that the process may run on
  double quota;  // of time, in processors; 0 when there is none
  std::string why;  // the limiting factor in words: "the quota of 2.5 cpus of its control group"
};

CpuShare CpuShareOfThisProcess();

// Returns the smallest quota from the process's control group up to the root, versions 1 and 2; 0 when there is none or
// it cannot be read. Reads /proc/self and the mounted groups, each path prefixed with `root`, which is "" except in
// tests.
double CpuQuota(const std::string& root);

}  // namespace monolith
