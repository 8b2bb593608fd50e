#include <algorithm>

#include "initializer/kernels.h"

namespace monolith {
namespace {

class Constant final : public Initializer {
 public:
  explicit Constant(float value) : value_(value) {}
  void Fill(uint64_t, float* weights, int dim) const override { std::fill_n(weights, dim, value_); }

 private:
  float value_;
};

}  // namespace

std::unique_ptr<Initializer> MakeZeros(const Params&) { return std::make_unique<Constant>(0.0f); }
std::unique_ptr<Initializer> MakeOnes(const Params&) { return std::make_unique<Constant>(1.0f); }
std::unique_ptr<Initializer> MakeConstant(const Params& params) {
  return std::make_unique<Constant>(params.GetFloat("constant"));
}

}  // namespace monolith
