/* Experts: rows are gathered by expert, so that each matrix is read once for all rows that use it. */
#include "choose.h"

#include <string.h>

#include "threads.h"
#include "workspace.h"

#define ROWS 512 /* that are gathered at a time */

/* The buffers for some rows. An assignment is a row with one of the experts that it uses; `place` says at which row of
   `made` its result is, or -1 if its expert is not here. Assignments of one expert follow each other. */
typedef struct {
    float *wide, *logits, *weights, *wanted, *clamped, *opened;
    int64_t *chosen, *place, *row_at, *begin;
    void *gathered, *gate_up, *gated, *made;
} Buffers;

typedef struct {
    Type type;
    const Experts *experts;
    const char *rows, *residual;
    char *out;
    const Buffers *buffers;
} ExpertsJob;

static int64_t size_of(Type type) { return type == BFLOAT16 ? sizeof(bf16) : sizeof(float); }

static inline float number_at(Type type, const void *from, int64_t i) {
    if (type == FLOAT32)
        return ((const float *)from)[i];
    uint32_t bits = (uint32_t)((const bf16 *)from)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void put_number(Type type, void *to, int64_t i, float value) {
    if (type == FLOAT32) {
        ((float *)to)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    ((bf16 *)to)[i] = (bf16)(value == value ? rounded : bits >> 16 | 0x40);
}

static void choose_share(void *context, Share rows) {
    const ExpertsJob *job = context;
    const Experts *experts = job->experts;
    const Buffers *of = job->buffers;
    for (int64_t row = rows.begin; row < rows.end; row++)
        choose(experts, of->logits + row * experts->count, of->chosen + row * experts->chosen,
               of->weights + row * experts->chosen, of->wanted + row * choosing_floats(experts));
}

static void widen_share(void *context, Share rows) {
    const ExpertsJob *job = context;
    int64_t width = job->experts->router.in;
    float *wide = job->buffers->wide;
    if (job->type == BFLOAT16)
        for (int64_t i = rows.begin * width; i < rows.end * width; i++)
            wide[i] = number_at(BFLOAT16, job->rows, i);
    else
        memcpy(wide + rows.begin * width, (const float *)job->rows + rows.begin * width,
               (rows.end - rows.begin) * width * sizeof(float));
}

/* Adds what the experts of a row made, one after the other. `type` is a constant. */
static inline __attribute__((always_inline)) void add_up(Type type, const ExpertsJob *job, int64_t row) {
    const Experts *experts = job->experts;
    const Buffers *of = job->buffers;
    int64_t width = experts->router.in, first = row * experts->chosen;
    float *sums = of->wide + row * width; /* the router has read them */
    memset(sums, 0, width * sizeof *sums);
    for (int64_t k = first; k < first + experts->chosen; k++) {
        if (of->place[k] < 0)
            continue;
        const char *made = (const char *)of->made + of->place[k] * width * size_of(type);
        float weight = of->weights[k];
        for (int64_t i = 0; i < width; i++)
            sums[i] += weight * number_at(type, made, i);
    }
    if (job->residual)
        for (int64_t i = 0; i < width; i++)
            sums[i] += number_at(type, job->residual, row * width + i);
    for (int64_t i = 0; i < width; i++)
        put_number(type, job->out, row * width + i, sums[i]);
}

static void add_share(void *context, Share rows) {
    const ExpertsJob *job = context;
    for (int64_t row = rows.begin; row < rows.end; row++)
        if (job->type == BFLOAT16)
            add_up(BFLOAT16, job, row);
        else
            add_up(FLOAT32, job, row);
}

/* Gives each assignment its place: first those of the first expert that is here, in the order of rows. */
static void assign(const Experts *experts, const Buffers *of, int64_t count) {
    int64_t assignments = count * experts->chosen;
    memset(of->begin, 0, (experts->held + 1) * sizeof *of->begin);
    for (int64_t i = 0; i < assignments; i++) {
        int64_t expert = of->chosen[i] - experts->first;
        if (expert >= 0 && expert < experts->held)
            of->begin[expert + 1]++;
    }
    for (int64_t expert = 0; expert < experts->held; expert++)
        of->begin[expert + 1] += of->begin[expert];
    for (int64_t i = 0; i < assignments; i++) {
        int64_t expert = of->chosen[i] - experts->first;
        of->place[i] = expert >= 0 && expert < experts->held ? of->begin[expert]++ : -1;
        if (of->place[i] >= 0)
            of->row_at[of->place[i]] = i / experts->chosen;
    }
    /* Each expert now begins where the one before it ends. */
    memmove(of->begin + 1, of->begin, experts->held * sizeof *of->begin);
    of->begin[0] = 0;
}

typedef struct {
    const ExpertsJob *job;
    int64_t width;
    int is_done;
} ClampedJob;

/* Lays gate and up out for SwiGLU in float32, or takes what it made. SwiGLU of alpha * gate and (up + 1) / alpha is
   gate * sigmoid(alpha * gate) * (up + 1). */
static void clamp_share(void *context, Share rows) {
    const ClampedJob *clamped = context;
    const ExpertsJob *job = clamped->job;
    float alpha = (float)job->experts->alpha, limit = (float)job->experts->limit, *wide = job->buffers->clamped;
    int64_t width = clamped->width;
    for (int64_t row = rows.begin; row < rows.end; row++)
        for (int64_t i = row * width, at = 2 * row * width; i < (row + 1) * width; i++, at++) {
            if (clamped->is_done) {
                put_number(job->type, job->buffers->gated, i, job->buffers->opened[i]);
                continue;
            }
            float gate = number_at(job->type, job->buffers->gate_up, at);
            float up = number_at(job->type, job->buffers->gate_up, at + width);
            wide[at] = alpha * (gate > limit ? limit : gate);
            wide[at + width] = ((up > limit ? limit : up < -limit ? -limit : up) + 1.0f) / alpha;
        }
}

/* The SwiGLU of gpt-oss, whose gate has an upper limit, and up one on both sides. */
static void clamped_times(const Kernels *kernels, const ExpertsJob *job, int64_t width, int64_t rows) {
    ClampedJob clamped = {job, width, 0};
    divide(kernels, rows, clamp_share, &clamped);
    kernels_silu_times(kernels, FLOAT32, job->buffers->clamped, job->buffers->opened, rows, width);
    clamped.is_done = 1;
    divide(kernels, rows, clamp_share, &clamped);
}

static void run_expert(const Kernels *kernels, const ExpertsJob *job, int64_t number) {
    const Buffers *of = job->buffers;
    const Expert *expert = &job->experts->experts[number];
    int64_t begin = of->begin[number], rows = of->begin[number + 1] - begin;
    int64_t row_bytes = expert->gate_up.in * size_of(job->type);
    if (!rows)
        return;
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)of->gathered + i * row_bytes, job->rows + of->row_at[begin + i] * row_bytes, row_bytes);
    kernels_multiply(kernels, job->type, &expert->gate_up, of->gathered, NULL, of->gate_up, rows);
    if (job->experts->limit)
        clamped_times(kernels, job, expert->down.in, rows);
    else if (job->experts->is_gelu)
        kernels_gelu_times(kernels, job->type, of->gate_up, of->gated, rows, expert->down.in);
    else
        kernels_silu_times(kernels, job->type, of->gate_up, of->gated, rows, expert->down.in);
    kernels_multiply(kernels, job->type, &expert->down, of->gated, NULL, (char *)of->made + begin * row_bytes, rows);
}

/* Takes the next `bytes` of the workspace, which are whole cache lines. */
static void *next(char **free, int64_t bytes) {
    void *taken = *free;
    *free += (bytes + 63) / 64 * 64;
    return taken;
}

/* Divides the memory at `from` for `rows` rows, and returns its end. */
static char *lay_buffers(const Experts *experts, Type type, int64_t rows, char *from, Buffers *of) {
    int64_t hidden = experts->router.in, assignments = rows * experts->chosen, size = size_of(type);
    int64_t features = experts->held ? experts->experts[0].down.in : 0;
    of->wide = next(&from, rows * hidden * sizeof(float));
    of->logits = next(&from, rows * experts->count * sizeof(float));
    of->weights = next(&from, assignments * sizeof(float));
    of->wanted = next(&from, rows * choosing_floats(experts) * sizeof(float));
    of->chosen = next(&from, assignments * sizeof(int64_t));
    of->place = next(&from, assignments * sizeof(int64_t));
    of->row_at = next(&from, assignments * sizeof(int64_t));
    of->begin = next(&from, (experts->held + 1) * sizeof(int64_t));
    of->gathered = next(&from, rows * hidden * size);
    of->gate_up = next(&from, rows * 2 * features * size);
    of->gated = next(&from, rows * features * size);
    of->made = next(&from, assignments * hidden * size);
    if (experts->limit) {
        of->clamped = next(&from, rows * 2 * features * sizeof(float));
        of->opened = next(&from, rows * features * sizeof(float));
    }
    return from;
}

void kernels_run_experts(const Kernels *kernels, Type type, const Experts *experts, const void *rows,
                         const void *residual, void *out, int64_t count) {
    Buffers of;
    int64_t most = count < ROWS ? count : ROWS, row_bytes = experts->router.in * size_of(type);
    int64_t bytes = (int64_t)(intptr_t)lay_buffers(experts, type, most, NULL, &of);
    lay_buffers(experts, type, most, workspace_for(EXPERTS, bytes), &of);
    for (int64_t first = 0; first < count; first += ROWS) {
        int64_t part = count - first < ROWS ? count - first : ROWS, at = first * row_bytes;
        ExpertsJob job = {type, experts, (const char *)rows + at, residual ? (const char *)residual + at : NULL,
                    (char *)out + at, &of};
        divide(kernels, part, widen_share, &job);
        kernels_multiply(kernels, FLOAT32, &experts->router, of.wide, NULL, of.logits, part);
        divide(kernels, part, choose_share, &job);
        assign(experts, &of, part);
        for (int64_t expert = 0; expert < experts->held; expert++)
            run_expert(kernels, &job, expert);
        divide(kernels, part, add_share, &job);
    }
}
