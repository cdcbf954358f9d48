/* Working memory, a separate one for each thread. */
#pragma once

#include <stdint.h>

/* Returns at least so many bytes, aligned to 64, until this thread calls again. Their contents are undefined. Without
   memory the process ends with a message. */
void *workspace(int64_t bytes);
