/* The table of emulated kernels. A kernel's source file registers its entry (kernel.cpp). */
#ifndef EA_EMULATOR_DRIVER_H
#define EA_EMULATOR_DRIVER_H

#include <functional>
#include <string.h>
#include <tuple>

typedef std::function<void()> emu_body;
/* A launch's work for one thread, with the parameters copied. */
typedef std::function<emu_body(void **params)> emu_binder;

void emu_register(const char *name, emu_binder bind);

template <class... Parameters, size_t... I>
emu_body emu_bind(void (*kernel)(Parameters...), void **params, std::index_sequence<I...>) {
  const std::tuple<Parameters...> copy(*(const Parameters *)params[I]...);
  return [kernel, copy] { kernel(std::get<I>(copy)...); };
}

struct emu_registration {
  template <class... Parameters> emu_registration(const char *name, void (*kernel)(Parameters...)) {
    emu_register(name, [kernel](void **params) {
      return emu_bind(kernel, params, std::make_index_sequence<sizeof...(Parameters)>());
    });
  }
};

#endif
