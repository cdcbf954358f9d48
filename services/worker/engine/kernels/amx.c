/* The operations in bfloat16 by AMX tiles. */
#ifdef __x86_64__
#define WITH_AMX
#include "level_avx512.h"

#include "wide.h"

#include "elementwise.h"
#include "panels.h"
#include "product_amx.h"

#include "attention.h"
#include "likelihood.h"
#include "matrix_amx.h"

static void rms_norm_halves(const void *in, const void *weight, void *out, int64_t rows, int64_t size, float epsilon,
                            float offset) {
    rms_norm_of(BFLOAT16, in, weight, out, rows, size, epsilon, offset);
}

static void layer_norm_halves(const void *in, const void *weight, const void *bias, void *out, int64_t rows,
                              int64_t size, float epsilon) {
    layer_norm_of(BFLOAT16, in, weight, bias, out, rows, size, epsilon);
}

static void gelu_halves(const void *in, void *out, int64_t rows, int64_t size) {
    gelu_of(BFLOAT16, in, out, rows, size);
}

static void silu_times_halves(const void *in, void *out, int64_t rows, int64_t size) {
    gate_of(BFLOAT16, 0, in, out, rows, size);
}

static void gelu_times_halves(const void *in, void *out, int64_t rows, int64_t size) {
    gate_of(BFLOAT16, 1, in, out, rows, size);
}

static void attend_by_tiles(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention,
                            Share kv_heads) {
    configure_tiles(TILE_ROWS);
    attend_as(BFLOAT16, rows, stride, out, run, attention, kv_heads);
    release_tiles();
}

static void lay_out_halves(const void *matrix, int64_t out, int64_t in, void *panels) {
    lay_out_as(BFLOAT16, matrix, out, in, panels);
}

static void likelihoods_of_halves(Likelihoods *asked) { likelihoods_of(BFLOAT16, asked); }

const Operations amx_operations = {multiply_by_tiles, rms_norm_halves,   layer_norm_halves,
                                   gelu_halves,       silu_times_halves, gelu_times_halves,
                                   attend_by_tiles,   lay_out_halves,    likelihoods_of_halves};

#include "end_target.h"
#endif
