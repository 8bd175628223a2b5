/* SPDX-License-Identifier: MIT-0 */
/* base - declares what every header shares: version, linkage, statuses and messages. */
#ifndef DPARI_BASE_BASE_H
#define DPARI_BASE_BASE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define DPAR_VERSION_MAJOR 0
#define DPAR_VERSION_MINOR 2
#define DPAR_VERSION_PATCH 0
/* The version as one number: major x 10000 + minor x 100 + patch. */
#define DPAR_VERSION (DPAR_VERSION_MAJOR * 10000 + DPAR_VERSION_MINOR * 100 + DPAR_VERSION_PATCH)

/* With DPAR_STATIC every function is private to the file that includes the header. */
#if defined(__GNUC__) || defined(__clang__)
#define DPARI_UNUSED __attribute__((unused))
#else
#define DPARI_UNUSED
#endif
#ifndef DPAR_API
#if defined(DPAR_STATIC)
#define DPAR_API static DPARI_UNUSED
#elif defined(__cplusplus)
#define DPAR_API extern "C"
#else
#define DPAR_API extern
#endif
#endif

/* dpar_comm.h and the headers above it need POSIX and a C library. */
#if defined(__STDC_HOSTED__) && __STDC_HOSTED__ && (defined(__unix__) || defined(__APPLE__))
#define DPARI_POSIX 1
#else
#define DPARI_POSIX 0
#endif

/* Lists every status with its name, its number and its text. Negative numbers are errors, 0 is
 * success, and positive numbers are conditions that are not errors. */
#define DPAR_STATUS_LIST(X)                                                                        \
    X(OK, 0, "ok")                                                                                 \
    X(DONE, 1, "nothing is left to do")                                                            \
    X(MORE, 2, "there is more to do")                                                              \
    X(SKIPPED, 3, "the step was skipped because a gradient is not finite")                         \
    X(E_ARG, -1, "an argument is out of its domain")                                               \
    X(E_RANGE, -2, "a number is too large")                                                        \
    X(E_ROOM, -3, "the memory passed is too small")                                                \
    X(E_PARSE, -4, "the text is not of the expected form")                                         \
    X(E_UNKNOWN, -5, "the name is not known")                                                      \
    X(E_DIVIDE, -6, "sizes do not divide")                                                         \
    X(E_MEMORY, -7, "it does not fit in device memory")                                            \
    X(E_NONE, -8, "no configuration is legal")                                                     \
    X(E_STUCK, -9, "ranks wait for each other")                                                    \
    X(E_PEER, -10, "another rank is gone")                                                         \
    X(E_TIMEOUT, -11, "another rank did not arrive in time")                                       \
    X(E_MISMATCH, -12, "ranks called different operations")                                        \
    X(E_SYSTEM, -13, "the operating system refused")

/* The result of a call: one of the DPAR_x above. */
typedef int32_t dpar_status;

enum {
#define DPARI_STATUS_ENUM(name, value, text) DPAR_##name = value,
    DPAR_STATUS_LIST(DPARI_STATUS_ENUM)
#undef DPARI_STATUS_ENUM
        DPARI_STATUS_END = -1000
};

/* The message that explains an error, such as "tp=12 does not divide 32 attention heads". Functions
 * that check a user's input take a `dpar_why *` as their last parameter, which may be NULL. They
 * write it only if they return an error. */
typedef struct dpar_why {
    char text[240]; /* ends in NUL; a longer message is cut */
    int64_t bytes;  /* with DPAR_E_ROOM: the bytes that the call needs; 0 if another capacity is too
                       small */
} dpar_why;

/* Returns the meaning of a status in a few words, or "unknown status". The text is static. */
DPAR_API const char *dpar_status_text(dpar_status status);

#endif
