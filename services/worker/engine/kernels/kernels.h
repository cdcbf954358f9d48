/* The engine's kernels for CPUs: what a layer of a transformer computes, on one or several threads.

   A row's result depends on that row's own numbers alone. Each sum is taken in an order that is fixed by the positions
   and inputs that it is taken over: no other row, no address, no number of rows or threads has a part in it.

   There are several variants of the kernels, for CPUs that differ. All of them read the same parameters and the same KV
   cache, whose layouts are described here. */
#pragma once

#include <stdint.h>

typedef uint16_t bf16;
typedef enum { BFLOAT16, FLOAT32 } Type;

/* A matrix `[out, in]` lies in panels of 64 outputs; the last panel is filled up with zeros, and so are the inputs up to
   a multiple of 32. In bfloat16 a panel is `[pair of inputs, output, of the pair]`. In float32 it is
   `[32 inputs, input, output]`, where of 32 inputs the 16 even ones come first. */
#define PANEL 64
#define INPUTS 32

/* Consecutive outputs of a linear map: their panels, and a bias or NULL. */
typedef struct {
    const void *panels, *bias;
    int64_t out;
} Part;

#define MOST_PARTS 3

/* A linear map from `in` to `out` features. Its matrix is in several parts where it does not lie in one piece. */
typedef struct {
    int64_t in, out, parts;
    Part part[MOST_PARTS];
} Linear;

/* Keys and values of one layer, `[kv_head, slot, head_dim]` each. Query heads `group * i` .. share KV head `i`. */
typedef struct {
    void *keys, *values;
    int64_t slots, kv_heads, group, head_dim;
} Cache;

/* Consecutive rows of one request: `rows` of them, at position `begin` and the following ones. The request's position 0
   lies in `slot`, a multiple of 16. Rows of a prompt may be computed together; those that were generated (`decode`) are
   computed one by one. */
typedef struct {
    int64_t rows, slot, begin, decode;
} Run;

/* Attention of one layer: its part of the cache, and tables `[position, head_dim]` of cosines and sines, the first half
   of the sines negated. */
typedef struct {
    Cache cache;
    const void *cosines, *sines;
} Attention;

/* How many rows a layer computes at a time, and how many a run has at most. */
#define LAYER_ROWS 256

/* Where a layer keeps what it makes of LAYER_ROWS rows, in the order in which it is made. */
typedef struct {
    void *normed, *projected, *attended, *hidden, *gate_up, *gated;
} Between;

typedef struct {
    const void *input_norm;
    Linear qkv, output;
    const void *mlp_norm;
    Linear gate_up, down;
    Attention attention;
    Between between;
} Layer;

/* One thread's share of some work that is divided into items. */
typedef struct {
    int64_t begin, end;
} Share;

/* What a variant computes in one type of numbers. Every function serves one thread. */
typedef struct {
    /* `[row, in]` -> `[row, out]`: the product and the bias, plus the residual `[row, out]` unless it is NULL. The items
       are panels, those of all parts in order. */
    void (*multiply)(const Linear *linear, const void *rows, const void *residual, void *out, int64_t count, Share panels);
    /* RMSNorm: `[row, size]` -> `out`, divided by the root of the mean square (plus epsilon), times `weight`. */
    void (*rms_norm)(const void *in, const void *weight, void *out, int64_t rows, int64_t size, float epsilon);
    /* SwiGLU: `[row, 2, size]` -> `out` `[row, size]`, SiLU of the first half times the second. */
    void (*silu_times)(const void *in, void *out, int64_t rows, int64_t size);
    /* The rows of one run, `[row, head, head_dim]` with `stride` numbers from one row to the next; heads are queries,
       keys, values. Rotates queries and keys by their positions (RoFormer), puts keys and values into the cache, and
       attends: `out` is `[row, query head, head_dim]`. The items are KV heads. */
    void (*attend)(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention, Share kv_heads);
    /* A matrix `[out, in]` -> `panels`, which are zero before. */
    void (*lay_out)(const void *matrix, int64_t out, int64_t in, void *panels);
} Operations;

/* `flushes`: float32 arithmetic takes denormal operands as zero and gives zero in their place, as AMX does. Otherwise
   it follows IEEE 754. */
typedef struct {
    const char *name;
    Operations of[2]; /* by Type */
    int flushes;
} Variant;

/* A variant that does what is asked for on at most so many threads. */
typedef struct {
    const Variant *variant;
    int threads;
} Kernels;

/* The variant of this name, at the level of vector instructions `level` where the name leaves that open; NULL, and why
   in `reason`, where this CPU or this process cannot have it. */
const Variant *find_variant(const char *name, const char *level, const char **reason);

/* The levels that this CPU has, best first, up to NULL. */
const char *const *find_levels(void);

/* These are as in Operations, on the threads of `kernels`. */
void kernels_multiply(const Kernels *kernels, Type type, const Linear *linear, const void *rows, const void *residual, void *out,
              int64_t count);
void kernels_rms_norm(const Kernels *kernels, Type type, const void *in, const void *weight, void *out, int64_t rows,
              int64_t size, float epsilon);
void kernels_silu_times(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size);
void kernels_attend(const Kernels *kernels, Type type, void *rows, int64_t stride, void *out, const Run *runs, int64_t count,
            const Attention *attention);

/* A whole layer; `hidden` `[row, hidden]` is computed in place. */
void kernels_run_layer(const Kernels *kernels, Type type, const Layer *layer, void *hidden, int64_t rows, const Run *runs,
               int64_t count, float epsilon);

/* How many bytes the panels of a matrix have. */
int64_t panels_bytes(Type type, int64_t out, int64_t in);

/* A matrix `[out, in]` -> `panels`, which are zero before. */
void kernels_lay_out(const Kernels *kernels, Type type, const void *matrix, int64_t out, int64_t in, void *panels);

/* Tables `[position, 2 * half]` of cosines and sines of position times frequency, as Attention has them. */
void make_rope_tables(Type type, const float *frequencies, int64_t half, int64_t positions, void *cosines, void *sines);

/* A number that tells these kernels' results from others': what they make of fixed inputs. */
uint64_t digest(const Kernels *kernels);
