#include "cuda/driver_symbols.h"

#include "base/dynamic_library.h"

namespace smon_rt::cuda {
namespace {

/// cuGetProcAddress in whichever of its forms a driver has: a function by its name and version, null if there is none.
class ProcAddresses {
 public:
  explicit ProcAddresses(const DynamicLibrary& driver)
      : newer_(reinterpret_cast<GetProcAddress12000>(driver.find("cuGetProcAddress_v2"))),
        older_(reinterpret_cast<GetProcAddress11030>(driver.find("cuGetProcAddress"))) {}

  bool has_any() const { return newer_ != nullptr || older_ != nullptr; }

  void* find(const char* symbol, int version) const {
    if (version == 0) return nullptr;
    void* function = nullptr;
    int symbol_status = 0;
    const Status status = newer_ != nullptr
                              ? newer_(symbol, &function, version, kProcAddressLegacyStream, &symbol_status)
                              : older_(symbol, &function, version, kProcAddressLegacyStream);
    return status == Status::kSuccess ? function : nullptr;
  }

 private:
  GetProcAddress12000 newer_;
  GetProcAddress11030 older_;
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Result<DriverSymbols> load_driver(const std::string& library) {
  auto driver = DynamicLibrary::open(library);
  if (!driver) return Error{"no CUDA driver: " + driver.error().message};
  const ProcAddresses addresses(*driver);
  if (!addresses.has_any()) return Error{library + " has no cuGetProcAddress: it is older than CUDA 11.3"};
  DriverSymbols symbols;
#define SMON_DRIVER_SYMBOL(name, type, symbol_version, older_version)                                       \
  symbols.name = reinterpret_cast<type>(addresses.find(#name, symbol_version));                             \
  if (symbols.name == nullptr) symbols.name = reinterpret_cast<type>(addresses.find(#name, older_version)); \
  if (symbols.name == nullptr) {                                                                            \
    return Error{library + " has no " #name " of CUDA " +                                                   \
                 version_text(older_version != 0 ? older_version : symbol_version)};                        \
  }
#include "cuda/driver_symbols.inc"
#undef SMON_DRIVER_SYMBOL
  if (symbols.cuDriverGetVersion(&symbols.version) != Status::kSuccess) {
    return Error{library + " does not say its version"};
  }
  return symbols;
}

}  // namespace smon_rt::cuda
