/* Attention over one request's cache. Positions are processed in spans that begin at fixed multiples. Each span is
   taken relative to the largest score so far (online softmax, Milakov and Gimelshein), so that a row has the same
   result alone and with others. Include this after elementwise.h and one of product_*.h. */
#pragma once

#include "power.h"
#include "softmax.h"
#include "workspace.h"

#define TURNS 4 /* in which a tile is scored, weighed and gathered */

/* A query: one row of the run, and one of the heads that share keys and values. */
typedef struct {
    int64_t row, head;
} Query;

/* The state of a tile of queries after some spans. For each query it has the largest score and the weighted sum of
   values. Each value has a one behind it, so that the weights are summed too. */
typedef struct {
    float *largest, *gathered;
} State;

/* The memory that one KV head of a run uses. While the scores of one tile become weights, the next tile is scored and
   the values of the previous one are gathered: hence two sets of scores and weights. */
typedef struct {
    const Run *run;
    const Attention *attention;
    const Cache *cache;
    int64_t head, queries, inputs, width; /* `inputs`: head_dim padded to 32; `width`: head_dim and 1, padded to 16 */
    int64_t *lengths, *starts; /* the positions that each query sees: up to the one, from the other on */
    Packed *packed_queries, *keys, *values, *packed_weights;
    float *states, *scores[2];
    void *weights[2], *unpacked; /* `unpacked`: keys or values of a span that are kept as fp8 */
} Work;

ALWAYS Query query_of(const Work *work, int64_t number) {
    if (number >= work->queries)
        number = work->queries - 1;
    int64_t row = number / work->cache->group;
    return (Query){row, work->head * work->cache->group + number % work->cache->group};
}

ALWAYS State state_of(const Work *work, int64_t tile) {
    float *first = work->states + tile * TILE * (1 + work->width);
    return (State){first, first + TILE};
}

/* The number of queries in tile number `tile`; the last tile may have fewer than TILE. */
ALWAYS int64_t count_queries(const Work *work, int64_t tile) {
    return work->queries - tile * TILE < TILE ? work->queries - tile * TILE : TILE;
}

ALWAYS void scale_by(float *numbers, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i += WIDE)
        wide_store(FLOAT32, numbers + i, wide_multiply(wide_load(FLOAT32, numbers + i), wide_everywhere(factor)));
}

/* How a tile's scores of a span become weights: for each query the positions of the span that it sees, and by what its
   state fades. */
typedef struct {
    const Work *work;
    int64_t tile, count, hidden[TILE], seen[TILE];
    float scale, fades[TILE];
} Weighing;

/* Prepares the scores of the span from `begin` on, and updates the largest scores. */
ALWAYS void begin_weighing(Type type, const Work *work, int64_t tile, int64_t begin, Weighing *weighing) {
    State state = state_of(work, tile);
    float scale = scale_of(work->attention), cap = (float)work->attention->cap, before[TILE];
    float *scores = work->scores[tile % 2];
    int64_t *hidden = weighing->hidden, *seen = weighing->seen;
    weighing->work = work, weighing->tile = tile, weighing->count = count_queries(work, tile);
    for (int64_t i = 0; i < weighing->count; i++) {
        int64_t left = work->lengths[tile * TILE + i] - begin, start = work->starts[tile * TILE + i] - begin;
        seen[i] = left < 0 ? 0 : left < SPAN ? left : SPAN;
        hidden[i] = start < 0 ? 0 : start;
        if (hidden[i] >= seen[i])
            hidden[i] = seen[i] = 0;
        if (cap)
            bend(type, scores + i * SPAN, seen[i], scale, cap);
    }
    weighing->scale = cap ? 1.0f : scale;
    memcpy(before, state.largest, sizeof before);
    find_largest(scores, hidden, seen, weighing->count, state.largest);
    find_fades(before, state.largest, weighing->scale, weighing->fades);
}

/* Turns the scores of queries `first` to `stop` - 1 into weights, and rescales their state. */
ALWAYS void weigh_queries(Type type, const Weighing *weighing, int64_t first, int64_t stop) {
    const Work *work = weighing->work;
    int64_t tile = weighing->tile;
    State state = state_of(work, tile);
    for (int64_t i = first; i < stop && i < weighing->count; i++) {
        if (weighing->fades[i] != 1.0f)
            scale_by(state.gathered + i * work->width, work->width, weighing->fades[i]);
        weigh(type, work->scores[tile % 2] + i * SPAN, weighing->hidden[i], weighing->seen[i], state.largest[i],
              weighing->scale, (void *)address(type, work->weights[tile % 2], i * SPAN));
    }
}

/* The number of positions of the span from `begin` to `stop` up to the last one that a tile sees: none behind it are
   computed, as their weights are zero. Later rows see later positions. */
ALWAYS int64_t count_seen(const Work *work, int64_t tile, int64_t begin, int64_t stop) {
    int64_t end = work->lengths[tile * TILE + count_queries(work, tile) - 1];
    return (end < stop ? end : stop) - begin;
}

/* Computes a tile's scores of up to 64 positions of a span from `first` on, of which it sees `count`. Their keys are
   packed. */
ALWAYS void score_tile(const Work *work, int64_t tile, int64_t first, int64_t count) {
    const Packed *queries = work->packed_queries + tile * TILE * work->inputs;
    int64_t width = count - first < PANEL ? padded(count - first, WIDE) : PANEL;
    if (width > 0)
        product(queries, work->inputs, work->keys + first * work->inputs, PANEL, work->scores[tile % 2] + first, SPAN,
                count_queries(work, tile), width, work->inputs / INPUTS, 1);
}

/* Adds columns `first` to `stop` - 1 of the values of these positions to a tile's state, each times its weight. */
ALWAYS void gather_tile(Type type, const Work *work, int64_t tile, int64_t positions, int64_t first, int64_t stop) {
    int64_t count = count_queries(work, tile);
    const Packed *weights = pack_weights(type, work->weights[tile % 2], count, SPAN, work->packed_weights);
    product(weights, SPAN, work->values + first * VALUE_STEP, work->width, state_of(work, tile).gathered + first,
            work->width, count, stop - first, padded(positions, INPUTS) / INPUTS, 0);
}

ALWAYS void begin_work(Type type, const Work *work, const void *rows, int64_t stride) {
    for (int64_t number = 0; number < padded(work->queries, TILE); number++) {
        Query query = query_of(work, number);
        const void *from = address(type, rows, query.row * stride + query.head * work->cache->head_dim);
        pack_row(type, from, work->cache->head_dim, work->packed_queries + number * work->inputs);
        work->lengths[number] = seen_by(work->run, query.row);
        work->starts[number] = first_seen(work->attention, work->run->begin + query.row);
    }
    for (int64_t tile = 0; tile * TILE < work->queries; tile++) {
        State state = state_of(work, tile);
        memset(state.largest, 0, TILE * (1 + work->width) * sizeof(float));
        for (int i = 0; i < TILE; i++)
            state.largest[i] = -__builtin_inff();
    }
}

ALWAYS void end_work(Type type, const Work *work, void *out) {
    int64_t size = work->cache->head_dim, heads = work->cache->kv_heads * work->cache->group;
    float scale = work->attention->cap ? 1.0f : scale_of(work->attention);
    for (int64_t number = 0; number < work->queries; number++) {
        Query query = query_of(work, number);
        State state = state_of(work, number / TILE);
        float *gathered = state.gathered + number % TILE * work->width;
        float top = state.largest[number % TILE] * scale;
        scale_by(gathered, work->width, share_of(work->attention, query.head, gathered[size], top));
        for (int64_t i = 0; i < size; i += WIDE)
            wide_store_some(type, (void *)address(type, out, (query.row * heads + query.head) * size + i),
                            wide_load(FLOAT32, gathered + i), size - i);
    }
}

ALWAYS Work make_work(const Run *run, const Attention *attention, int64_t head) {
    const Cache *cache = &attention->cache;
    int64_t queries = run->rows * cache->group, tiles = padded(queries, TILE) / TILE;
    Work work = {.run = run, .attention = attention, .cache = cache, .head = head, .queries = queries,
                 .inputs = padded(cache->head_dim, INPUTS), .width = padded(cache->head_dim + 1, WIDE)};
    int64_t of_states = tiles * TILE * (1 + work.width), of_tile = TILE * SPAN;
    int64_t of_queries = tiles * TILE * work.inputs, of_span = SPAN * padded(work.width, INPUTS);
    int64_t of_unpacked = cache->fp8 ? SPAN * cache->head_dim : 0;
    float *memory = workspace((of_states + 4 * of_tile + of_unpacked) * sizeof(float) +
                              2 * tiles * TILE * sizeof(int64_t) +
                              (of_tile + of_queries + 2 * of_span) * sizeof(Packed));
    work.states = memory;
    for (int i = 0; i < 2; i++) {
        work.scores[i] = memory + of_states + i * of_tile;
        work.weights[i] = memory + of_states + (2 + i) * of_tile;
    }
    work.lengths = (int64_t *)(memory + of_states + 4 * of_tile);
    work.starts = work.lengths + tiles * TILE;
    work.packed_weights = (Packed *)(work.starts + tiles * TILE);
    work.packed_queries = work.packed_weights + of_tile;
    work.keys = work.packed_queries + of_queries;
    work.values = work.keys + of_span;
    work.unpacked = work.values + of_span;
    return work;
}

/* Prefetches some memory. */
ALWAYS void ask_for(const char *from, int64_t bytes) {
    for (const char *line = from; line < from + bytes; line += 64)
        __builtin_prefetch(line, 0, 2);
}

/* Returns `count` keys or values that are kept at `from`; those in fp8 are unpacked until the next call. */
ALWAYS const void *numbers_at(Type type, const Work *work, const char *from, int64_t count) {
    if (!work->cache->fp8)
        return from;
    unpack_fp8(type, (const uint8_t *)from, count, work->unpacked);
    return work->unpacked;
}

ALWAYS void pack_span(Type type, const Work *work, int64_t begin, int64_t stop) {
    const Cache *cache = work->cache;
    int64_t size = cache->head_dim, place = (work->head * cache->slots + work->run->slot + begin) * size;
    int64_t item = cache->fp8 ? 1 : type == BFLOAT16 ? sizeof(bf16) : sizeof(float);
    const char *values = (const char *)cache->values + place * item;
    ask_for(values, (stop - begin) * size * item);
    const void *keys = numbers_at(type, work, (const char *)cache->keys + place * item, (stop - begin) * size);
    for (int64_t first = 0; first < stop - begin; first += PANEL) {
        int64_t count = stop - begin - first < PANEL ? stop - begin - first : PANEL;
        pack_keys(type, address(type, keys, first * size), count, size, work->keys + first * work->inputs);
    }
    /* Prefetch this head's next span, or the first span of the next head. */
    int64_t end = work->run->begin + work->run->rows, left = end > stop ? end - stop : end;
    int64_t next = end > stop ? place + SPAN * size : place + (cache->slots - begin) * size;
    if (end > stop || work->head + 1 < cache->kv_heads)
        ask_for((const char *)cache->keys + next * item, (left < SPAN ? left : SPAN) * size * item);
    pack_values(type, numbers_at(type, work, values, (stop - begin) * size), stop - begin, size, work->width,
                work->values);
}

/* Scores `tile`, turns the scores of the one before into weights, and gathers the values of the one before that. They
   take turns, as the CPU can then weigh while it multiplies: it looks ahead by some hundred instructions only. */
ALWAYS void attend_tiles(Type type, const Work *work, int64_t tile, int64_t first, int64_t tiles, int64_t begin,
                         int64_t stop) {
    int is_weighed = tile > first && tile <= tiles;
    int64_t middle = work->width < PANEL ? work->width : PANEL;
    Weighing weighing;
    if (is_weighed)
        begin_weighing(type, work, tile - 1, begin, &weighing);
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn < 2 && tile < tiles)
            score_tile(work, tile, turn * PANEL, count_seen(work, tile, begin, stop));
        if (turn >= 2 && tile > first + 1)
            gather_tile(type, work, tile - 2, count_seen(work, tile - 2, begin, stop), turn == 2 ? 0 : middle,
                        turn == 2 ? middle : work->width);
        if (is_weighed)
            weigh_queries(type, &weighing, turn * TILE / TURNS, (turn + 1) * TILE / TURNS);
    }
}

ALWAYS void attend_head(Type type, const void *rows, int64_t stride, void *out, const Run *run,
                        const Attention *attention, int64_t head) {
    const Cache *cache = &attention->cache;
    Work work = make_work(run, attention, head);
    begin_work(type, &work, rows, stride);
    int64_t end = run->begin + run->rows, tiles = padded(work.queries, TILE) / TILE;
    /* The first row sees the earliest positions. */
    for (int64_t begin = work.starts[0] / SPAN * SPAN; begin < end; begin += SPAN) {
        int64_t stop = end - begin < SPAN ? end : begin + SPAN;
        pack_span(type, &work, begin, stop);
        /* Rows that see no position of this span are left out. */
        int64_t first = begin > run->begin && run->kind != WHOLE ? (begin - run->begin) * cache->group / TILE : 0;
        for (int64_t tile = first; tile < tiles + 2; tile++)
            attend_tiles(type, &work, tile, first, tiles, begin, stop);
    }
    end_work(type, &work, out);
}

ALWAYS void attend_as(Type type, void *rows, int64_t stride, void *out, const Run *run, const Attention *attention,
                      Share kv_heads) {
    rotate_and_store(type, rows, stride, run, attention, kv_heads);
    for (int64_t head = kv_heads.begin; head < kv_heads.end; head++)
        attend_head(type, rows, stride, out, run, attention, head);
}
