#include "rpc/openssl.h"

#include <dlfcn.h>

#include "base/error.h"

namespace monolith::rpc {
namespace {

constexpr const char* kLibraries[] = {"libssl.so.3", "libssl.so.1.1", "libssl.3.dylib"};
constexpr uint64_t kInitWithoutExitHandler = 0x00080000;  // threads may still use the library while the process exits

struct Loaded {
  OpenSsl functions;
  std::string missing;  // why it cannot be used; empty: it can
};

// Returns the name of a function that the library does not have; null: it has all.
const char* FindFunctions(void* library, OpenSsl* functions) {
#define MONOLITH_OPENSSL_FIND(name, result, arguments)                                  \
  functions->name = reinterpret_cast<decltype(functions->name)>(dlsym(library, #name)); \
  if (functions->name == nullptr) return #name;
  MONOLITH_OPENSSL_FUNCTIONS(MONOLITH_OPENSSL_FIND)
#undef MONOLITH_OPENSSL_FIND
  return nullptr;
}

Loaded Load() {
  Loaded loaded;
  for (const char* name : kLibraries) {
    if (!loaded.missing.empty()) loaded.missing += "; ";
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      loaded.missing += dlerror();
      continue;
    }
    const char* missing = FindFunctions(library, &loaded.functions);
    if (missing == nullptr && loaded.functions.OPENSSL_init_ssl(kInitWithoutExitHandler, nullptr) == 1) {
      loaded.missing.clear();
      return loaded;
    }
    loaded.missing += std::string(name) + ": " + (missing == nullptr ? "it does not start" : missing) +
                      (missing == nullptr ? "" : " is missing");
  }
  return loaded;
}

}  // namespace

const OpenSsl& LoadOpenSsl() {
  static const Loaded* const loaded = new Loaded(Load());  // used until the process ends
  if (!loaded->missing.empty()) {
    throw Error(Code::kUnavailable, "TLS: OpenSSL 1.1.1 or 3 is needed and was not found (" + loaded->missing +
                                        "); install it, on Debian: apt-get install libssl3");
  }
  return loaded->functions;
}

}  // namespace monolith::rpc
