/* What the portable kernels of this CPU make of fixed inputs, at each of its levels of vector instructions: to be compiled
   for other CPUs with the sources of the kernels, and compared. */
#include <stdio.h>

#include "kernels.h"

int main(void) {
    for (const char *const *level = find_levels(); *level; level++) {
        const char *reason;
        const Variant *variant = find_variant("portable", *level, &reason);
        if (!variant)
            return 1;
        for (int threads = 1; threads <= 2; threads++) {
            Kernels kernels = {variant, threads};
            printf("%s %d %016llx\n", *level, threads, (unsigned long long)digest(&kernels));
        }
    }
    return 0;
}
