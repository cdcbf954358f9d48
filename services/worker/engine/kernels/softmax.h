/* Turns a tile's scores of one span into weights. Include this after elementwise.h. */
#pragma once

#define SPAN 128
#define TILE 16 /* queries computed together */

/* Updates `largest`: for each of `count` queries, the larger of the old value and its scores in this span. The first
   `hidden` scores, and up to 16 behind the last position that a query sees, become minus infinity. */
ALWAYS void find_largest(float *scores, const int64_t *hidden, const int64_t *seen, int64_t count, float *largest) {
    float lanes[TILE][WIDE], queries[WIDE][TILE];
    for (int64_t row = 0; row < TILE; row++, scores += SPAN) {
        Wide most = wide_everywhere(-__builtin_inff());
        for (int64_t i = row < count ? seen[row] : 0; i % WIDE; i++)
            scores[i] = -__builtin_inff();
        for (int64_t i = 0; row < count && i < hidden[row]; i++)
            scores[i] = -__builtin_inff();
        for (int64_t i = 0; row < count && i < seen[row]; i += WIDE)
            most = wide_larger(wide_load(FLOAT32, scores + i), most);
        wide_store(FLOAT32, lanes[row], most);
    }
    transpose((const int32_t *)lanes, WIDE, (int32_t *)queries, TILE);
    Wide most = wide_load(FLOAT32, largest);
    for (int lane = 0; lane < WIDE; lane++)
        most = wide_larger(wide_load(FLOAT32, queries[lane]), most);
    wide_store(FLOAT32, largest, most);
}

/* The factors by which sums relative to the scores `before` shrink to be relative to the scores `after`. */
ALWAYS void find_fades(const float *before, const float *after, float scale, float *fades) {
    Wide less = wide_load(FLOAT32, before);
    FOR_EACH_VECTOR less.v[v] = (less.v[v] - load(after + v * LANES)) * everywhere(scale * LOG2_E);
    wide_store(FLOAT32, fades, wide_power_of_two(FLOAT32, less));
    for (int i = 0; i < TILE; i++)
        if (before[i] == after[i])
            fades[i] = 1.0f;
}

/* Multiplies scores of `count` positions by `scale` and bends them towards `cap`: cap * tanh(scale * score / cap). */
ALWAYS void bend(Type type, float *scores, int64_t count, float scale, float cap) {
    for (int64_t i = 0; i < count; i += WIDE) {
        Wide x = wide_multiply(wide_load(FLOAT32, scores + i), wide_everywhere(scale / cap)), power;
        FOR_EACH_VECTOR power.v[v] = magnitude(x.v[v]) * everywhere(-2.0f * LOG2_E);
        power = wide_power_of_two(type, power);
        FOR_EACH_VECTOR {
            Floats one = everywhere(1.0f), tangent = (one - power.v[v]) / (one + power.v[v]) * everywhere(cap);
            x.v[v] = where_negative(x.v[v], -tangent, tangent);
        }
        wide_store(FLOAT32, scores + i, x);
    }
}

/* Turns a query's scores of `seen` positions, without the first `hidden`, into weights, relative to its largest score
   so far. */
ALWAYS void weigh(Type type, const float *scores, int64_t hidden, int64_t seen, float largest, float scale,
                  void *weights) {
    int64_t item = type == BFLOAT16 ? sizeof(bf16) : sizeof(float);
    Wide unit = wide_everywhere(scale * LOG2_E), top = wide_everywhere(-(largest * (scale * LOG2_E)));
    for (int64_t i = 0; i < SPAN; i += 2 * WIDE) {
        Wide first = wide_everywhere(0.0f), second = first;
        if (i < seen) {
            first = wide_power_of_two(type, wide_multiply_add(wide_load(FLOAT32, scores + i), unit, top));
            second = wide_power_of_two(type, wide_multiply_add(wide_load(FLOAT32, scores + i + WIDE), unit, top));
        }
        wide_store_two(type, (void *)address(type, weights, i), first, second);
    }
    /* Positions up to the next multiple of 32 that the query does not see have weight zero. Mostly there are none. */
    int64_t unseen = padded(seen, 2 * WIDE) - seen;
    if (unseen)
        memset((void *)address(type, weights, seen), 0, unseen * item);
    if (hidden)
        memset(weights, 0, hidden * item);
}
