/* SPDX-License-Identifier: MIT-0 */
/* text - writes text into the caller's buffer, as snprintf does. It never passes the end, always
 * leaves a NUL, and counts the characters of the whole text. It uses no locale and no libc.
 *
 *     static char buffer[2000];
 *     dpar_text t;
 *     dpar_text_init(&t, buffer, sizeof buffer);
 *     dpar_schedule_draw(&t, &gantt, DPAR_SCHEDULE_DRAW_TEXT, &why);    what draws and reports
 * appends to it puts(buffer); */
#ifndef DPARI_BASE_TEXT_H
#define DPARI_BASE_TEXT_H

#include "base.h"

/* Where text goes, and how much of it there was. */
typedef struct dpar_text {
    char *at;     /* the caller's */
    size_t room;  /* bytes of the buffer; 0: nothing is written, only `used` counts */
    size_t used;  /* characters of the whole text, without the NUL; the text was cut when used >=
                     room */
    size_t line;  /* where the current line began */
    size_t width; /* UTF-8 characters since then */
} dpar_text;

/* Begins an empty text in `buffer` (may be NULL with bytes 0). O(1). */
DPAR_API void dpar_text_init(dpar_text *t, char *buffer, size_t bytes);
/* Appends a text. O(length). */
DPAR_API void dpar_text_put(dpar_text *t, const char *s);

#endif
