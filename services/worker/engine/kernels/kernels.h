/* The engine's kernels for CPUs: what a layer of a transformer computes, on one or several threads.

   A row's result depends on that row's own numbers alone. The order of every sum is fixed by the positions and inputs
   that it covers. It depends on no other row, no address, and no number of rows or threads.

   There are several variants of the kernels, for different CPUs. All of them read the same parameters and the same KV
   cache; their layouts are described here. */
#pragma once

#include <stdint.h>

/* Rises with every change of what Python passes, as here, in experts.h or in heads.h. variants.py has the same number. */
#define INTERFACE 7

typedef uint16_t bf16;
typedef enum { BFLOAT16, FLOAT32 } Type;

/* A matrix `[out, in]` is stored in panels of 64 outputs. The last panel is padded with zeros, and so are the inputs,
   up to a multiple of 32. In bfloat16 a panel is `[pair of inputs, output, input of the pair]`. In float32 it is `[32
   inputs, input, output]`, where the 16 even ones of the 32 inputs come first. */
#define PANEL 64
#define INPUTS 32

/* How the numbers of a packed matrix are stored: not packed at all, as integers without a sign, or as the bits of
   float8_e4m3fn or of float4_e2m1fn. Scales of float8_e8m0fnu are powers of two: 2^(bits - 127). SCALES_PANEL are of
   float32, and all outputs of a panel share them. */
typedef enum { NOT_PACKED, INT4, INT8, FP8, FP4 } Codes;
typedef enum { SCALES_BFLOAT16, SCALES_FLOAT32, SCALES_FLOAT16, SCALES_E8M0, SCALES_PANEL } Scales;

/* A packed matrix. A number is (code - zero) * scale in float32, rounded to bfloat16; so products have the bits of the
   same matrix in bfloat16. `group` inputs of an output share a scale and a zero. Zero is in the middle of the integers
   unless the matrix has `zeros`.

   A panel is `[group, 64]` scales, or `[group]` of them with zeros up to a multiple of 64 bytes where its outputs share
   them, then `[group, 64]` zeros of a byte each if there are any, then the codes of each pair of inputs. These are words
   of 32 bits, `[word, 16 lanes]`: field `f` of word `w` of lane `l` is the code of output
   `8 * (w * fields + f) + l / 2` and input `l % 2` of the pair. The lowest bits are field 0. */
typedef struct {
    int64_t codes, group, scales, zeros;
} Packing;

/* Consecutive outputs of a linear map: their panels, and a bias or NULL. Packed panels are of bfloat16 maps. */
typedef struct {
    const void *panels, *bias;
    int64_t out;
    Packing packing;
} Part;

#define MOST_PARTS 3

/* A linear map from `in` to `out` features. Its matrix has several parts if it is not contiguous. */
typedef struct {
    int64_t in, out, parts;
    Part part[MOST_PARTS];
} Linear;

/* Keys and values of one layer, each `[kv_head, slot, head_dim]`. The `group` query heads from `group * i` on share KV
   head `i`. Where both are at one address, keys are values too. They are kept in the type of the numbers or, if `fp8`,
   rounded to float8_e4m3fn: attention then sees what is kept, of a run's own rows too. */
typedef struct {
    void *keys, *values;
    int64_t slots, kv_heads, group, head_dim, fp8;
} Cache;

/* Consecutive rows of one request: `rows` of them, from position `begin` on. The request's position 0 is in `slot`, a
   multiple of 16. Rows of a prompt, which begin at a multiple of 8, may be computed together and generated rows are
   computed one by one; both see the positions up to their own. The rows of a WHOLE request are all of it, and see each other. */
typedef struct {
    int64_t rows, slot, begin, kind;
} Run;

enum { PROMPT, GENERATED, WHOLE }; /* kinds of runs */

/* The number of positions up to the last one that row number `row` of a run sees. */
static inline int64_t seen_by(const Run *run, int64_t row) {
    return run->kind == WHOLE ? run->rows : run->begin + row + 1;
}

/* Attention of one layer: its part of the cache, and tables `[position, head_dim]` of cosines and sines. The first half
   of the sines is negated. A row sees `window` positions, its own included. Scores are multiplied by `scale`, and then
   bent towards `cap` by a tangent. Zero stands for all positions, for 1 / sqrt(head_dim), and for no limit. `sinks` are
   NULL, or the score of each query head that is a weight more but no value. */
typedef struct {
    Cache cache;
    const void *cosines, *sines;
    int64_t window;
    double scale, cap;
    const float *sinks;
} Attention;

/* The factor of scores. */
static inline float scale_of(const Attention *attention) {
    return attention->scale ? (float)attention->scale : 1.0f / __builtin_sqrtf((float)attention->cache.head_dim);
}

/* The first position that the row at `position` sees. */
static inline int64_t first_seen(const Attention *attention, int64_t position) {
    return attention->window && position >= attention->window ? position + 1 - attention->window : 0;
}

/* The number of rows that a layer computes at a time, and the most that one of its runs has. */
#define LAYER_ROWS 320

/* The buffers for the intermediate results of LAYER_ROWS rows of a layer, in the order of computation. */
typedef struct {
    void *normed, *projected, *attended, *hidden, *gate_up, *gated;
} Between;

/* Layer `index` of a model. */
typedef struct {
    int64_t index;
    const void *input_norm;
    Linear qkv, output;
    const void *mlp_norm;
    Linear gate_up, down;
    Attention attention;
    Between between;
} Layer;

/* Asks how likely `token` and `count` others are by a row of logits `[size]`. A token of -1 stands for the likeliest, the
   lowest of equal ones, and becomes it. The others are those in `ids` if they are `named`. Else their ids are put there:
   those of the largest logits, the largest first, of equal ones the lowest. `told` is `[1 + count]`: the logarithms of
   how likely the token and the others are. */
typedef struct {
    const void *logits;
    int64_t size, token, named, count;
    int64_t *ids;
    float *told;
} Likelihoods;

/* What an adapter (LoRA, Hu et al.) adds to the product of a linear map and a row: `up` of `down` of the row. Where it
   adds nothing, `down` has no inputs. */
typedef struct {
    Linear down, up;
} LowRank;

/* The linear maps of a layer. */
typedef enum { QKV, OUTPUT, GATE_UP, DOWN, MAPS } Map;

/* The rows of a step that use one adapter, `count` of them: their numbers rise. `layers` has what the adapter adds to
   each map of each layer, by the layer's index. */
typedef struct {
    const LowRank (*layers)[MAPS];
    const int64_t *rows;
    int64_t count;
} AdapterRows;

/* The adapters of a step, `count` of them. No row uses two. */
typedef struct {
    const AdapterRows *each;
    int64_t count;
} Adapters;

/* One thread's share of some work that is divided into items. */
typedef struct {
    int64_t begin, end;
} Share;

/* The operations of a variant in one type of numbers. Every function runs on one thread. */
typedef struct {
    /* `[row, in]` -> `[row, out]`: the product plus the bias, plus the residual `[row, out]` unless it is NULL. The
       items of `panels` are the panels of all parts in order. */
    void (*multiply)(const Linear *linear, const void *rows, const void *residual, void *out, int64_t count,
                     Share panels);
    /* RMSNorm: each row `[size]` is divided by the root of its mean square plus epsilon, and multiplied by `weight` plus
       `offset`. */
    void (*rms_norm)(const void *in, const void *weight, void *out, int64_t rows, int64_t size, float epsilon,
                     float offset);
    /* LayerNorm: from each row `[size]` its mean is taken, and it is divided by the root of its variance plus epsilon,
       multiplied by `weight`, and `bias` is added. */
    void (*layer_norm)(const void *in, const void *weight, const void *bias, void *out, int64_t rows, int64_t size,
                       float epsilon);
    /* GELU by the error function, of each number of `[row, size]`. */
    void (*gelu)(const void *in, void *out, int64_t rows, int64_t size);
    /* SwiGLU: `[row, 2, size]` -> `out` `[row, size]`, the SiLU of the first half times the second half; or GeGLU, with
       GELU by its approximation with a tangent. */
    void (*silu_times)(const void *in, void *out, int64_t rows, int64_t size);
    void (*gelu_times)(const void *in, void *out, int64_t rows, int64_t size);
    /* Attention of the rows of one run. `rows` is `[row, head, head_dim]` with `stride` numbers between rows; its heads
       are first queries, then keys, then values, unless keys are values too. Rotates queries and keys by their positions (RoFormer), stores keys
       and values in the cache, and attends: `out` is `[row, query head, head_dim]`. The items of `kv_heads` are KV
       heads. */
    void (*attend)(void *rows, int64_t stride, void *out, const Run *run, const Attention *attention, Share kv_heads);
    /* Copies a matrix `[out, in]` into `panels`, which the caller has zeroed. */
    void (*lay_out)(const void *matrix, int64_t out, int64_t in, void *panels);
    void (*likelihoods)(Likelihoods *asked);
} Operations;

/* With `flushes`, float32 arithmetic reads denormal operands as zero and returns zero instead of denormal results, as
   AMX does. Without it, arithmetic follows IEEE 754. */
typedef struct {
    const char *name;
    Operations of[2]; /* by Type */
    int flushes;
} Variant;

/* A variant, and the most threads that it may use. */
typedef struct {
    const Variant *variant;
    int threads;
} Kernels;

/* Returns the variant of this name, at the given level of vector instructions where the name leaves that open. That of
   `avx512_bf16` may be "dots" or "fma": how it adds products; by any other name, the faster one on this CPU. Returns NULL
   and a `reason` if this CPU or this process cannot use it. */
const Variant *find_variant(const char *name, const char *level, const char **reason);

/* Returns the levels of vector instructions that this CPU has, best first, ended by NULL. */
const char *const *find_levels(void);

/* The functions of Operations, on the threads of `kernels`. */
void kernels_multiply(const Kernels *kernels, Type type, const Linear *linear, const void *rows, const void *residual,
                      void *out, int64_t count);
void kernels_rms_norm(const Kernels *kernels, Type type, const void *in, const void *weight, void *out, int64_t rows,
                      int64_t size, float epsilon, float offset);
void kernels_layer_norm(const Kernels *kernels, Type type, const void *in, const void *weight, const void *bias,
                        void *out, int64_t rows, int64_t size, float epsilon);
void kernels_gelu(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size);
void kernels_silu_times(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size);
void kernels_gelu_times(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size);
void kernels_attend(const Kernels *kernels, Type type, void *rows, int64_t stride, void *out, const Run *runs,
                    int64_t count, const Attention *attention);

/* Adds what adapters add to `product` `[row, out]` of rows `in` `[row, in]` and this map of a layer. The step's rows
   from `first` on are here, `rows` of them. */
void kernels_add_low_rank(const Kernels *kernels, Type type, const Adapters *adapters, int64_t layer, Map map,
                          const void *in, void *product, int64_t first, int64_t rows);

/* Computes a whole layer; `hidden` `[row, hidden]` is updated in place. Each product of a linear map is rounded before
   adapters add to it. */
void kernels_run_layer(const Kernels *kernels, Type type, const Layer *layer, const Adapters *adapters, void *hidden,
                       int64_t rows, const Run *runs, int64_t count, float epsilon);

/* Tells how likely tokens are by each of some rows of logits. The results are the same for all variants. */
void kernels_likelihoods(const Kernels *kernels, Type type, Likelihoods *rows, int64_t count);

/* The number of bytes of a matrix's panels. */
int64_t panels_bytes(Type type, int64_t out, int64_t in);

/* Copies a matrix `[out, in]` into `panels`, which the caller has zeroed. */
void kernels_lay_out(const Kernels *kernels, Type type, const void *matrix, int64_t out, int64_t in, void *panels);

/* Makes tables `[position, 2 * half]` of the cosines and sines of position times frequency, as in Attention. */
void make_rope_tables(Type type, const float *frequencies, int64_t half, int64_t positions, void *cosines, void *sines);

/* Gives minus infinity to the logits of a row `[size]` whose bit in `mask` is 0; the lowest bit comes first. */
void mask_logits(Type type, void *row, const uint32_t *mask, int64_t size);

/* Returns a hash of the results for fixed inputs. Kernels with different digests compute different bits. */
uint64_t digest(const Kernels *kernels);
