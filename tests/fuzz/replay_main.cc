// Runs a fuzzer's entry point over files, for builds without libFuzzer: what a fuzzer once found stays tested with
// every compiler. Arguments are files or folders; exits 2 when one cannot be read.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

bool replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read; check the path given to the fuzzer\n", path.c_str());
    return false;
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int replayed_count = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
        if (!entry.is_regular_file()) continue;
        if (!replay(entry.path())) return 2;
        ++replayed_count;
      }
    } else {
      if (!replay(argv[i])) return 2;
      ++replayed_count;
    }
  }
  std::printf("%d inputs replayed\n", replayed_count);
  return replayed_count > 0 ? 0 : 2;
}
