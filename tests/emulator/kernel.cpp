/* Compiled once a kernel: EMU_SOURCE is the .cu file, EMU_NAME its entry. */
#include EMU_SOURCE

#include "driver.h"

#define EMU_STRING_(x) #x
#define EMU_STRING(x) EMU_STRING_(x)
static const emu_registration registration(EMU_STRING(EMU_NAME), EMU_NAME);
