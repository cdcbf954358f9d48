/* A digest of the results of one variant. Workers whose digests differ compute different bits, and must not share
   requests. */
#include <stdlib.h>
#include <string.h>

#include "experts.h"
#include "panel.h"

/* Draws pseudo-random numbers that are the same on every machine (splitmix64), and hashes all results (FNV-1a). */
typedef struct {
    const Kernels *kernels;
    Type type;
    uint64_t seed, hash;
} Probe;

static uint64_t draw(Probe *probe) {
    uint64_t z = probe->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t bytes_of(const Probe *probe, int64_t count) {
    return count * (probe->type == BFLOAT16 ? sizeof(bf16) : sizeof(float));
}

/* `count` numbers of either sign, with magnitudes from 2^lowest up to 2^(lowest + 4); zeros unless `is_noise`. */
static void *numbers(Probe *probe, int64_t count, int lowest, int is_noise) {
    void *made = calloc(1, bytes_of(probe, count)); /* no more than that: sanitizers see what kernels read behind it */
    if (!made)
        abort();
    for (int64_t i = 0; i < count && is_noise; i++) {
        uint64_t random = draw(probe);
        uint32_t exponent = (uint32_t)(127 + lowest + (int)(random >> 40) % 4);
        uint32_t bits = (uint32_t)(random & 0x807fffff) | exponent << 23;
        if (probe->type == BFLOAT16)
            ((bf16 *)made)[i] = (bf16)(bits >> 16);
        else
            ((uint32_t *)made)[i] = bits;
    }
    return made;
}

static void *noise(Probe *probe, int64_t count) { return numbers(probe, count, -3, 1); }

/* `count` codes of float8_e4m3fn, none of which is NaN: which NaN comes of several is the compiler's choice. */
static void *codes(Probe *probe, int64_t count) {
    uint8_t *made = noise(probe, count);
    for (int64_t i = 0; i < count; i++)
        made[i] &= 0xbf;
    return made;
}

static void *zeros(Probe *probe, int64_t count) { return numbers(probe, count, 0, 0); }

static void count_in(Probe *probe, const void *made, int64_t count) {
    const unsigned char *bytes = made;
    for (int64_t i = 0; i < bytes_of(probe, count); i++)
        probe->hash = (probe->hash ^ bytes[i]) * 0x100000001b3u;
}

static void negate(const Probe *probe, void *made, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (probe->type == BFLOAT16)
            ((bf16 *)made)[i] ^= 0x8000;
        else
            ((uint32_t *)made)[i] ^= 0x80000000u;
}

/* Lays a matrix `[out, in]` of noise out in panels of `type`. */
static void *lay_out_noise(Probe *probe, Type type, int64_t out, int64_t in, int lowest) {
    Probe other = *probe;
    other.type = type;
    void *matrix = numbers(&other, out * in, lowest, 1), *panels = aligned_alloc(64, panels_bytes(type, out, in));
    if (!panels)
        abort();
    memset(panels, 0, panels_bytes(type, out, in));
    kernels_lay_out(probe->kernels, type, matrix, out, in, panels);
    probe->seed = other.seed;
    free(matrix);
    return panels;
}

/* Multiplies, then multiplies again with the negated result as the residual: the difference shows the bits that
   rounding dropped. */
static void multiply_twice(Probe *probe, const Linear *linear, int64_t rows, int lowest) {
    void *given = numbers(probe, rows * linear->in, lowest, 1);
    void *once = zeros(probe, rows * linear->out), *twice = zeros(probe, rows * linear->out);
    kernels_multiply(probe->kernels, probe->type, linear, given, NULL, once, rows);
    count_in(probe, once, rows * linear->out);
    negate(probe, once, rows * linear->out);
    kernels_multiply(probe->kernels, probe->type, linear, given, once, twice, rows);
    count_in(probe, twice, rows * linear->out);
    free(given), free(once), free(twice);
}

static void try_matrix(Probe *probe, int64_t rows, int64_t in, int64_t out, int with_bias, int lowest) {
    void *panels = lay_out_noise(probe, probe->type, out, in, lowest), *bias = noise(probe, out);
    Linear linear = {in, out, 1, {{panels, with_bias ? bias : NULL, out, {0}}}};
    multiply_twice(probe, &linear, rows, lowest);
    free(panels), free(bias);
}

/* A matrix of one panel, packed. Its scales are near 2^-4, zeros and codes are any. */
static void try_packed(Probe *probe, int64_t rows, Codes codes, int with_zeros) {
    enum { IN = 160, GROUP_INPUTS = 32, GROUPS = IN / GROUP_INPUTS };
    Packing packing = {codes, GROUP_INPUTS, codes == FP4 ? SCALES_E8M0 : SCALES_BFLOAT16, with_zeros};
    PackedBytes bytes = packed_bytes(&packing, IN);
    unsigned char *panel = aligned_alloc(64, padded(bytes.all, 64));
    if (!panel)
        abort();
    for (int64_t i = 0; i < bytes.all; i++) { /* a code of FP8 is not NaN */
        unsigned char code = (unsigned char)(draw(probe) >> 32);
        panel[i] = codes == FP8 && (code & 0x7f) == 0x7f ? 0 : code;
    }
    for (int64_t i = 0; i < GROUPS * PANEL; i++)
        if (codes == FP4)
            panel[i] = (unsigned char)(121 + (draw(probe) >> 32) % 4);
        else
            ((bf16 *)panel)[i] = (bf16)(0x3d80 | (draw(probe) >> 32 & 0x7f));
    Linear linear = {IN, PANEL, 1, {{panel, NULL, PANEL, packing}}};
    multiply_twice(probe, &linear, rows, -3);
    free(panel);
}

/* With a `limit`, gate and up are clamped. */
static void try_experts(Probe *probe, int64_t rows, int normalized, double limit) {
    enum { EXPERTS = 4, HIDDEN = 96, BETWEEN = 64 };
    Expert experts[EXPERTS];
    for (int i = 0; i < EXPERTS; i++) {
        void *gate_up = lay_out_noise(probe, probe->type, 2 * BETWEEN, HIDDEN, -3);
        void *down = lay_out_noise(probe, probe->type, HIDDEN, BETWEEN, -3);
        experts[i].gate_up = (Linear){HIDDEN, 2 * BETWEEN, 1, {{gate_up, NULL, 2 * BETWEEN, {0}}}};
        experts[i].down = (Linear){BETWEEN, HIDDEN, 1, {{down, NULL, HIDDEN, {0}}}};
    }
    void *router = lay_out_noise(probe, FLOAT32, EXPERTS, HIDDEN, -3);
    Experts chosen = {.router = {HIDDEN, EXPERTS, 1, {{router, NULL, EXPERTS, {0}}}}, .count = EXPERTS, .chosen = 2,
                      .held = EXPERTS, .normalized = normalized, .experts = experts, .alpha = 1.702, .scale = 1.0,
                      .groups = 1, .chosen_groups = 1, .limit = limit};
    void *given = noise(probe, rows * HIDDEN), *made = zeros(probe, rows * HIDDEN);
    kernels_run_experts(probe->kernels, probe->type, &chosen, given, NULL, made, rows);
    count_in(probe, made, rows * HIDDEN);
    for (int i = 0; i < EXPERTS; i++)
        free((void *)experts[i].gate_up.part[0].panels), free((void *)experts[i].down.part[0].panels);
    free(router), free(given), free(made);
}

static void try_rows(Probe *probe, int64_t rows, int64_t size) {
    const Kernels *kernels = probe->kernels;
    Type type = probe->type;
    void *given = noise(probe, 2 * rows * size), *weight = noise(probe, 2 * size), *bias = noise(probe, 2 * size);
    void *made = zeros(probe, 2 * rows * size);
    for (int offset = 0; offset < 2; offset++) {
        kernels_rms_norm(kernels, type, given, weight, made, rows, 2 * size, 1e-5f, (float)offset);
        count_in(probe, made, 2 * rows * size);
    }
    kernels_layer_norm(kernels, type, given, weight, bias, made, rows, 2 * size, 1e-5f);
    count_in(probe, made, 2 * rows * size);
    kernels_gelu(kernels, type, given, made, rows, 2 * size);
    count_in(probe, made, 2 * rows * size);
    kernels_silu_times(kernels, type, given, made, rows, size);
    count_in(probe, made, rows * size);
    kernels_gelu_times(kernels, type, given, made, rows, size);
    count_in(probe, made, rows * size);
    free(given), free(weight), free(bias), free(made);
}

/* A run whose last row attends to `length` positions, or to `like->window` of them, of a cache that is full of noise.
   `like` has the factor of scores, their cap and sinks as well. */
static void try_attention(Probe *probe, int64_t rows, int64_t length, int64_t head_dim, int64_t kind,
                          const Attention *like) {
    enum { KV_HEADS = 2, GROUP = 3, SLOTS = 1040 };
    int64_t stride = (GROUP + 2) * KV_HEADS * head_dim, cached = KV_HEADS * SLOTS * head_dim;
    void *given = noise(probe, rows * stride), *made = zeros(probe, rows * stride);
    void *(*make)(Probe *, int64_t) = like->cache.fp8 ? codes : noise;
    void *keys = make(probe, cached), *values = make(probe, cached);
    void *cosines = noise(probe, SLOTS * head_dim), *sines = noise(probe, SLOTS * head_dim);
    Attention attention = {{keys, values, SLOTS, KV_HEADS, GROUP, head_dim, like->cache.fp8},
                           cosines, sines, like->window, like->scale, like->cap, like->sinks};
    Run run = {rows, 16, length - rows, kind};
    kernels_attend(probe->kernels, probe->type, given, stride, made, &run, 1, &attention);
    count_in(probe, made, rows * GROUP * KV_HEADS * head_dim);
    count_in(probe, keys, cached);
    free(given), free(made), free(keys), free(values), free(cosines), free(sines);
}

static void try_positions(Probe *probe, int64_t half, int64_t positions) {
    float frequencies[64];
    for (int64_t i = 0; i < half; i++)
        frequencies[i] = 1.0f / (float)(1 + i * i);
    void *cosines = zeros(probe, 2 * half * positions), *sines = zeros(probe, 2 * half * positions);
    make_rope_tables(probe->type, frequencies, half, positions, cosines, sines);
    count_in(probe, cosines, 2 * half * positions);
    count_in(probe, sines, 2 * half * positions);
    free(cosines), free(sines);
}

static void try_all(Probe *probe) {
    try_positions(probe, 32, 300);
    try_matrix(probe, 1, 96, 112, 1, -3);
    try_matrix(probe, 7, 1100, 70, 1, -3);
    try_matrix(probe, 37, 640, 129, 0, -3);
    try_matrix(probe, 2, 64, 64, 0, -66); /* its products are denormal numbers */
    try_rows(probe, 5, 64);
    try_rows(probe, 3, 50);
    try_rows(probe, 16, 1024); /* large enough that a relative difference of a millionth changes a rounding */
    try_experts(probe, 9, 0, 0.0);
    try_experts(probe, 5, 1, 0.0);
    try_experts(probe, 5, 1, 0.5);
    const Attention plain = {.window = 0}, bent = {.window = 200, .scale = 0.1, .cap = 30.0};
    const float sinks[] = {0.5f, -2.0f, 3.0f, 0.0f, 1.25f, -0.375f};
    const Attention sinking = {.window = 128, .sinks = sinks};
    try_attention(probe, 40, 648, 64, PROMPT, &plain);
    try_attention(probe, 13, 13, 20, PROMPT, &plain);
    try_attention(probe, 40, 40, 64, WHOLE, &plain);
    try_attention(probe, 40, 648, 64, PROMPT, &bent);
    try_attention(probe, 2, 1000, 64, GENERATED, &plain);
    try_attention(probe, 40, 648, 64, PROMPT, &sinking);
    try_attention(probe, 2, 1000, 64, GENERATED, &bent);
    try_attention(probe, 2, 1000, 64, GENERATED, &sinking);
    try_attention(probe, 1, 4, 128, GENERATED, &plain);
    const Attention kept_in_fp8 = {.cache.fp8 = 1}, bent_in_fp8 = {.cache.fp8 = 1, .window = 200, .cap = 30.0};
    try_attention(probe, 40, 648, 64, PROMPT, &kept_in_fp8);
    try_attention(probe, 2, 1000, 64, GENERATED, &kept_in_fp8);
    try_attention(probe, 2, 300, 20, GENERATED, &bent_in_fp8);
    if (probe->type == FLOAT32) /* packed matrices are of bfloat16 */
        return;
    for (int64_t rows = 1; rows < 100; rows += 36) {
        try_packed(probe, rows, INT4, 1);
        try_packed(probe, rows, INT8, 0);
        try_packed(probe, rows, FP8, 0);
        try_packed(probe, rows, FP4, 0);
    }
}

uint64_t digest(const Kernels *kernels) {
    Probe probe = {kernels, BFLOAT16, 1, 0xcbf29ce484222325u};
    try_all(&probe);
    probe.type = FLOAT32;
    try_all(&probe);
    return probe.hash;
}
