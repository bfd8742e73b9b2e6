#include "cuda/driver_symbols.h"

#include <gtest/gtest.h>

#include <string>

#include "fakes/fake_libcuda.h"

namespace smon_rt::cuda {
namespace {

class DriverSymbolsTest : public testing::Test {
 protected:
  void SetUp() override { fake_cuda_reset(); }

  static std::string error_of(const std::string& library) {
    const auto symbols = load_driver(library);
    return symbols ? "" : symbols.error().message;
  }
};

TEST_F(DriverSymbolsTest, ADriverIsLoadedWithAllItsFunctions) {
  const auto symbols = load_driver(FAKE_LIBCUDA);
  ASSERT_TRUE(symbols) << symbols.error().message;
  EXPECT_EQ(symbols->version, 13000);
  Handle context = &context;
  EXPECT_EQ(symbols->cuCtxGetCurrent(&context), Status::kSuccess);
  EXPECT_EQ(context, nullptr);
}

TEST_F(DriverSymbolsTest, OfTwoFormsTheNewestThatTheDriverHasIsTaken) {
  for (const int version : {13000, 12080, 12070, 11030}) {
    fake_cuda_reset();
    fake_cuda_set_version(version);
    const auto symbols = load_driver(FAKE_LIBCUDA);
    ASSERT_TRUE(symbols) << version << ": " << symbols.error().message;
    float milliseconds = 0;
    EXPECT_NE(symbols->cuEventElapsedTime(&milliseconds, nullptr, nullptr), Status::kSuccess);
    EXPECT_EQ(fake_cuda_calls("cuEventElapsedTime of 12080"), version >= 12080 ? 1 : 0) << version;
    EXPECT_EQ(fake_cuda_calls("cuEventElapsedTime of 2000"), version >= 12080 ? 0 : 1) << version;
  }
}

TEST_F(DriverSymbolsTest, OfAPartOfAGpuTheUuidIsThePartsWhereTheDriverKnowsIt) {
  for (const int version : {13000, 11040, 11030}) {
    fake_cuda_reset();
    fake_cuda_set_version(version);
    const auto symbols = load_driver(FAKE_LIBCUDA);
    ASSERT_TRUE(symbols) << version << ": " << symbols.error().message;
    Uuid uuid{};
    EXPECT_EQ(symbols->cuDeviceGetUuid(&uuid, 5), Status::kSuccess);
    EXPECT_EQ(uuid.bytes[0], version >= 11040 ? 0xb4 : 0x92) << version;
  }
}

TEST_F(DriverSymbolsTest, AMissingLibraryIsNamed) {
  EXPECT_NE(error_of("libno_driver.so.1").find("libno_driver.so.1"), std::string::npos);
}

TEST_F(DriverSymbolsTest, ALibraryThatIsNoDriverIsSaidToBe) {
  EXPECT_EQ(error_of("libm.so.6"), "libm.so.6 has no cuGetProcAddress: it is older than CUDA 11.3");
}

TEST_F(DriverSymbolsTest, EachMissingFunctionIsNamedWithTheOldestVersionThatWouldDo) {
#define SMON_DRIVER_SYMBOL(name, type, version, older_version) \
  fake_cuda_set_missing(#name);                                \
  EXPECT_NE(error_of(FAKE_LIBCUDA).find(" has no " #name " of CUDA "), std::string::npos) << #name;
#include "cuda/driver_symbols.inc"
#undef SMON_DRIVER_SYMBOL
  fake_cuda_set_missing("cuEventElapsedTime");
  EXPECT_EQ(error_of(FAKE_LIBCUDA), std::string(FAKE_LIBCUDA) + " has no cuEventElapsedTime of CUDA 2.0");
}

TEST_F(DriverSymbolsTest, ADriverThatIsTooOldIsRefused) {
  fake_cuda_set_version(10000);
  EXPECT_EQ(error_of(FAKE_LIBCUDA),
            std::string(FAKE_LIBCUDA) + " has no cuThreadExchangeStreamCaptureMode of CUDA 10.1");
}

TEST_F(DriverSymbolsTest, ADriverWithoutAVersionIsRefused) {
  fake_cuda_fail("cuDriverGetVersion", static_cast<int>(Status::kNotInitialized));
  EXPECT_EQ(error_of(FAKE_LIBCUDA), std::string(FAKE_LIBCUDA) + " does not say its version");
}

}  // namespace
}  // namespace smon_rt::cuda
