// What a table does about a gradient that is NaN or infinite.
#pragma once

namespace monolith {

enum class NonFinite { kRaise, kSkip, kApply };

}  // namespace monolith
