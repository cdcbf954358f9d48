/* Kernels in bfloat16 for one thread of a CPU with AVX512-BF16. A row's result depends on that row's own numbers alone:
   sums are taken in an order that no other row, and no address, has a part in. */
#pragma once

#include <stdint.h>

#define BITS 2 /* raised whenever a kernel gives other bits than before: workers of one pool have the same */

typedef uint16_t bf16;

/* Keys and values of one layer: `[kv_head, slot, head_dim]` each. Query heads `group * i` .. share KV head i. */
typedef struct {
    bf16 *keys, *values;
    int64_t slots, kv_heads, group, head_dim;
} Cache;

/* Rows of one request, after those of the run before: `rows` of them, at position `begin` and those after it. The
   request's position 0 lies in `slot`. Rows of a prompt's chunk are computed together, others (`decode`) one by one. */
typedef struct {
    int64_t rows, slot, begin, decode;
} Run;

/* A matrix as oneDNN lays it out, and a bias or none. Sums are taken of `span` inputs each, and then added; a
   span is all inputs, or an even number of them. */
typedef struct {
    const bf16 *matrix, *bias;
    int64_t in, out, span;
} Linear;

/* Attention of one layer: its part of the cache, tables `[position, head_dim]` of cosines and sines (their first half
   negated), and `scratch_floats` to work in. */
typedef struct {
    Cache cache;
    const bf16 *cosines, *sines;
    float *scratch;
} Attention;

#define LAYER_ROWS 256 /* that a layer computes at a time, and in a run that it is given, at most */

/* Where a layer puts what it makes of LAYER_ROWS rows, in this order. */
typedef struct {
    bf16 *normed, *projected, *gathered, *hidden, *gate_up, *gated;
} Between;

typedef struct {
    const bf16 *input_norm;
    Linear qkv, output;
    const bf16 *mlp_norm;
    Linear gate_up, down;
    Attention attention;
    Between between;
} Layer;

/* `[row, in]` -> `out` `[row, out]`: the product, plus the residual `[row, out]` where there is one. */
void multiply_rows(const Linear *linear, const bf16 *rows, const bf16 *residual, bf16 *out, int64_t count);

/* `[row, size]` -> `out`: divided by the root of the mean square (plus epsilon), times `weight`. */
void rms_norm(const bf16 *in, const bf16 *weight, bf16 *out, int64_t rows, int64_t size, float epsilon);

/* `[row, 2, size]` -> `out` `[row, size]`: SiLU of the first half, times the second. */
void silu_times(const bf16 *in, bf16 *out, int64_t rows, int64_t size);

/* Of each row of `run`: turn query and key heads by its position, and put keys and values into the cache.
   `row` points at the first row's heads, queries, keys, values; cosines and sines are as in Attention. */
void turn_and_store(bf16 *row, int64_t stride, const Run *run, const Cache *cache, const bf16 *cosines,
                    const bf16 *sines);

/* Floats that `attend_row` and `attend_chunk` need to work in, for that many positions. */
int64_t scratch_floats(int64_t positions, int64_t head_dim);

/* All query heads of one row over `length` positions -> `out`, which is as long. */
void attend_row(const bf16 *queries, bf16 *out, int64_t slot, int64_t length, const Cache *cache, float *scratch);

/* The same of every row of a chunk, each over the positions up to its own. */
void attend_chunk(const bf16 *queries, int64_t stride, bf16 *out, const Run *run, const Cache *cache, float *scratch);

/* Turn queries and keys of all rows, put keys and values into the cache, attend: `[row, head, head_dim]`, of which one
   row is `stride` after the other -> `out` `[row, query head * head_dim]`. */
void attend(bf16 *rows, int64_t stride, bf16 *out, const Run *runs, int64_t count, const Attention *attention);

/* A whole layer, `hidden` `[row, hidden]` in place. */
void run_layer(const Layer *layer, bf16 *hidden, int64_t rows, const Run *runs, int64_t count, float epsilon);
