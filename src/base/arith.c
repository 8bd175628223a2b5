/* SPDX-License-Identifier: MIT-0 */
/* Builds error messages. Each dpari_say_x writes a form with its numbers and words into a dpar_why
 * and returns the status, so that a check can end with `return dpari_say(...)`. The variants differ
 * only in the number of arguments: a call with few arguments is shorter in machine code, and there
 * are hundreds of calls. All headers call these functions. */
#include "arith.h"

DPARI_API DPARI_COLD size_t dpari_say_int(char *at, size_t room, int64_t v)
{
    char digit[20];
    size_t n = 0, used = 0;
    uint64_t u = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    do {
        digit[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
    } while (u != 0);
    if (v < 0 && used < room) {
        at[used++] = '-';
    }
    while (n > 0 && used < room) {
        at[used++] = digit[--n];
    }
    return used;
}

DPARI_API DPARI_COLD dpar_status dpari_say_every(dpar_status status, dpar_why *why,
                                                 const char *form, const char *word, size_t length,
                                                 int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t value[4];
    size_t used = 0, i, k, next = 0;
    const size_t room = sizeof(why->text) - 1;
    if (why == NULL) {
        return status;
    }
    value[0] = a;
    value[1] = b;
    value[2] = c;
    value[3] = d;
    for (i = 0; form[i] != 0 && used < room; i++) {
        if (form[i] == '#') {
            used += dpari_say_int(why->text + used, room - used, value[next & 3]);
            next++;
        } else if (form[i] == '@') {
            for (k = 0; k < length && word[k] != 0 && used < room; k++) {
                why->text[used++] = word[k];
            }
        } else {
            why->text[used++] = form[i];
        }
    }
    why->text[used] = 0;
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_say_all(dpar_status status, dpar_why *why, const char *form,
                                               int64_t a, int64_t b, int64_t c, int64_t d)
{
    return dpari_say_every(status, why, form, "", 0, a, b, c, d);
}

DPARI_API DPARI_COLD dpar_status dpari_say_wrong(dpar_why *why, const char *form, int64_t a,
                                                 int64_t b, int64_t c, int64_t d)
{
    return dpari_say_all(DPAR_E_ARG, why, form, a, b, c, d);
}

DPARI_API DPARI_COLD dpar_status dpari_say_wrong_two(dpar_why *why, const char *form, int64_t a,
                                                     int64_t b)
{
    return dpari_say_wrong(why, form, a, b, 0, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_say_two(dpar_status st, dpar_why *why, const char *form,
                                               int64_t a, int64_t b)
{
    return dpari_say_all(st, why, form, a, b, 0, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_say_wrong_word(dpar_why *why, const char *form,
                                                      const char *word, size_t length, int64_t a,
                                                      int64_t b)
{
    return dpari_say_every(DPAR_E_ARG, why, form, word, length, a, b, 0, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_say_only_word(dpar_status status, dpar_why *why,
                                                     const char *form, const char *word,
                                                     size_t length)
{
    return dpari_say_every(status, why, form, word, length, 0, 0, 0, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_say_three(dpar_status status, dpar_why *why,
                                                 const char *form, int64_t a, int64_t b, int64_t c)
{
    return dpari_say_all(status, why, form, a, b, c, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_say_wrong_type(dpar_why *why, const char *form, int32_t type,
                                                      int64_t a, int64_t b, int64_t c)
{
    return dpari_say_every(DPAR_E_ARG, why, form, dpar_type_name(type), 8, a, b, c, 0);
}
