/* SPDX-License-Identifier: MIT-0 */
/* clock - the clock of programs that show progress or measure. */
#ifndef DPAR_HELPERS_CLOCK_H
#define DPAR_HELPERS_CLOCK_H

#include <time.h>

/* Returns the seconds since an arbitrary moment. */
static inline double now(void)
{
#if defined(__unix__) || defined(__APPLE__)
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

#endif
