/* Opening a GPU, and the cache of its loaded kernels. */
#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

int32_t ea_cuda_count(void) {
  ea_driver driver;
  if (ea_driver_open(&driver) != EA_OK) return 0;
  int count = 0;
  if (ea_driver_check(&driver, driver.device_get_count(&count), "cuDeviceGetCount") != EA_OK) return 0;
  if (count == 0) ea_fail(EA_ERR_NO_DEVICE, "device: found an NVIDIA driver without a GPU, allowed cpu");
  return count;
}

ea_status ea_device_enter(const ea_cuda_device *device) {
  return ea_driver_check(&device->driver, device->driver.ctx_push_current(device->primary), "cuCtxPushCurrent");
}

void ea_device_leave(const ea_cuda_device *device) {
  ea_cu_context popped;
  device->driver.ctx_pop_current(&popped);
}

bool ea_image_runs_on(const ea_image *image, int32_t capability) {
  if (image->exact) return image->capability == capability;
  return image->capability / 10 == capability / 10 && image->capability <= capability;
}

/* The image made for the nearest older chip that still runs here. */
static int32_t find_image(const char *name, int32_t capability) {
  int32_t best = -1;
  for (int32_t i = 0; i < ea_image_count; i++) {
    if (strcmp(ea_images[i].kernel, name) != 0 || !ea_image_runs_on(&ea_images[i], capability)) continue;
    if (best < 0 || ea_images[i].capability > ea_images[best].capability) best = i;
  }
  return best;
}

/* "sm_80, sm_90a": what the build has of one kernel. */
static ea_status fail_no_image(const char *name, const char *arch) {
  char known[128] = "";
  size_t used = 0;
  for (int32_t i = 0; i < ea_image_count && used < sizeof known - 16; i++) {
    if (strcmp(ea_images[i].kernel, name) != 0) continue;
    used += (size_t)snprintf(known + used, sizeof known - used, "%ssm_%d%s", used ? ", " : "", ea_images[i].capability,
                             ea_images[i].exact ? "a" : "");
  }
  if (ea_image_count == 0) {
    return ea_fail(EA_ERR_UNSUPPORTED, "device: found %s, allowed none: this build has no CUDA kernels (no nvcc)",
                   arch);
  }
  return ea_fail(EA_ERR_UNSUPPORTED, "device: found %s, allowed for kernel %s: %s", arch, name,
                 used ? known : "none in this build");
}

static ea_status load_image(const ea_cuda_device *device, const ea_image *image, ea_cuda_kernel *kernel) {
  const ea_driver *driver = &device->driver;
  ea_cu_module module;
  ea_status status = ea_driver_check(driver, driver->module_load_data(&module, image->data), image->kernel);
  if (status != EA_OK) return status;

  ea_cu_function function;
  int registers = 0, static_smem = 0;
  status = ea_driver_check(driver, driver->module_get_function(&function, module, image->kernel), image->kernel);
  if (status == EA_OK) {
    /* Asking for attributes also makes a lazily loading driver bring the code onto the card now. */
    status = ea_driver_check(driver, driver->func_get_attribute(&registers, EA_CU_FUNC_REGISTERS, function),
                             "cuFuncGetAttribute");
  }
  if (status == EA_OK) {
    status = ea_driver_check(driver, driver->func_get_attribute(&static_smem, EA_CU_FUNC_STATIC_SMEM_BYTES, function),
                             "cuFuncGetAttribute");
  }
  if (status == EA_OK) {
    /* Allowed once for every depth: how much a launch takes is its own argument. */
    const int limit = (int)device->smem_limit_bytes - static_smem;
    status = ea_driver_check(driver, driver->func_set_attribute(function, EA_CU_FUNC_MAX_DYNAMIC_SMEM_BYTES, limit),
                             "cuFuncSetAttribute");
  }
  if (status != EA_OK) {
    driver->module_unload(module);
    return status;
  }
  *kernel = (ea_cuda_kernel){.module = module, .function = function, .registers = registers};
  return EA_OK;
}

ea_status ea_device_load(ea_cuda_device *device, const char *name, const ea_cuda_kernel **kernel) {
  const int32_t index = find_image(name, device->capability);
  if (index < 0) return fail_no_image(name, device->arch);

  ea_cuda_kernel *slot = &device->kernels[index];
  ea_status status = EA_OK;
  pthread_mutex_lock(&device->lock);
  if (!slot->module) status = load_image(device, &ea_images[index], slot);
  pthread_mutex_unlock(&device->lock);
  if (status == EA_OK) *kernel = slot;
  return status;
}

static ea_status read_attribute(const ea_cuda_device *device, int attribute, int *value) {
  return ea_driver_check(&device->driver, device->driver.device_get_attribute(value, attribute, device->handle),
                         "cuDeviceGetAttribute");
}

static ea_status read_properties(ea_cuda_device *device) {
  const ea_driver *driver = &device->driver;
  int major = 0, minor = 0, multiprocessors = 0, smem_block = 0, smem_sm = 0;
  const struct {
    int attribute;
    int *value;
  } wanted[] = {{EA_CU_DEVICE_CAPABILITY_MAJOR, &major},
                {EA_CU_DEVICE_CAPABILITY_MINOR, &minor},
                {EA_CU_DEVICE_MULTIPROCESSORS, &multiprocessors},
                {EA_CU_DEVICE_SMEM_PER_BLOCK_OPTIN, &smem_block},
                {EA_CU_DEVICE_SMEM_PER_MULTIPROCESSOR, &smem_sm}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    const ea_status status = read_attribute(device, wanted[i].attribute, wanted[i].value);
    if (status != EA_OK) return status;
  }
  ea_status status = ea_driver_check(driver, driver->driver_get_version(&device->driver_version), "cuDriverGetVersion");
  if (status != EA_OK) return status;
  size_t memory_bytes = 0;
  status = ea_driver_check(driver, driver->device_total_mem(&memory_bytes, device->handle), "cuDeviceTotalMem");
  if (status != EA_OK) return status;
  status = ea_driver_check(driver, driver->device_get_name(device->name, sizeof device->name, device->handle),
                           "cuDeviceGetName");
  if (status != EA_OK) return status;

  device->capability = major * 10 + minor;
  device->multiprocessors = multiprocessors;
  device->smem_limit_bytes = smem_block;
  device->smem_per_sm_bytes = smem_sm;
  device->memory_bytes = (int64_t)memory_bytes;
  snprintf(device->arch, sizeof device->arch, "sm_%d", device->capability);
  return EA_OK;
}

static ea_status find_device(ea_cuda_device *device, int32_t ordinal) {
  const ea_driver *driver = &device->driver;
  int count = 0;
  const ea_status status = ea_driver_check(driver, driver->device_get_count(&count), "cuDeviceGetCount");
  if (status != EA_OK) return status;
  if (ordinal < 0 || ordinal >= count) {
    return ea_fail(EA_ERR_NO_DEVICE, "device_ordinal: found %d, allowed 0 to %d (the driver shows %d GPU%s)", ordinal,
                   count - 1, count, count == 1 ? "" : "s");
  }
  device->ordinal = ordinal;
  return ea_driver_check(driver, driver->device_get(&device->handle, ordinal), "cuDeviceGet");
}

/* device->primary stays NULL unless there is something to release. */
static ea_status retain_primary(ea_cuda_device *device) {
  ea_cu_context primary = NULL;
  const ea_status status = ea_driver_check(&device->driver, device->driver.primary_ctx_retain(&primary, device->handle),
                                           "cuDevicePrimaryCtxRetain");
  if (status == EA_OK) device->primary = primary;
  return status;
}

static ea_status load_small_kernels(ea_cuda_device *device) {
  ea_status status = ea_device_enter(device);
  if (status != EA_OK) return status;
  static const char *const merge_names[3] = {"merge_f32", "merge_f16", "merge_bf16"};
  status = ea_device_load(device, "validate", &device->validate);
  for (int i = 0; i < 3 && status == EA_OK; i++) status = ea_device_load(device, merge_names[i], &device->merge[i]);
  if (status == EA_OK && find_image("schedule", device->capability) >= 0) {
    status = ea_device_load(device, "schedule", &device->schedule);
    if (status == EA_OK) status = ea_device_load(device, "stage", &device->stage);
  }
  ea_device_leave(device);
  return status;
}

/* One slot more than images, so that a build without kernels allocates something too. */
static ea_cuda_device *allocate(void) {
  ea_cuda_device *device = calloc(1, sizeof *device);
  ea_cuda_kernel *kernels = calloc((size_t)ea_image_count + 1, sizeof *kernels);
  if (!device || !kernels) {
    free(device);
    free(kernels);
    return NULL;
  }
  device->kernels = kernels;
  pthread_mutex_init(&device->lock, NULL);
  return device;
}

ea_status ea_cuda_open(int32_t ordinal, ea_cuda_device **device) {
  ea_cuda_device *opened = allocate();
  if (!opened) return ea_fail(EA_ERR_OUT_OF_MEMORY, "host memory: found none for a device");
  ea_status status = ea_driver_open(&opened->driver);
  if (status == EA_OK) status = find_device(opened, ordinal);
  if (status == EA_OK) status = read_properties(opened);
  if (status == EA_OK) status = retain_primary(opened);
  if (status == EA_OK) status = load_small_kernels(opened);
  if (status != EA_OK) {
    ea_cuda_close(opened);
    return status;
  }
  *device = opened;
  return EA_OK;
}

void ea_cuda_close(ea_cuda_device *device) {
  if (!device) return;
  if (device->primary) {
    if (device->driver.ctx_push_current(device->primary) == EA_CU_SUCCESS) {
      for (int32_t i = 0; i < ea_image_count; i++) {
        if (device->kernels[i].module) device->driver.module_unload(device->kernels[i].module);
      }
      ea_device_leave(device);
    }
    device->driver.primary_ctx_release(device->handle);
  }
  pthread_mutex_destroy(&device->lock);
  free(device->kernels);
  free(device);
}

void ea_cuda_describe(const ea_cuda_device *device, ea_device_info *info) {
  info->device = EA_DEVICE_CUDA;
  info->device_ordinal = device->ordinal;
  snprintf(info->name, sizeof info->name, "%s", device->name);
  snprintf(info->arch, sizeof info->arch, "%s", device->arch);
  info->multiprocessors = device->multiprocessors;
  info->smem_limit_bytes = device->smem_limit_bytes;
  info->memory_bytes = device->memory_bytes;
  info->driver_version = device->driver_version;
}

void ea_cuda_arch(const ea_cuda_device *device, ea_arch *arch) {
  *arch = (ea_arch){.name = device->arch,
                    .capability = device->capability,
                    .smem_limit_bytes = device->smem_limit_bytes,
                    .smem_per_sm_bytes = device->smem_per_sm_bytes};
}
