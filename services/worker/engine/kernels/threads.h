/* Work that is divided among threads, and the arithmetic that all of them follow. */
#pragma once

#include "kernels.h"

typedef void (*Job)(void *context, Share share);

/* Does `job` for all `items` on the threads of `kernels`, each of which gets one share of them. Returns when all are
   done. If two callers meet, the second one does its work on its own thread. */
void divide(const Kernels *kernels, int64_t items, Job job, void *context);
