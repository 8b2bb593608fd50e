// The rules of row optimizers: the arithmetic of one update, written once for CPU and GPU.
//
// A rule is a struct of its parameters, which are plain numbers, so that its bytes can be copied to a device. Its
// functions are pure, lock nothing, and are compiled for the CPU and, from the same text, at run time for a GPU:
// `*_rule.h` reach headers of the core and those of the standard library that tests/test_core_layers.py lists, no
// others.
//
// A rule has one of two forms.
//
// Elementwise: a weight is updated without its neighbours. Loops over the weights vectorise, and threads of a GPU may
// share a segment. The rule derives from ElementwiseRule.
//
// Of the segment: weights depend on each other. The rule has
//
//   int StateBytes(int dim) const;
//   void InitState(std::byte* state, int dim) const;
//   void Learn(const UpdateContext&, float* weights, std::byte* state, const float* gradient, int dim) const;
//
// which are those of RowOptimizer.
#pragma once

#include <cstddef>

#include "optimizer/update_context.h"

namespace monolith {

// Defaults of an elementwise rule, which hides those that differ and adds
//
//   void Learn(numbers, float gradient, float& weight, float& member, ...) const;
//
// with the result of Begin() and the kMembers members of the weight. The state of a segment is float
// members[kMembers][dim], then the scalars.
struct ElementwiseRule {
  static constexpr int kMembers = 0;             // floats of state for each weight
  static constexpr int kScalarBytes = 0;         // state that all weights share; a multiple of 4
  static constexpr bool kDividesByRate = false;  // true: updates with learning rate 0 must be skipped

  float InitialMember(int) const { return 0.0f; }
  void InitScalars(std::byte*) const {}
  // Called once for each update of a segment, before its first weight and after its last one.
  float Begin(const UpdateContext& context, const std::byte*) const { return context.learning_rate; }
  void End(const UpdateContext&, std::byte*) const {}
};

}  // namespace monolith
