// The gradient of an update whose worker read older weights. A pure function.
#pragma once

namespace monolith {

// The gradient at `weight`, estimated from that at the older `latest`, which the worker read.
inline float CompensatedGradient(float gradient, float weight, float latest, float lambda) {
  return gradient + lambda * (gradient * gradient) * (weight - latest);
}

}  // namespace monolith
