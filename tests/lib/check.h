/* SPDX-License-Identifier: MIT-0 */
/* check: macros for test programs. A failed check prints its place and values. main ends with
 * CHECK_DONE(), which prints how many checks ran and fails if one failed or none ran. */
#ifndef DPAR_CHECK_H
#define DPAR_CHECK_H

#include <math.h>
#include <stdio.h>
#include <string.h>

static int checks_run, checks_failed;

/* With CHECK_STOP the first failure ends the program, to save time in tests/mutate.sh. */
#if defined(CHECK_STOP)
#include <stdlib.h>
#define CHECK_FAILED() exit(1)
#else
#define CHECK_FAILED() CHECK_COUNT(checks_failed)
#endif

/* With CHECK_THREADS ranks that are threads count their checks together. */
#if defined(CHECK_THREADS)
#define CHECK_COUNT(counter) ((void)__atomic_add_fetch(&(counter), 1, __ATOMIC_RELAXED))
#else
#define CHECK_COUNT(counter) ((void)(counter)++)
#endif

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        CHECK_COUNT(checks_run);                                                          \
        if (!(condition)) {                                                               \
            CHECK_FAILED();                                                               \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
        }                                                                                 \
    } while (0)

#define CHECK_INT(got, expected)                                                          \
    do {                                                                                  \
        long long check_a = (long long)(got), check_b = (long long)(expected);            \
        CHECK_COUNT(checks_run);                                                          \
        if (check_a != check_b) {                                                         \
            CHECK_FAILED();                                                               \
            printf("%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, #got,        \
                   check_a, check_b);                                                     \
        }                                                                                 \
    } while (0)

/* |got - expected| <= relative * |expected| */
#define CHECK_NEAR(got, expected, relative)                                               \
    do {                                                                                  \
        double check_a = (got), check_b = (expected);                                     \
        CHECK_COUNT(checks_run);                                                          \
        if (!(fabs(check_a - check_b) <= (relative) * fabs(check_b) + 1e-300)) {          \
            CHECK_FAILED();                                                               \
            printf("%s:%d: %s is %.15g, expected %.15g\n", __FILE__, __LINE__, #got,      \
                   check_a, check_b);                                                     \
        }                                                                                 \
    } while (0)

#define CHECK_TEXT(got, expected)                                                         \
    do {                                                                                  \
        const char *check_a = (got), *check_b = (expected);                               \
        CHECK_COUNT(checks_run);                                                          \
        if (strcmp(check_a, check_b) != 0) {                                              \
            CHECK_FAILED();                                                               \
            printf("%s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #got,    \
                   check_a, check_b);                                                     \
        }                                                                                 \
    } while (0)

#define CHECK_DONE()                                                                      \
    (printf("%d checks, %d failed\n", checks_run, checks_failed),                         \
     checks_failed > 0 || checks_run == 0)

#endif
