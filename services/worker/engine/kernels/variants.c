/* Finds the variants that this CPU supports. */
#define _GNU_SOURCE
#include "variants.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#endif

enum { PLAIN, AVX2, AVX512, LEVELS };
static const char *const level_names[LEVELS] = {"plain", "avx2", "avx512"};

/* The variants that one level of vector instructions supports. */
typedef struct {
    int is_there;
    const Operations *operations;
    Variant portable, emulated;
} Level;

static Level levels[LEVELS];

#ifdef __x86_64__
static Variant amx, avx512_bf16[2]; /* by dot products, and by fused multiply-adds */

static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int has_avx512_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

static int has_amx(void) {
    unsigned eax, ebx, ecx, edx;
    if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return 0;
    return (edx >> 22 & 1) && (edx >> 24 & 1); /* AMX-BF16, AMX-TILE */
}

/* Whether products of `avx512_bf16` are made by fused multiply-adds. VDPBF16PS takes as long as four of them on Intel's
   CPUs, and as long as one on others. */
static int is_by_fma(const char *level) {
    return __builtin_cpu_supports("avx512vbmi") && strcmp(level, "dots") != 0 &&
           (strcmp(level, "fma") == 0 || __builtin_cpu_is("intel"));
}

/* Linux saves the AMX tile state only for processes that ask for it. All threads of the process then have it. */
static const char *ask_for_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    static char refused[120];
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0)
        return NULL;
    snprintf(refused, sizeof refused, "Linux refuses the state of AMX tiles to this process: %s", strerror(errno));
    return refused;
}
#endif

static void find_all(void) {
    if (levels[PLAIN].is_there)
        return;
    levels[PLAIN].operations = portable_plain;
#ifdef __x86_64__
    levels[AVX2].operations = portable_avx2;
    levels[AVX512].operations = portable_avx512;
    levels[AVX2].is_there = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    levels[AVX512].is_there = has_avx512();
    /* float32 has no AMX or BF16 instructions: it uses the portable operations, flushing denormals with `amx`. */
    amx = (Variant){"amx", {amx_operations, portable_avx512[FLOAT32]}, 1};
    for (int by_fma = 0; by_fma < 2; by_fma++)
        avx512_bf16[by_fma] =
            (Variant){"avx512_bf16", {avx512_bf16_operations(by_fma), portable_avx512[FLOAT32]}, 0};
#endif
    for (int level = 0; level < LEVELS; level++) {
        const Operations *operations = levels[level].operations;
        if (!operations)
            continue;
        levels[level].portable = (Variant){"portable", {operations[BFLOAT16], operations[FLOAT32]}, 0};
        levels[level].emulated = (Variant){"amx-emulated", {operations[BFLOAT16], operations[FLOAT32]}, 1};
    }
    levels[PLAIN].is_there = 1;
}

const char *const *find_levels(void) {
    static const char *found[LEVELS + 1];
    int count = 0;
    find_all();
    for (int level = LEVELS - 1; level >= 0; level--)
        if (levels[level].is_there)
            found[count++] = level_names[level];
    found[count] = NULL;
    return found;
}

static const Level *find_level(const char *name, const char **reason) {
    for (int level = 0; level < LEVELS; level++)
        if (levels[level].is_there && strcmp(level_names[level], name) == 0)
            return &levels[level];
    *reason = "this CPU has no vector instructions of that name";
    return NULL;
}

const Variant *find_variant(const char *name, const char *level, const char **reason) {
    find_all();
    *reason = NULL;
#ifdef __x86_64__
    if (strcmp(name, "amx") == 0) {
        *reason = has_amx() ? ask_for_tiles() : "this CPU has no AMX-BF16";
        return *reason ? NULL : &amx;
    }
    if (strcmp(name, "avx512_bf16") == 0) {
        *reason = has_avx512_bf16() ? NULL : "this CPU has no AVX512-BF16";
        return *reason ? NULL : &avx512_bf16[is_by_fma(level)];
    }
    const int is_emulated = strcmp(name, "amx-emulated") == 0;
#else
    const int is_emulated = 0;
#endif
    if (!is_emulated && strcmp(name, "portable") != 0) {
        *reason = "these kernels have no variant of that name on this kind of CPU";
        return NULL;
    }
    const Level *found = find_level(level, reason);
    return !found ? NULL : is_emulated ? &found->emulated : &found->portable;
}
