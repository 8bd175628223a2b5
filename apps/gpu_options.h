/* SPDX-License-Identifier: MIT-0 */
/* gpu_options - what stencil.cu, ddp_llm.cu and bench/gpu_halo.cu read of the command line, and how
 * they complain. Included there, before gpu_start.h; `program` is defined before. */
#ifndef GPU_OPTIONS_H
#define GPU_OPTIONS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int complain(const char *what, const char *word)
{
    fprintf(stderr, "%s: %s%s%s\n", program, what, word != NULL ? " " : "",
            word != NULL ? word : "");
    return 2;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- options --------------------------------------------------------------------------------- */

/* `--name N` goes to number, between low and high; `--name` alone sets flag; `--name WORD` goes to
 * word. The last of a list has no name. */
struct option {
    const char *name = NULL;
    double *number = NULL, low = 0, high = 0;
    int fraction = 0; /* 1: the number need not be whole */
    int *flag = NULL;
    const char **word = NULL;
};

/* 0; 2 after a sentence; -1: the help was asked for. */
static int read_options(int argc, char **argv, const option *list)
{
    for (int i = 1; i < argc; i++) {
        const option *o = list;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return -1;
        }
        while (o->name != NULL && strcmp(o->name, argv[i]) != 0) {
            o++;
        }
        if (o->name == NULL) {
            return complain("what is this, see --help:", argv[i]);
        }
        if (o->flag != NULL) {
            *o->flag = 1;
        } else if (++i == argc) {
            return complain("something is missing behind ", o->name);
        } else if (o->word != NULL) {
            *o->word = argv[i];
        } else {
            char *end = NULL;
            const double v = strtod(argv[i], &end);
            if (end == argv[i] || *end != 0 || !(v >= o->low && v <= o->high) ||
                (!o->fraction && v != floor(v))) {
                return complain("not a number that fits, see --help:", o->name);
            }
            *o->number = v;
        }
    }
    return 0;
}

#endif
