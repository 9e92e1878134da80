/* cmocka wants these four before it. */
#ifndef EA_TESTS_CMOCKA_ALL_H
#define EA_TESTS_CMOCKA_ALL_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
