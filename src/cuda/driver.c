/* Opens libcuda.so.1 at run time and looks up what driver.h declares. Nothing is kept
 * between calls: opening it again costs microseconds, and a table without an owner would be
 * a global. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "common/error.h"

static const char *driver_error_name(const ea_driver *driver, ea_cu_result result) {
  const char *name = NULL;
  if (driver->get_error_name(result, &name) != EA_CU_SUCCESS || !name) return "an unknown error";
  return name;
}

static const char *driver_error_text(const ea_driver *driver, ea_cu_result result) {
  const char *text = NULL;
  if (driver->get_error_string(result, &text) != EA_CU_SUCCESS || !text) return "no description";
  return text;
}

ea_status ea_driver_check(const ea_driver *driver, ea_cu_result result, const char *what) {
  if (result == EA_CU_SUCCESS) return EA_OK;
  const ea_status status = result == EA_CU_OUT_OF_MEMORY ? EA_ERR_OUT_OF_MEMORY : EA_ERR_DEVICE;
  return ea_fail(status, "%s: found %s (%s)", what, driver_error_name(driver, result),
                 driver_error_text(driver, result));
}

ea_status ea_driver_open(ea_driver *driver) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return ea_fail(EA_ERR_NO_DEVICE, "device: found no NVIDIA driver (%s), allowed cpu", dlerror());

  void *address;
#define EA_DRIVER_LOOKUP(member, symbol, params)                                                                       \
  address = dlsym(library, symbol);                                                                                    \
  if (!address) {                                                                                                      \
    return ea_fail(EA_ERR_NO_DEVICE, "device: found an NVIDIA driver without %s, allowed one for CUDA 11.4 or later",  \
                   symbol);                                                                                            \
  }                                                                                                                    \
  memcpy(&driver->member, &address, sizeof address); /* ISO C has no cast from object to function pointers */
  EA_DRIVER_FUNCTIONS(EA_DRIVER_LOOKUP)
#undef EA_DRIVER_LOOKUP

  const ea_cu_result result = driver->init(0);
  if (result == EA_CU_SUCCESS) return EA_OK;
  return ea_fail(EA_ERR_NO_DEVICE, "device: found an NVIDIA driver that reports %s (%s), allowed cpu",
                 driver_error_name(driver, result), driver_error_text(driver, result));
}
