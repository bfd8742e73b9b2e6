#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace smon_rt {
namespace {

TEST(DynamicLibrary, FindsSymbolsOfALibraryThatItLoads) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library) << library.error().message;
  const auto cosine = reinterpret_cast<double (*)(double)>(library->find("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(library->find("no_such_function"), nullptr);
}

TEST(DynamicLibrary, AMissingLibraryIsNamed) {
  const auto library = DynamicLibrary::open("libnobody_has_this.so.7");
  ASSERT_FALSE(library);
  EXPECT_NE(library.error().message.find("libnobody_has_this.so.7"), std::string::npos) << library.error().message;
}

TEST(DynamicLibrary, WhatWasNotFoundIsNotLeftToTheJobToHearOf) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library);
  EXPECT_EQ(library->find("no_such_function"), nullptr);
  EXPECT_EQ(::dlerror(), nullptr);
  EXPECT_FALSE(DynamicLibrary::open_loaded("libnobody_has_this.so.7"));
  EXPECT_EQ(::dlerror(), nullptr);
}

TEST(DynamicLibrary, OfWhatIsNotLoadedNothingIsLoaded) {
  EXPECT_TRUE(DynamicLibrary::open_loaded("libc.so.6"));
  EXPECT_FALSE(DynamicLibrary::open_loaded("libutil.so.1"));  // of the C library, and nobody needs it any more
  EXPECT_FALSE(DynamicLibrary::open_loaded("libutil.so.1"));
}

}  // namespace
}  // namespace smon_rt
