/* The operations on all threads of the kernels, up to a whole layer in one call. */
#include <stddef.h>

#include "threads.h"

static int64_t size_of(Type type) { return type == BFLOAT16 ? sizeof(bf16) : sizeof(float); }

typedef struct {
    const Operations *operations;
    int64_t size;
    const Linear *linear;
    const void *in, *weight, *bias, *residual;
    void *out;
    int64_t rows, width;
    float epsilon, offset;
} RowsJob;

static void multiply_share(void *context, Share panels) {
    const RowsJob *job = context;
    job->operations->multiply(job->linear, job->in, job->residual, job->out, job->rows, panels);
}

void kernels_multiply(const Kernels *kernels, Type type, const Linear *linear, const void *rows, const void *residual,
                      void *out, int64_t count) {
    RowsJob job = {.operations = &kernels->variant->of[type], .linear = linear, .in = rows, .residual = residual,
                   .out = out, .rows = count};
    int64_t panels = 0;
    for (int64_t part = 0; part < linear->parts; part++)
        panels += (linear->part[part].out + PANEL - 1) / PANEL;
    if (count > 0)
        divide(kernels, panels, multiply_share, &job);
}

static void norm_share(void *context, Share rows) {
    const RowsJob *job = context;
    int64_t first = rows.begin * job->width * job->size;
    job->operations->rms_norm((const char *)job->in + first, job->weight, (char *)job->out + first,
                              rows.end - rows.begin, job->width, job->epsilon, job->offset);
}

void kernels_rms_norm(const Kernels *kernels, Type type, const void *in, const void *weight, void *out, int64_t rows,
                      int64_t size, float epsilon, float offset) {
    RowsJob job = {.operations = &kernels->variant->of[type], .size = size_of(type), .in = in, .weight = weight,
                   .out = out, .width = size, .epsilon = epsilon, .offset = offset};
    divide(kernels, rows, norm_share, &job);
}

static void layer_norm_share(void *context, Share rows) {
    const RowsJob *job = context;
    int64_t first = rows.begin * job->width * job->size;
    job->operations->layer_norm((const char *)job->in + first, job->weight, job->bias, (char *)job->out + first,
                                rows.end - rows.begin, job->width, job->epsilon);
}

void kernels_layer_norm(const Kernels *kernels, Type type, const void *in, const void *weight, const void *bias,
                        void *out, int64_t rows, int64_t size, float epsilon) {
    RowsJob job = {.operations = &kernels->variant->of[type], .size = size_of(type), .in = in, .weight = weight,
                   .bias = bias, .out = out, .width = size, .epsilon = epsilon};
    divide(kernels, rows, layer_norm_share, &job);
}

static void gelu_of_share(void *context, Share rows) {
    const RowsJob *job = context;
    int64_t first = rows.begin * job->width * job->size;
    job->operations->gelu((const char *)job->in + first, (char *)job->out + first, rows.end - rows.begin, job->width);
}

void kernels_gelu(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size) {
    RowsJob job = {.operations = &kernels->variant->of[type], .size = size_of(type), .in = in, .out = out,
                   .width = size};
    divide(kernels, rows, gelu_of_share, &job);
}

typedef struct {
    const Operations *operations;
    Likelihoods *rows;
} LikelihoodsJob;

static void likelihoods_share(void *context, Share rows) {
    const LikelihoodsJob *job = context;
    for (int64_t row = rows.begin; row < rows.end; row++)
        job->operations->likelihoods(&job->rows[row]);
}

void kernels_likelihoods(const Kernels *kernels, Type type, Likelihoods *rows, int64_t count) {
    LikelihoodsJob job = {&kernels->variant->of[type], rows};
    divide(kernels, count, likelihoods_share, &job);
}

static void silu_share(void *context, Share rows) {
    const RowsJob *job = context;
    int64_t first = rows.begin * job->width * job->size;
    job->operations->silu_times((const char *)job->in + 2 * first, (char *)job->out + first, rows.end - rows.begin,
                                job->width);
}

void kernels_silu_times(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size) {
    RowsJob job = {.operations = &kernels->variant->of[type], .size = size_of(type), .in = in, .out = out,
                   .width = size};
    divide(kernels, rows, silu_share, &job);
}

static void gelu_share(void *context, Share rows) {
    const RowsJob *job = context;
    int64_t first = rows.begin * job->width * job->size;
    job->operations->gelu_times((const char *)job->in + 2 * first, (char *)job->out + first, rows.end - rows.begin,
                                job->width);
}

void kernels_gelu_times(const Kernels *kernels, Type type, const void *in, void *out, int64_t rows, int64_t size) {
    RowsJob job = {.operations = &kernels->variant->of[type], .size = size_of(type), .in = in, .out = out,
                   .width = size};
    divide(kernels, rows, gelu_share, &job);
}

typedef struct {
    const Operations *operations;
    int64_t size, stride;
    void *rows, *out;
    const Run *runs;
    const Attention *attention;
} AttendJob;

/* Items are the KV heads of all runs, run by run. */
static void attend_share(void *context, Share items) {
    const AttendJob *job = context;
    const Cache *cache = &job->attention->cache;
    int64_t width = cache->kv_heads * cache->group * cache->head_dim, first_row = 0, first = 0;
    for (const Run *run = job->runs; first < items.end; first_row += run++->rows, first += cache->kv_heads) {
        Share heads = {items.begin > first ? items.begin - first : 0,
                       items.end < first + cache->kv_heads ? items.end - first : cache->kv_heads};
        if (heads.begin < heads.end)
            job->operations->attend((char *)job->rows + first_row * job->stride * job->size, job->stride,
                                    (char *)job->out + first_row * width * job->size, run, job->attention, heads);
    }
}

void kernels_attend(const Kernels *kernels, Type type, void *rows, int64_t stride, void *out, const Run *runs,
                    int64_t count, const Attention *attention) {
    AttendJob job = {&kernels->variant->of[type], size_of(type), stride, rows, out, runs, attention};
    divide(kernels, count * attention->cache.kv_heads, attend_share, &job);
}

/* A layer of a step, of which rows are computed in parts. */
typedef struct {
    const Kernels *kernels;
    Type type;
    const Layer *layer;
    const Adapters *adapters;
    float epsilon;
} LayerJob;

/* Multiplies the step's rows from `first` on, and adds what their adapters add. */
static void multiply_map(const LayerJob *job, Map map, const void *in, const void *residual, void *out, int64_t first,
                         int64_t rows) {
    const Layer *layer = job->layer;
    const Linear *maps[MAPS] = {&layer->qkv, &layer->output, &layer->gate_up, &layer->down};
    kernels_multiply(job->kernels, job->type, maps[map], in, residual, out, rows);
    if (job->adapters->count)
        kernels_add_low_rank(job->kernels, job->type, job->adapters, layer->index, map, in, out, first, rows);
}

static void run_rows(const LayerJob *job, void *hidden, int64_t first, int64_t rows, const Run *runs, int64_t count) {
    const Kernels *kernels = job->kernels;
    const Layer *layer = job->layer;
    const Between *between = &layer->between;
    Type type = job->type;
    int64_t width = layer->qkv.in;
    kernels_rms_norm(kernels, type, hidden, layer->input_norm, between->normed, rows, width, job->epsilon, 0.0f);
    multiply_map(job, QKV, between->normed, NULL, between->projected, first, rows);
    kernels_attend(kernels, type, between->projected, layer->qkv.out, between->attended, runs, count,
                   &layer->attention);
    multiply_map(job, OUTPUT, between->attended, hidden, between->hidden, first, rows);
    kernels_rms_norm(kernels, type, between->hidden, layer->mlp_norm, between->normed, rows, width, job->epsilon,
                     0.0f);
    multiply_map(job, GATE_UP, between->normed, NULL, between->gate_up, first, rows);
    kernels_silu_times(kernels, type, between->gate_up, between->gated, rows, layer->down.in);
    multiply_map(job, DOWN, between->gated, between->hidden, hidden, first, rows);
}

/* Computes rows in parts of about equal size, so that the results between the steps of a layer stay in the cache. */
void kernels_run_layer(const Kernels *kernels, Type type, const Layer *layer, const Adapters *adapters, void *hidden,
                       int64_t rows, const Run *runs, int64_t count, float epsilon) {
    const LayerJob job = {kernels, type, layer, adapters, epsilon};
    int64_t row_bytes = layer->qkv.in * size_of(type);
    for (int64_t first = 0, part, taken; first < rows; first += part, runs += taken, count -= taken) {
        int64_t left = rows - first, parts = (left + LAYER_ROWS - 1) / LAYER_ROWS, even = (left + parts - 1) / parts;
        part = runs->rows;
        for (taken = 1; taken < count; part += runs[taken++].rows)
            if (part + runs[taken].rows / 2 > even || part + runs[taken].rows > LAYER_ROWS)
                break;
        run_rows(&job, (char *)hidden + first * row_bytes, first, part, runs, taken);
    }
}

int64_t panels_bytes(Type type, int64_t out, int64_t in) {
    return (out + PANEL - 1) / PANEL * PANEL * ((in + INPUTS - 1) / INPUTS * INPUTS) * size_of(type);
}

void kernels_lay_out(const Kernels *kernels, Type type, const void *matrix, int64_t out, int64_t in, void *panels) {
    kernels->variant->of[type].lay_out(matrix, out, in, panels);
}
