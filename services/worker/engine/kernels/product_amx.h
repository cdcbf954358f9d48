/* Products of rows and panels by AMX-BF16 tiles (TDPBF16PS). product_fma.h describes their order of summation. Include
   this after panels.h. */
#pragma once

#include "avx512_bf16/operations.h"

/* The element type of packed rows and panels: bfloat16 in pairs of inputs, as in rows, panels and the cache. */
typedef bf16 Packed;

#define TILE_ROWS 16
#define TILE_STEP 32 /* of the numbers in a row */
#define VALUE_STEP 2 /* between packed values of neighbouring columns */

/* Compilers do not know which memory tile loads read. Without this barrier, stores could come too late. */
ALWAYS void finish_stores(void) { __asm__ volatile("" : : : "memory"); }

/* Tiles 0 to 3 are sums of 16 rows, or of `rows` if these are fewer, by 16 columns. Tile 4 has as many rows by 32
   inputs, and tiles 5 to 7 have 32 inputs by 16 columns. This thread has them until `release_tiles`. */
static void configure_tiles(int64_t rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = tile < 5 && rows < TILE_ROWS ? (uint8_t)rows : TILE_ROWS;
    }
    finish_stores();
    _tile_loadconfig(&config);
}

static void release_tiles(void) { _tile_release(); }

/* What is unpacked while tiles are multiplied, since that leaves most of the CPU idle: the next `left` pairs of inputs of
   a panel, up to `each` of them with each block of 32 inputs that are multiplied. */
typedef struct {
    PackedPanel *from;
    bf16 *to;
    int64_t left, each;
} Meanwhile;

ALWAYS void unpack_some(Meanwhile *meanwhile) {
    int64_t pairs = meanwhile->left < meanwhile->each ? meanwhile->left : meanwhile->each;
    if (pairs)
        unpack_by_vectors(meanwhile->from, pairs, meanwhile->to);
    meanwhile->to += pairs * 2 * PANEL;
    meanwhile->left -= pairs;
}

/* The product of 16 rows and up to 64 columns: `a` `[row, 32 * blocks]` times `b` `[16 * blocks, column, 2]`. Strides
   are in bytes, from row to row and from pair to pair. The sum of it and `from`, unless that is NULL, is stored at
   `to`; both are `[row, column]`. If `goes_on`, it is added to the sums that the job before left in the tiles, and it is
   left there if `to` is NULL. With each block, `lines` cache lines at `ahead` are prefetched. */
typedef struct {
    const bf16 *a, *b;
    const float *from;
    float *to;
    int64_t a_stride, b_stride, c_stride, blocks, lines;
    const char *ahead;
    Meanwhile *meanwhile; /* or NULL */
    int goes_on;
} TileJob;

/* The next tiles are loaded before products that do not need them, since the CPU cannot load a tile while it multiplies
   it. Returns `ahead`, advanced. */
ALWAYS const char *multiply_tiles(TileJob job, int tiles) {
    const float *from = job.from;
    finish_stores();
    if (!job.goes_on) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    if (from) {
        _tile_loadd(0, from, job.c_stride);
        if (tiles > 1) _tile_loadd(1, from + 16, job.c_stride);
        if (tiles > 2) _tile_loadd(2, from + 32, job.c_stride);
        if (tiles > 3) _tile_loadd(3, from + 48, job.c_stride);
    }
    for (int64_t block = 0; block < job.blocks; block++, job.a += TILE_STEP, job.b += 8 * job.b_stride) {
        _tile_loadd(4, job.a, job.a_stride);
        for (int64_t line = 0; line < job.lines; line++, job.ahead += 64)
            _mm_prefetch(job.ahead, _MM_HINT_T1);
        _tile_loadd(5, job.b, job.b_stride);
        if (tiles > 1) _tile_loadd(6, job.b + 32, job.b_stride);
        if (tiles > 2) _tile_loadd(7, job.b + 64, job.b_stride);
        _tile_dpbf16ps(0, 4, 5);
        if (tiles > 3) _tile_loadd(5, job.b + 96, job.b_stride);
        if (tiles > 1) _tile_dpbf16ps(1, 4, 6);
        if (tiles > 2) _tile_dpbf16ps(2, 4, 7);
        if (tiles > 3) _tile_dpbf16ps(3, 4, 5);
        if (job.meanwhile)
            unpack_some(job.meanwhile);
    }
    if (!job.to)
        return job.ahead;
    _tile_stored(0, job.to, job.c_stride);
    if (tiles > 1) _tile_stored(1, job.to + 16, job.c_stride);
    if (tiles > 2) _tile_stored(2, job.to + 32, job.c_stride);
    if (tiles > 3) _tile_stored(3, job.to + 48, job.c_stride);
    return job.ahead;
}

/* The same as `product` of product_fma.h, but always with 16 rows; strides are in numbers. */
ALWAYS void product(const bf16 *a, int64_t a_stride, const bf16 *b, int64_t b_stride, float *c, int64_t c_stride,
                    int64_t rows, int64_t width, int64_t blocks, int is_first) {
    TileJob job = {.a = a, .a_stride = a_stride * sizeof *a, .b_stride = b_stride * 2 * sizeof *b,
                   .c_stride = c_stride * sizeof *c, .blocks = blocks};
    (void)rows;
    for (; width > 0; width -= PANEL, b += 2 * PANEL, c += PANEL) {
        job.b = b, job.to = c, job.from = is_first ? NULL : c;
        switch (width / WIDE) {
        case 1: multiply_tiles(job, 1); break;
        case 2: multiply_tiles(job, 2); break;
        case 3: multiply_tiles(job, 3); break;
        default: multiply_tiles(job, 4); break;
        }
    }
}

/* Copies `count` numbers of a row, with zeros up to a multiple of 32. */
ALWAYS void pack_row(Type type, const void *row, int64_t count, Packed *to) {
    (void)type;
    memcpy(to, row, count * sizeof *to);
    memset(to + count, 0, (padded(count, INPUTS) - count) * sizeof *to);
}

/* Stores up to 64 keys `[position, head_dim]` as the columns of a panel. */
ALWAYS void pack_keys(Type type, const void *keys, int64_t count, int64_t head_dim, Packed *to) {
    (void)type;
    for (int64_t position = 0; position < padded(count, WIDE); position += WIDE)
        pair_inputs((const bf16 *)keys + position * head_dim, count - position, head_dim, head_dim, (int32_t *)to,
                    position);
}

/* Stores values `[position, head_dim]`, each followed by a one, as `[pair of positions, width, position of the pair]`.
   Positions are padded with zeros to a multiple of 32. */
ALWAYS void pack_values(Type type, const void *values, int64_t count, int64_t head_dim, int64_t width, Packed *to) {
    (void)type;
    for (int64_t position = 0; position < padded(count, INPUTS); position += 2, to += 2 * width) {
        int64_t rows = count - position < 0 ? 0 : count - position < 2 ? count - position : 2, i = 0;
        const bf16 *even = (const bf16 *)values + position * head_dim, *odd = even + head_dim;
        for (; rows == 2 && i + WIDE <= head_dim; i += WIDE) {
            __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(even + i)));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(odd + i)));
            _mm512_storeu_si512(to + 2 * i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
        memset(to + 2 * i, 0, 2 * (width - i) * sizeof *to);
        for (; i < head_dim && rows > 0; i++) {
            to[2 * i] = even[i];
            to[2 * i + 1] = rows == 2 ? odd[i] : 0;
        }
        for (int64_t row = 0; row < rows; row++)
            to[2 * head_dim + row] = 0x3f80; /* one */
    }
}

/* The weights of a span in the order that `product` needs, which is the order that they have. */
ALWAYS const Packed *pack_weights(Type type, const void *weights, int64_t count, int64_t span, Packed *to) {
    (void)type, (void)count, (void)span, (void)to;
    return weights;
}
