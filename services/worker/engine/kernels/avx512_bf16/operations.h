/* The kernels in bfloat16 for CPUs with AVX512-BF16. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "../panel.h"

/* How the products of a pair of inputs are added: by VDPBF16PS, or by two fused multiply-adds that flush denormal numbers,
   which have the same bits. On Intel's CPUs the former takes twice as long as the latter. */
typedef enum { DOTS, FMA } Means;

/* These are operations of the variant. The first two have the same bits. */
void multiply_by_dot_products(const Linear *linear, const void *in, const void *residual, void *out, int64_t count,
                              Share panels);
void multiply_by_fma(const Linear *linear, const void *in, const void *residual, void *out, int64_t count,
                     Share panels);
void rms_norm_by_vectors(const void *in, const void *weight, void *out, int64_t rows, int64_t size, float epsilon,
                         float offset);
void silu_times_by_vectors(const void *in, void *out, int64_t rows, int64_t size);
void gelu_times_by_vectors(const void *in, void *out, int64_t rows, int64_t size);

#define READ_BYTES 1024 /* of what the codes of a group need */

/* A packed panel for `in` inputs that is being unpacked, from its first input on: its next codes, the memory that is
   prefetched with them, its next group, and how many pairs of inputs are left of the group that was read. */
typedef struct PackedPanel PackedPanel;
typedef void Unpack(PackedPanel *from, int64_t pairs, bf16 *to);
struct PackedPanel {
    const Packing *packing;
    const char *panel, *ahead;
    PackedBytes bytes;
    const uint32_t *words;
    int64_t in, group, left;
    Unpack *unpack;
    _Alignas(64) char read[READ_BYTES];
};

void begin_unpacking(const Packing *packing, const void *panel, int64_t in, PackedPanel *made);

/* Unpacks the next pairs of inputs to `[pair of inputs, output, input of the pair]`. MXCSR is UNFLUSHED. */
static inline void unpack_by_vectors(PackedPanel *from, int64_t pairs, bf16 *to) { from->unpack(from, pairs, to); }

#define UNFLUSHED 0x1f80 /* of MXCSR: denormal numbers count, as they do where a matrix is unpacked */

/* Rotates queries and keys of a run's rows, and stores keys and values in the cache. */
void rotate_and_store_by_vectors(bf16 *row, int64_t stride, const Run *run, const Attention *attention, Share kv_heads);

/* The number of floats of working memory that `attend_row` and `attend_chunk` need for so many positions. */
int64_t scratch_floats(int64_t positions, int64_t head_dim);

/* Computes the query heads of one row over the positions that it sees, the last of `length`. */
void attend_row(const bf16 *queries, bf16 *out, int64_t slot, int64_t length, const Attention *attention,
                float *scratch, Share kv_heads);

/* Computes the query heads of every row of a chunk, each over the positions that it sees, up to its own. */
void attend_chunk(Means means, const bf16 *queries, int64_t stride, bf16 *out, const Run *run,
                  const Attention *attention, float *scratch, Share kv_heads);
