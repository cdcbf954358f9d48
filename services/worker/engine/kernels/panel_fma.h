/* Multiplies rows by a panel. Of both, 32 inputs are used at a time, which stay in the cache next to the core. The rows
   lie in memory as `[block of 32 inputs, row, 32]`. Include this in matrix_fma.h. */
#pragma once

#define ROWS_AT_ONCE 192
/* So many rows use a block as it is in memory: to widen or copy it first would take longer. They do so by at most
   HALVES_AT_ONCE or FLOATS_AT_ONCE, as registers hold their sums and memory is read almost in order. */
#if LANES == 16
#define FEW_HALVES 18
#define HALVES_AT_ONCE 3
#define FEW_FLOATS 24
#define FLOATS_AT_ONCE GROUP
#elif LANES == 8
#define FEW_HALVES GROUP
#define HALVES_AT_ONCE GROUP
#define FEW_FLOATS 64
#define FLOATS_AT_ONCE 2
#else
#define FEW_HALVES 9
#define HALVES_AT_ONCE 1
#define FEW_FLOATS 12
#define FLOATS_AT_ONCE 2
#endif
#define FEW_PREFETCHED (LANES / 8) /* of float32, where all others are better prefetched */
#define FEWEST 2 /* so few read memory as fast as it is without prefetches of whole blocks */
#define AHEAD 8192 /* bytes before they use it, a few more prefetch a block */
#define HALVES_COLUMNS 4 /* vectors whose sums of even and odd inputs are kept in registers */

/* Packs row number `row` of `count` rows. */
ALWAYS void pack(Type type, const void *from, int64_t in, int64_t row, int64_t count, const Tools *tools) {
    for (int64_t first = 0; first < in; first += INPUTS)
        pack_row(type, address(type, from, first), in - first < INPUTS ? in - first : INPUTS,
                 tools->rows + first * count + row * INPUTS);
}

ALWAYS int64_t block_bytes(Type type) { return INPUTS * PANEL * (type == BFLOAT16 ? sizeof(bf16) : sizeof(float)); }

ALWAYS int is_intel(void) {
#if LANES >= 8
    return __builtin_cpu_is("intel") != 0;
#else
    return 0;
#endif
}

/* Prefetches into the nearest cache, which is a tenth faster on AMD's CPUs. On Intel's only the next one was
   measured. */
ALWAYS void prefetch(const char *from, int64_t bytes) {
    if (is_intel())
        for (const char *line = from; line < from + bytes; line += LINE)
            __builtin_prefetch(line, 0, 2);
    else
        for (const char *line = from; line < from + bytes; line += LINE)
            __builtin_prefetch(line, 0, 3);
}

/* Adds the products of some rows and a block to all 64 sums of each row. */
ALWAYS void add_floats(const float *a, const float *block, float *sums, int rows) {
    for (int64_t column = 0; column < PANEL; column += COLUMNS(rows) * LANES)
        add_products(a, INPUTS, block + column, PANEL, sums + column, PANEL, 1, rows, COLUMNS(rows));
}

#if LANES == 8
/* The same of a block of bfloat16, as it is in memory. Even inputs come first and then odd ones: then registers hold the
   sums of all columns of one row, which reads its block in order. Meanwhile a block's bytes from `next` on are
   prefetched, a little with each input. */
ALWAYS void add_halves(const float *a, const bf16 *block, float *sums, const char *next, int rows) {
    const int lines = rows == 1 ? 2 : 1, bytes = INPUTS * lines * LINE;
#pragma GCC unroll 4
    for (int column = 0, fetched = 0; column < PANEL; column += COLUMNS(rows) * LANES, fetched += bytes)
        add_block_products(BFLOAT16, a, INPUTS, (const float *)block + column, PANEL, sums + column, PANEL, rows,
                           COLUMNS(rows), next + fetched, fetched < block_bytes(BFLOAT16) ? lines : 0);
}

/* The same of up to HALVES_AT_ONCE rows. */
static NEVER void add_few_halves(const float *a, const bf16 *block, float *sums, int64_t count, const char *next) {
    switch (count) {
    case 1: add_halves(a, block, sums, next, 1); break;
    case 2: add_halves(a, block, sums, next, 2); break;
    case 3: add_halves(a, block, sums, next, 3); break;
    case 4: add_halves(a, block, sums, next, 4); break;
    case 5: add_halves(a, block, sums, next, 5); break;
    default: add_halves(a, block, sums, next, HALVES_AT_ONCE); break;
    }
}
#else
/* The same of a block of bfloat16, as it is in memory. */
ALWAYS void add_halves(const float *a, const bf16 *block, float *sums, int rows) {
    for (int64_t column = 0; column < PANEL; column += HALVES_COLUMNS * LANES) {
        const bf16 *pairs = block + 2 * column;
        Floats even[HALVES_AT_ONCE][HALVES_COLUMNS], odd[HALVES_AT_ONCE][HALVES_COLUMNS];
#pragma GCC unroll 3
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
            for (int i = 0; i < HALVES_COLUMNS; i++)
                even[row][i] = odd[row][i] = everywhere(0.0f);
#pragma GCC unroll 2
        for (int input = 0; input < INPUTS / 2; input++, pairs += 2 * PANEL)
#pragma GCC unroll 4
            for (int i = 0; i < HALVES_COLUMNS; i++) {
                Floats first = widen_even(pairs + 2 * i * LANES), second = widen_odd(pairs + 2 * i * LANES);
#pragma GCC unroll 3
                for (int row = 0; row < rows; row++) {
                    const float *inputs = a + row * INPUTS + input;
                    even[row][i] = multiply_add(everywhere(inputs[0]), first, even[row][i]);
                    odd[row][i] = multiply_add(everywhere(inputs[INPUTS / 2]), second, odd[row][i]);
                }
            }
#pragma GCC unroll 3
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
            for (int i = 0; i < HALVES_COLUMNS; i++) {
                float *to = sums + row * PANEL + column + i * LANES;
                store(to, load(to) + (even[row][i] + odd[row][i]));
            }
    }
}

/* Adds the products of a few rows and a block of bfloat16. First a block's bytes from `next` on are prefetched, unless
   it is NULL. */
static NEVER void add_few_halves(const float *a, const bf16 *block, float *sums, int64_t count, const char *next) {
    if (next)
        prefetch(next, block_bytes(BFLOAT16));
    for (int64_t rows; count > 0; count -= rows, a += rows * INPUTS, sums += rows * PANEL) {
        rows = count < HALVES_AT_ONCE ? count : HALVES_AT_ONCE;
        if (rows == HALVES_AT_ONCE)
            add_halves(a, block, sums, HALVES_AT_ONCE);
        else if (rows == 2)
            add_halves(a, block, sums, 2);
        else
            add_halves(a, block, sums, 1);
    }
}
#endif

/* Adds the products of `count` rows and a block in float32, of up to `most` rows at once. Meanwhile `bytes` from `next`
   on are prefetched. */
ALWAYS void add_groups(const float *a, const float *block, float *sums, int64_t count, int most, const char *next,
                       int64_t bytes) {
    int64_t groups = (count + most - 1) / most, each = padded((bytes + groups - 1) / groups, LINE);
    for (int64_t rows; count > 0; count -= rows, a += rows * INPUTS, sums += rows * PANEL, next += each) {
        prefetch(next, each);
        /* The last rows are divided evenly: very few at once take almost as long as more. */
        rows = count <= most ? count : count < 2 * most && count < most + 4 ? (count + 1) / 2 : most;
        switch (rows) {
        case 1: add_floats(a, block, sums, 1); break;
        case 2: add_floats(a, block, sums, 2); break;
        case 3: add_floats(a, block, sums, 3); break;
        case 4: add_floats(a, block, sums, 4); break;
        case 5: add_floats(a, block, sums, 5); break;
        default: add_floats(a, block, sums, GROUP); break;
        }
    }
}

static NEVER void add_block(const float *a, const float *block, float *sums, int64_t count, const char *next,
                            int64_t bytes) {
    add_groups(a, block, sums, count, GROUP, next, bytes);
}

/* The same in float32, prefetching meanwhile. */
static NEVER void add_few_floats(const float *a, const float *block, float *sums, int64_t count, const char *next,
                                 int64_t bytes) {
    add_groups(a, block, sums, count, FLOATS_AT_ONCE, next, bytes);
}

static NEVER void widen_block(const bf16 *block, float *to) { widen_panel(block, 1, to); }

/* How many rows use a block as it is. On Intel's CPUs almost none, as these read a block from memory a third slower than
   one that was prefetched while rows used the one before. */
ALWAYS int64_t few_rows(Type type) {
    if (is_intel())
        return type == BFLOAT16 ? 0 : FEW_PREFETCHED;
    return type == BFLOAT16 ? FEW_HALVES : FEW_FLOATS;
}

/* What is prefetched while a few rows use a block of bfloat16, or NULL. */
ALWAYS const char *halves_ahead(const char *block, int64_t count) {
#if LANES == 8
    return block + block_bytes(BFLOAT16) / (count == 1 ? 2 : 1);
#else
    return count <= FEWEST ? NULL : block + AHEAD;
#endif
}

/* Multiplies the rows in `tools` by one panel that is not packed. */
ALWAYS void multiply_panel(Type type, const Tools *tools, const void *panel, int64_t count, int64_t blocks) {
    const float *a = tools->rows;
    const char *from = panel;
    int64_t bytes = block_bytes(type), few = few_rows(type);
    int64_t asked = count <= FEWEST ? 0 : bytes;
    memset(tools->sums, 0, count * PANEL * sizeof(float));
    for (int64_t block = 0; block < blocks; block++, a += count * INPUTS, from += bytes) {
        if (count <= few) {
            if (type == BFLOAT16)
                add_few_halves(a, (const bf16 *)from, tools->sums, count, halves_ahead(from, count));
            else
                add_few_floats(a, (const float *)from, tools->sums, count, from + AHEAD, asked);
            continue;
        }
        if (type == BFLOAT16)
            widen_block((const bf16 *)from, tools->piece);
        else
            memcpy(tools->piece, from, bytes);
        add_block(a, tools->piece, tools->sums, count, from + bytes, bytes);
    }
}

/* Multiplies the rows in `tools` by one that is packed. */
ALWAYS void multiply_codes(Codes codes, const Tools *tools, const Panel *panel, int64_t in, int64_t count) {
    const float *a = tools->rows;
    Unpacking unpacking;
    begin_unpacking(panel, in, &unpacking);
    memset(tools->sums, 0, count * PANEL * sizeof(float));
#if LANES >= 8
    const int64_t bytes = INPUTS * PANEL * code_bits(codes) / 8;
    Spread group; /* the first block reads it */
    for (int64_t first = 0; first < in; first += INPUTS, a += count * INPUTS) {
        if (count == 1 && add_row(codes, &unpacking, &group, a, tools->sums))
            continue;
        unpack_block(codes, &unpacking, &group, tools->piece);
        add_block(a, tools->piece, tools->sums, count, (const char *)unpacking.words, bytes);
    }
#else
    bf16 block[INPUTS * PANEL];
    make_values(codes, &unpacking.values);
    for (int64_t first = 0; first < in; first += INPUTS, a += count * INPUTS) {
        for (int64_t pair = 0; pair < INPUTS / 2; pair++, pass(codes, &unpacking, 1)) {
            read_next(&unpacking);
            unpack_any_pair(codes, &unpacking, block + pair * 2 * PANEL);
        }
        if (count <= FEW_HALVES) {
            add_few_halves(a, block, tools->sums, count, NULL);
            continue;
        }
        widen_block(block, tools->piece);
        add_block(a, tools->piece, tools->sums, count, NULL, 0);
    }
#endif
}

static NEVER void multiply_packed(const Tools *tools, const Panel *panel, int64_t in, int64_t count) {
    switch ((Codes)panel->packing->codes) {
    case INT4: multiply_codes(INT4, tools, panel, in, count); break;
    case INT8: multiply_codes(INT8, tools, panel, in, count); break;
    case FP4: multiply_codes(FP4, tools, panel, in, count); break;
    default: multiply_codes(FP8, tools, panel, in, count); break;
    }
}
