/* All operations at one level of vector instructions. Include this after one of level_*.h, with OPERATIONS defined as
   the name of the resulting table. */
#include "wide.h"

#include "elementwise.h"
#include "panels.h"
#include "product_fma.h"

#include "attention.h"
#include "likelihood.h"
#include "matrix_fma.h"

#define OPERATIONS_IN(type, name)                                                                                      \
    static void name##_multiply(const Linear *linear, const void *rows, const void *residual, void *out,               \
                                int64_t count, Share panels) {                                                         \
        multiply_as(type, linear, rows, residual, out, count, panels);                                                 \
    }                                                                                                                  \
    static void name##_rms_norm(const void *in, const void *weight, void *out, int64_t rows, int64_t size,             \
                                float epsilon, float offset) {                                                         \
        rms_norm_of(type, in, weight, out, rows, size, epsilon, offset);                                               \
    }                                                                                                                  \
    static void name##_layer_norm(const void *in, const void *weight, const void *bias, void *out, int64_t rows,       \
                                  int64_t size, float epsilon) {                                                       \
        layer_norm_of(type, in, weight, bias, out, rows, size, epsilon);                                               \
    }                                                                                                                  \
    static void name##_gelu(const void *in, void *out, int64_t rows, int64_t size) {                                   \
        gelu_of(type, in, out, rows, size);                                                                            \
    }                                                                                                                  \
    static void name##_silu_times(const void *in, void *out, int64_t rows, int64_t size) {                             \
        gate_of(type, 0, in, out, rows, size);                                                                         \
    }                                                                                                                  \
    static void name##_gelu_times(const void *in, void *out, int64_t rows, int64_t size) {                             \
        gate_of(type, 1, in, out, rows, size);                                                                         \
    }                                                                                                                  \
    static void name##_attend(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention,       \
                              Share kv_heads) {                                                                        \
        attend_as(type, rows, stride, out, run, attention, kv_heads);                                                  \
    }                                                                                                                  \
    static void name##_lay_out(const void *matrix, int64_t out, int64_t in, void *panels) {                            \
        lay_out_as(type, matrix, out, in, panels);                                                                     \
    }                                                                                                                  \
    static void name##_likelihoods(Likelihoods *asked) { likelihoods_of(type, asked); }

OPERATIONS_IN(BFLOAT16, halves)
OPERATIONS_IN(FLOAT32, floats)

const Operations OPERATIONS[2] = {
    [BFLOAT16] = {halves_multiply, halves_rms_norm, halves_layer_norm, halves_gelu, halves_silu_times,
                  halves_gelu_times, halves_attend, halves_lay_out, halves_likelihoods},
    [FLOAT32] = {floats_multiply, floats_rms_norm, floats_layer_norm, floats_gelu, floats_silu_times,
                 floats_gelu_times, floats_attend, floats_lay_out, floats_likelihoods},
};
