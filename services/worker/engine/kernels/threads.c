#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define MOST_THREADS 256
#define SPINS 20000 /* 50 us to 1 ms: at least as long as it takes to wake a thread */
#define PATIENCE 500 /* some 20 us: what a round may lose by a thread that is just waking */

/* Rounds to nearest and takes no traps; denormal numbers are flushed to zero only if the variant says so. Returns the
   previous state. */
static uint64_t begin_arithmetic(int flushes) {
#if defined(__x86_64__)
    uint64_t before = _mm_getcsr();
    _mm_setcsr(flushes ? 0x9fc0 : 0x1f80);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (void)flushes, before;
#else
    return (void)flushes, 0;
#endif
}

static void end_arithmetic(uint64_t before) {
#if defined(__x86_64__)
    _mm_setcsr((uint32_t)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}

static void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The pool does one round of work at a time. A round has `shares`: the first is the caller's, the others those of the
   first threads. Where one of these has not begun when the caller is done with its own, the caller does that share, too:
   on a busy machine a thread may wait long for a core. `left` counts the shares of threads that are not done yet. */
static struct {
    pthread_mutex_t caller, lock;
    pthread_cond_t begun;
    pid_t process; /* the process that started the threads */
    int threads;   /* the caller included */
    atomic_uint rounds[MOST_THREADS]; /* of each thread: how many had a share for it; they wrap */
    atomic_uint taken[MOST_THREADS];  /* of each thread: of how many its share was begun */
    atomic_int left;
    int shares, flushes;
    int64_t items;
    Job job;
    void *context;
} pool = {.caller = PTHREAD_MUTEX_INITIALIZER};

static void do_share(int number) {
    uint64_t before = begin_arithmetic(pool.flushes);
    pool.job(pool.context, (Share){pool.items * number / pool.shares, pool.items * (number + 1) / pool.shares});
    end_arithmetic(before);
}

static void wait_for_round_after(atomic_uint *rounds, unsigned known, int spins) {
    for (int i = 0; i < spins; i++, relax())
        if (atomic_load_explicit(rounds, memory_order_acquire) != known)
            return;
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(rounds) == known)
        pthread_cond_wait(&pool.begun, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* Does a thread's share of its round, and returns 1, unless another thread has begun it. */
static int take_share(int number, unsigned round) {
    unsigned before = round - 1;
    if (!atomic_compare_exchange_strong(&pool.taken[number], &before, round))
        return 0;
    do_share(number);
    atomic_fetch_sub_explicit(&pool.left, 1, memory_order_release);
    return 1;
}

/* A thread without a share in a round sleeps through it: nobody waits for it, and it does not see the round at all. One
   that came too late for its share sleeps, too: if it spun, it would take the core from the one who does its work. */
static void *serve(void *given) {
    int number = (int)(intptr_t)given;
    int in_time = 1;
    for (unsigned known = 0;;) {
        wait_for_round_after(&pool.rounds[number], known, in_time ? SPINS : 0);
        known = atomic_load_explicit(&pool.rounds[number], memory_order_acquire);
        in_time = take_share(number, known);
    }
    return NULL;
}

/* Starts threads until there are `wanted`, counting the caller; fewer if the system refuses. A forked process starts
   its own, as threads do not survive fork. Nor does what they waited for: it would wait for them. */
static void start_threads(int wanted) {
    if (pool.process != getpid()) {
        pthread_mutex_init(&pool.lock, NULL);
        pthread_cond_init(&pool.begun, NULL);
        pool.process = getpid();
        pool.threads = 1;
    }
    for (; pool.threads < wanted && pool.threads < MOST_THREADS; pool.threads++) {
        pthread_t thread;
        atomic_store(&pool.rounds[pool.threads], 0);
        atomic_store(&pool.taken[pool.threads], 0);
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)pool.threads))
            return;
        pthread_detach(thread);
    }
}

static void run_round(const Kernels *kernels, int64_t items, Job job, void *context) {
    start_threads(kernels->threads);
    pool.shares = kernels->threads < pool.threads ? kernels->threads : pool.threads;
    pool.flushes = kernels->variant->flushes;
    pool.items = items, pool.job = job, pool.context = context;
    atomic_store(&pool.left, pool.shares - 1);
    pthread_mutex_lock(&pool.lock);
    for (int number = 1; number < pool.shares; number++)
        atomic_fetch_add_explicit(&pool.rounds[number], 1, memory_order_release);
    pthread_cond_broadcast(&pool.begun);
    pthread_mutex_unlock(&pool.lock);
    do_share(0);
    for (int number = 1; number < pool.shares; number++) {
        unsigned round = atomic_load_explicit(&pool.rounds[number], memory_order_relaxed);
        for (int i = 0; i < PATIENCE && atomic_load(&pool.taken[number]) != round; i++)
            relax();
        take_share(number, round);
    }
    for (int64_t i = 0; atomic_load_explicit(&pool.left, memory_order_acquire); i++)
        if (i < SPINS)
            relax();
        else
            sched_yield();
}

void divide(const Kernels *kernels, int64_t items, Job job, void *context) {
    if (kernels->threads > 1 && items > 1 && pthread_mutex_trylock(&pool.caller) == 0) {
        run_round(kernels, items, job, context);
        pthread_mutex_unlock(&pool.caller);
        return;
    }
    uint64_t before = begin_arithmetic(kernels->variant->flushes);
    job(context, (Share){0, items});
    end_arithmetic(before);
}
