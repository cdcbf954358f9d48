#include "workspace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int64_t bytes;
    void *memory;
} Workspace;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void release(void *given) {
    Workspace *own = given;
    for (int i = 0; i < WORKSPACES; i++)
        free(own[i].memory);
    free(own);
}

static void create_key(void) {
    if (pthread_key_create(&key, release))
        abort();
}

static void *or_end(void *memory) {
    if (!memory) {
        fputs("kernels: no memory is left to work in\n", stderr);
        abort();
    }
    return memory;
}

void *workspace_for(Purpose purpose, int64_t bytes) {
    pthread_once(&once, create_key);
    Workspace *all = pthread_getspecific(key);
    if (!all) {
        all = or_end(calloc(WORKSPACES, sizeof *all));
        pthread_setspecific(key, all);
    }
    Workspace *own = &all[purpose];
    if (own->bytes < bytes) {
        free(own->memory);
        own->bytes = (bytes + 4095) / 4096 * 4096;
        own->memory = or_end(aligned_alloc(4096, own->bytes));
    }
    return own->memory;
}
