// The inverse of the standard normal distribution function, by Wichura's algorithm AS 241 (Applied Statistics 37,
// 1988), with a relative error near 1e-16. A pure function; thread-safe.
//
// Between 0.075 and 0.925 it uses only arithmetic, hence gives the same bits everywhere; outside it also calls log.
#pragma once

namespace monolith {

// REQUIRES: 0 < probability < 1.
double NormalQuantile(double probability);

}  // namespace monolith
