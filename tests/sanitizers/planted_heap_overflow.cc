// Reads one element past a heap block; the index comes at run time so that no compiler folds it away.
#include <cstdio>
#include <memory>

int main(int argc, char**) {
  const std::unique_ptr<int[]> block(new int[4]());
  const volatile int past_the_end = 3 + argc;
  std::printf("%d\n", block[past_the_end]);
  return 0;
}
