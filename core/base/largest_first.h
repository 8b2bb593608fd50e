// The order in which threads should start tasks of different sizes: a task as large as a thread's share of all, such as
// the one with a very frequent id, would keep all others waiting if it were started last.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace monolith {

// Returns the numbers 0 .. num_tasks - 1, the task with the largest size_of(task) first.
template <typename SizeOf>
std::vector<int> LargestFirst(int num_tasks, SizeOf&& size_of) {
  std::vector<int> tasks(static_cast<size_t>(num_tasks));
  std::iota(tasks.begin(), tasks.end(), 0);
  std::stable_sort(tasks.begin(), tasks.end(), [&](int a, int b) { return size_of(a) > size_of(b); });
  return tasks;
}

}  // namespace monolith
