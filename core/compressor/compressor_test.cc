#include "compressor/compressor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace monolith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::unique_ptr<Compressor> Make(const std::string& kind) {
  return MakeCompressor(
      kind, Params({{"r", 1.0}, {"step_size", 200}, {"init_scale", 1.0}, {"max_scale", 10000.0}, {"amplitude", 0.05}}));
}

std::vector<float> RoundTrip(const Compressor& compressor, std::vector<float> values) {
  const int dim = static_cast<int>(values.size());
  values.push_back(9.0f);  // encoders read only their own dims
  // One byte before and one after: encoders neither need alignment nor write outside their own bytes.
  std::vector<std::byte> bytes(static_cast<size_t>(compressor.BytesFor(dim)) + 2, std::byte{0xa5});
  compressor.Encode(values.data(), bytes.data() + 1, dim);
  EXPECT_EQ(bytes.front(), std::byte{0xa5});
  EXPECT_EQ(bytes.back(), std::byte{0xa5});
  std::vector<float> decoded(values.size(), 7.0f);
  compressor.Decode(bytes.data() + 1, decoded.data(), dim);
  EXPECT_EQ(decoded.back(), 7.0f);
  decoded.pop_back();
  return decoded;
}

TEST(CompressorTest, UnknownKindIsRefusedByName) {
  try {
    MakeCompressor("fp8", Params());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'fp8'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("fixed_r8"), std::string::npos);
  }
}

TEST(CompressorTest, BytesPerValueAreThoseOfTheFormat) {
  EXPECT_EQ(Make("fp32")->BytesFor(3), 12);
  EXPECT_EQ(Make("fp16")->BytesFor(3), 6);
  EXPECT_EQ(Make("bf16")->BytesFor(3), 6);
  EXPECT_EQ(Make("fixed_r8")->BytesFor(3), 3);
  EXPECT_EQ(Make("one_bit")->BytesFor(3), 3);
}

TEST(CompressorTest, EmptySegmentTouchesNothing) {
  for (const char* kind : {"fp32", "fp16", "bf16", "fixed_r8", "one_bit"}) {
    EXPECT_TRUE(RoundTrip(*Make(kind), {}).empty()) << kind;
  }
}

TEST(CompressorTest, DecodedValueIsAFixedPointOfTheRoundTrip) {
  std::vector<float> values;
  for (int i = -40; i <= 40; ++i) values.push_back(static_cast<float>(i) * 0.0317f);
  for (const char* kind : {"fp32", "fp16", "bf16", "fixed_r8", "one_bit"}) {
    const std::vector<float> once = RoundTrip(*Make(kind), values);
    EXPECT_EQ(RoundTrip(*Make(kind), once), once) << kind;
  }
}

TEST(CompressorTest, Fp32KeepsEveryBit) {
  const std::vector<float> values = {0.1f, -0.0f, kInfinity, 1e-45f, 3e38f};
  const std::vector<float> decoded = RoundTrip(*Make("fp32"), values);
  EXPECT_EQ(decoded, values);
  EXPECT_TRUE(std::signbit(decoded[1]));
}

TEST(CompressorTest, Fp16RoundsTiesToEvenAndOverflowsToInfinity) {
  const std::vector<float> decoded = RoundTrip(
      *Make("fp16"), {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 65519.0f, 65520.0f, -1e9f, kNan, 0x1p-25f, 0x1p-24f});
  EXPECT_EQ(decoded[0], 1.0f);
  EXPECT_EQ(decoded[1], 1.0f + 0x1p-9f);
  EXPECT_EQ(decoded[2], 65504.0f);
  EXPECT_EQ(decoded[3], kInfinity);
  EXPECT_EQ(decoded[4], -kInfinity);
  EXPECT_TRUE(std::isnan(decoded[5]));
  EXPECT_EQ(decoded[6], 0.0f);
  EXPECT_EQ(decoded[7], 0x1p-24f);
}

TEST(CompressorTest, Bf16RoundsTiesToEvenAndKeepsNan) {
  const std::vector<float> decoded =
      RoundTrip(*Make("bf16"), {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 3.4e38f, -kInfinity, kNan, -std::nanf("0x1")});
  EXPECT_EQ(decoded[0], 1.0f);
  EXPECT_EQ(decoded[1], 1.0f + 0x1p-6f);
  EXPECT_EQ(decoded[2], kInfinity);
  EXPECT_EQ(decoded[3], -kInfinity);
  EXPECT_TRUE(std::isnan(decoded[4]));
  EXPECT_TRUE(std::isnan(decoded[5]));
}

TEST(CompressorTest, FloatFormatsShowTrainingTheRawWeights) {
  const std::vector<float> weights = {0.1f, -3.7f, kNan};
  const std::vector<float> gradient = {1.0f, 2.0f, 3.0f};
  for (const char* kind : {"fp32", "fp16", "bf16"}) {
    const auto compressor = Make(kind);
    EXPECT_FALSE(compressor->quantises_training());
    std::vector<float> read(3);
    std::vector<float> passed(3);
    compressor->Retrieve(weights.data(), read.data(), 3, 17);
    compressor->Backward(weights.data(), gradient.data(), passed.data(), 3, 17);
    EXPECT_EQ(read[0], weights[0]);
    EXPECT_EQ(read[1], weights[1]);
    EXPECT_TRUE(std::isnan(read[2]));
    EXPECT_EQ(passed, gradient);
  }
}

}  // namespace
}  // namespace monolith
