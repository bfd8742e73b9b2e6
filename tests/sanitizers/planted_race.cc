// Two threads write one plain int with nothing between them.
#include <cstdio>
#include <thread>

int main() {
  int shared = 0;
  const auto add = [&shared] {
    for (int i = 0; i < 1000; ++i) ++shared;
  };
  std::thread first(add);
  std::thread second(add);
  first.join();
  second.join();
  std::printf("%d\n", shared);
  return 0;
}
