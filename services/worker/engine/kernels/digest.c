/* A digest of the results of one variant. Workers whose digests differ compute different bits, and must not share
   requests. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

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
    void *made = calloc(count + 32, sizeof(float)); /* kernels may read and write whole vectors */
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

/* Multiplies, then multiplies again with the negated result as the residual: the difference shows the bits that
   rounding dropped. */
static void try_matrix(Probe *probe, int64_t rows, int64_t in, int64_t out, int with_bias, int lowest) {
    void *given = numbers(probe, rows * in, lowest, 1), *matrix = numbers(probe, out * in, lowest, 1);
    void *bias = noise(probe, out), *once = zeros(probe, rows * out), *twice = zeros(probe, rows * out);
    void *panels = aligned_alloc(64, panels_bytes(probe->type, out, in));
    if (!panels)
        abort();
    memset(panels, 0, panels_bytes(probe->type, out, in));
    kernels_lay_out(probe->kernels, probe->type, matrix, out, in, panels);
    Linear linear = {in, out, 1, {{panels, with_bias ? bias : NULL, out, {0}}}};
    kernels_multiply(probe->kernels, probe->type, &linear, given, NULL, once, rows);
    count_in(probe, once, rows * out);
    negate(probe, once, rows * out);
    kernels_multiply(probe->kernels, probe->type, &linear, given, once, twice, rows);
    count_in(probe, twice, rows * out);
    free(given), free(matrix), free(bias), free(once), free(twice), free(panels);
}

static void try_rows(Probe *probe, int64_t rows, int64_t size) {
    void *given = noise(probe, 2 * rows * size), *weight = noise(probe, 2 * size);
    void *made = zeros(probe, 2 * rows * size);
    kernels_rms_norm(probe->kernels, probe->type, given, weight, made, rows, 2 * size, 1e-5f, 0.0f);
    count_in(probe, made, 2 * rows * size);
    kernels_silu_times(probe->kernels, probe->type, given, made, rows, size);
    count_in(probe, made, rows * size);
    free(given), free(weight), free(made);
}

/* A run whose last row attends to `length` positions of a cache that is full of noise. */
static void try_attention(Probe *probe, int64_t rows, int64_t length, int64_t head_dim, int decode) {
    enum { KV_HEADS = 2, GROUP = 3, SLOTS = 1040 };
    int64_t stride = (GROUP + 2) * KV_HEADS * head_dim, cached = KV_HEADS * SLOTS * head_dim;
    void *given = noise(probe, rows * stride), *made = zeros(probe, rows * stride);
    void *keys = noise(probe, cached), *values = noise(probe, cached);
    void *cosines = noise(probe, SLOTS * head_dim), *sines = noise(probe, SLOTS * head_dim);
    Attention attention = {.cache = {keys, values, SLOTS, KV_HEADS, GROUP, head_dim}, .cosines = cosines, .sines = sines};
    Run run = {rows, 16, length - rows, decode};
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
    try_attention(probe, 40, 648, 64, 0);
    try_attention(probe, 13, 13, 20, 0);
    try_attention(probe, 2, 1000, 64, 1);
    try_attention(probe, 1, 4, 128, 1);
}

uint64_t digest(const Kernels *kernels) {
    Probe probe = {kernels, BFLOAT16, 1, 0xcbf29ce484222325u};
    try_all(&probe);
    probe.type = FLOAT32;
    try_all(&probe);
    return probe.hash;
}
