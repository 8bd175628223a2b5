/* SPDX-License-Identifier: MIT-0 */
/* text - writes text into the caller's buffer. As with snprintf, the text always ends in NUL, is
 * cut if the buffer is too small, and its full length is counted. It uses neither a locale nor the
 * C library.
 *
 *     static char buffer[2000];
 *     dpar_text t;
 *     dpar_text_init(&t, buffer, sizeof buffer);
 *     dpar_schedule_draw(&t, &gantt, DPAR_SCHEDULE_DRAW_TEXT, &why);
 *     puts(buffer); */
#ifndef DPARI_BASE_TEXT_H
#define DPARI_BASE_TEXT_H

#include "base.h"

/* A text that functions append to. */
typedef struct dpar_text {
    char *buffer;    /* the caller's buffer */
    size_t capacity; /* bytes of the buffer; if 0, nothing is written and only `used` counts */
    size_t used;     /* bytes of the whole text, without the NUL; it was cut if used >= capacity */
    size_t line;     /* private: where the current line begins */
    size_t width;    /* private: UTF-8 characters of the current line */
} dpar_text;

/* Begins an empty text in a buffer of `bytes` bytes. The buffer may be NULL if `bytes` is 0. */
DPAR_API void dpar_text_init(dpar_text *text, char *buffer, size_t bytes);
/* Appends the string `s`. */
DPAR_API void dpar_text_put(dpar_text *text, const char *s);

#endif
