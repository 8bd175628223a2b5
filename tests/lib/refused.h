/* SPDX-License-Identifier: MIT-0 */
/* refused - a call that must end with that status, and whose sentence (in `why`) must hold these
 * words: "" any, NULL none is asked for. */
#ifndef REFUSED_H
#define REFUSED_H

#define REFUSED(call, status, words)                                                               \
    do {                                                                                           \
        const char *refused_words = (words);                                                       \
        why.text[0] = 0;                                                                           \
        CHECK_INT(call, status);                                                                   \
        if (refused_words != NULL) {                                                               \
            CHECK(why.text[0] != 0);                                                               \
            if (strstr(why.text, refused_words) == NULL) {                                         \
                CHECK_TEXT(why.text, refused_words);                                               \
            }                                                                                      \
        }                                                                                          \
    } while (0)

#endif
