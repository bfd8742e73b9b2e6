#include "api/gpu.h"

#include <gtest/gtest.h>

#include <string>

namespace smon_rt {
namespace {

TEST(FindGpuCopier, WithoutADriverNothingIsCopiedAndTheReasonIsSaid) {
  std::string reason;
  const auto copier = find_gpu_copier(reason);
  ASSERT_NE(copier, nullptr);
  // In no context, with a driver or without.
  const auto opened = copier->open(0);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().message, reason.empty()
                                        ? "no GPU context is current to this thread"
                                        : "this process has no GPU copier: tensors of a GPU are not captured");
  EXPECT_TRUE(copier->cancel(0));
}

}  // namespace
}  // namespace smon_rt
