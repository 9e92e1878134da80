/* Four sums of tdpbf16ps on whole tiles. */
#include <immintrin.h>
#include <stdint.h>

#include "peaks.h"

enum { CHAINS = 4, STEPS = 20000, ROWS = 16, BYTES_A_ROW = 64 };

/* Intel SDM volume 1, "TILECFG". */
typedef struct tile_config {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t bytes_a_row[16];
  uint8_t rows[16];
} tile_config;

double peak_amx(void) {
  _Alignas(64) tile_config config = {.palette = 1};
  for (int i = 0; i < 8; ++i) {
    config.bytes_a_row[i] = BYTES_A_ROW;
    config.rows[i] = ROWS;
  }
  __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12's LDTILECFG only says the first eight bytes */
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < STEPS; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * ROWS * 16.0 * 32.0 * CHAINS * STEPS;
}
