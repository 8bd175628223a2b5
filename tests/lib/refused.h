/* SPDX-License-Identifier: MIT-0 */
/* refused: checks that a call ends with a status and that its message (in `why`) contains these
 * words: "" for any message, NULL if the message is not checked. */
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
