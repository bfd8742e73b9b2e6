// Adds one to the largest int, at run time.
#include <cstdio>
#include <limits>

int main(int argc, char**) {
  const volatile int largest = std::numeric_limits<int>::max();
  std::printf("%d\n", largest + argc);
  return 0;
}
