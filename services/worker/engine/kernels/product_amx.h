/* Products of rows and panels by AMX-BF16 tiles (TDPBF16PS). product_fma.h tells in which order they add up. To be
   included after panels.h. */
#pragma once

/* What products are made of: pairs of inputs in bfloat16, as they lie in rows, panels and the cache. */
typedef bf16 Packed;

#define TILE_ROWS 16
#define TILE_STEP 32 /* of the numbers in a row */

/* Tiles 0 to 3 and 7 are sums of 16 rows and 16 columns each, 4 is 16 rows and 32 inputs, 5 and 6 are 32 inputs and 16
   columns. They are this thread's until `release_tiles`. */
static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = TILE_ROWS;
    }
    _tile_loadconfig(&config);
}

static void release_tiles(void) { _tile_release(); }

/* Asks memory for some lines. */
ALWAYS void expect(const char **from, int64_t lines) {
    for (; lines > 0; lines--, *from += 64)
        _mm_prefetch(*from, _MM_HINT_T1);
}

/* Adds to `c` `[16 rows, 16 * tiles]` the product of `a` `[row, 32 * blocks]` and `b` `[16 * blocks, column, 2]`, or puts
   it there where it is the first one. Strides are in bytes, from row to row and from pair to pair. Meanwhile it asks
   for `lines` of what is `ahead`, for each block. */
ALWAYS void add_tiles(const bf16 *a, int64_t a_stride, const bf16 *b, int64_t b_stride, float *c, int64_t c_stride,
                      int64_t blocks, int tiles, int is_first, const char **ahead, int64_t lines) {
    if (is_first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(7);
    } else {
        _tile_loadd(0, c, c_stride);
        if (tiles > 1) _tile_loadd(1, c + 16, c_stride);
        if (tiles > 2) _tile_loadd(2, c + 32, c_stride);
        if (tiles > 3) _tile_loadd(3, c + 48, c_stride);
        if (tiles > 4) _tile_loadd(7, c + 64, c_stride);
    }
    for (int64_t block = 0; block < blocks; block++, a += TILE_STEP, b += 8 * b_stride) {
        _tile_loadd(4, a, a_stride);
        expect(ahead, lines);
        _tile_loadd(5, b, b_stride);
        _tile_dpbf16ps(0, 4, 5);
        if (tiles > 1) { _tile_loadd(6, b + 32, b_stride); _tile_dpbf16ps(1, 4, 6); }
        if (tiles > 2) { _tile_loadd(5, b + 64, b_stride); _tile_dpbf16ps(2, 4, 5); }
        if (tiles > 3) { _tile_loadd(6, b + 96, b_stride); _tile_dpbf16ps(3, 4, 6); }
        if (tiles > 4) { _tile_loadd(5, b + 128, b_stride); _tile_dpbf16ps(7, 4, 5); }
    }
    _tile_stored(0, c, c_stride);
    if (tiles > 1) _tile_stored(1, c + 16, c_stride);
    if (tiles > 2) _tile_stored(2, c + 32, c_stride);
    if (tiles > 3) _tile_stored(3, c + 48, c_stride);
    if (tiles > 4) _tile_stored(7, c + 64, c_stride);
}

#define MOST_TILES 5

/* As `product` of product_fma.h, but always of 16 rows; strides are in numbers. */
ALWAYS void product(const bf16 *a, int64_t a_stride, const bf16 *b, int64_t b_stride, float *c, int64_t c_stride,
                    int64_t rows, int64_t width, int64_t blocks, int is_first) {
    const char *nothing = NULL;
    (void)rows;
    a_stride *= sizeof *a, b_stride *= 2 * sizeof *b, c_stride *= sizeof *c;
    for (int64_t tiles; width > 0; width -= tiles * WIDE, b += 2 * tiles * WIDE, c += tiles * WIDE) {
        tiles = width / WIDE < MOST_TILES ? width / WIDE : MOST_TILES;
        switch (tiles) {
        case 1: add_tiles(a, a_stride, b, b_stride, c, c_stride, blocks, 1, is_first, &nothing, 0); break;
        case 2: add_tiles(a, a_stride, b, b_stride, c, c_stride, blocks, 2, is_first, &nothing, 0); break;
        case 3: add_tiles(a, a_stride, b, b_stride, c, c_stride, blocks, 3, is_first, &nothing, 0); break;
        case 4: add_tiles(a, a_stride, b, b_stride, c, c_stride, blocks, 4, is_first, &nothing, 0); break;
        default: add_tiles(a, a_stride, b, b_stride, c, c_stride, blocks, 5, is_first, &nothing, 0); break;
        }
    }
}

/* `count` numbers of a row -> `to`, with zeros up to a multiple of 32. */
ALWAYS void pack_row(Type type, const void *row, int64_t count, Packed *to) {
    (void)type;
    memcpy(to, row, count * sizeof *to);
    memset(to + count, 0, (padded(count, INPUTS) - count) * sizeof *to);
}

/* Up to 64 keys `[position, head_dim]` as the columns of a panel. */
ALWAYS void pack_keys(Type type, const void *keys, int64_t count, int64_t head_dim, Packed *to) {
    (void)type;
    for (int64_t position = 0; position < padded(count, WIDE); position += WIDE)
        pair_inputs((const bf16 *)keys + position * head_dim, count - position, head_dim, head_dim, (int32_t *)to,
                    position);
}

/* Values `[position, head_dim]`, with a one behind each, as `[pair of positions, width, of the pair]`; zeros where there
   are none, up to a multiple of 32 positions. */
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

/* A span's weights as a product takes them: as they are. */
ALWAYS const Packed *pack_weights(Type type, const void *weights, int64_t count, int64_t span, Packed *to) {
    (void)type, (void)count, (void)span, (void)to;
    return weights;
}
