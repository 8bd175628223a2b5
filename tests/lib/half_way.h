/* SPDX-License-Identifier: MIT-0 */
/* half_way: where printf and dpar print a number differently. */
#ifndef HALF_WAY_H
#define HALF_WAY_H

#include <stdio.h>
#include <string.h>

/* Returns 1 if v is exactly half-way between two numbers with this many decimals, otherwise 0.
 * There printf rounds to even and dpar away from zero. A double has at most 1074 decimals. */
static inline int half_way(double v, int decimals, int scientific)
{
    static char exact[1600];
    const char *p;
    snprintf(exact, sizeof exact, scientific ? "%.1100e" : "%.1100f", v);
    p = strchr(exact, '.') + 1 + decimals;
    return *p == '5' && strspn(p + 1, "0") + 1 >= strcspn(p, "e");
}

#endif
