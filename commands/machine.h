/* SPDX-License-Identifier: MIT-0 */
/* machine - the library's messages about machines, models and GPUs in the words of a command line.
 * The library names its own functions and always the nearest name; a user of a command cannot call
 * functions, and is misled by a name that is not near. options.h must be included before. */
#ifndef DPAR_COMMANDS_MACHINE_H
#define DPAR_COMMANDS_MACHINE_H

/* Replaces the first `old` in a text of `capacity` bytes by `other`. Does nothing if the text has
 * no `old` or the result does not fit. */
static inline void machine_replace(char *text, size_t capacity, const char *old, const char *other)
{
    char *at = strstr(text, old);
    const size_t n = strlen(old), k = strlen(other);
    if (at == NULL || strlen(text) + k - n >= capacity) {
        return;
    }
    memmove(at + k, at + n, strlen(at + n) + 1);
    memcpy(at, other, k);
}

/* Copies the text up to the next quote, in lower case. */
static inline void machine_quoted(char *word, size_t capacity, const char *text)
{
    size_t n = 0;
    while (n + 1 < capacity && text[n] != 0 && text[n] != '\'') {
        const char letter = text[n];
        word[n] = letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
        n++;
    }
    word[n] = 0;
}

/* Returns 1 if a word is similar to a name, or one is a part of the other. */
static inline int machine_similar(const char *word, const char *name)
{
    return options_near(options_unlike(word, name), strlen(word)) || strstr(name, word) != NULL ||
           strncmp(word, name, strlen(name)) == 0;
}

/* Changes a message of dpar_cluster_read or dpar_plan_query_read: drops "the nearest is 'NAME'" if
 * the user's word is not similar to NAME, and names plan --list instead of a function. `missing` is
 * what to say of an unknown machine whose name looks like that of a file, with a ';' at its end, or
 * "". */
static inline void machine_message(char *text, size_t capacity, const char *missing)
{
    static const char between[] = "'; the nearest is '";
    char *at = strstr(text, between);
    char word[40], name[40], old[160];
    machine_replace(text, capacity, "dpar_cluster_read lists all", "plan --list shows all");
    if (at == NULL || strncmp(text, "unknown ", 8) != 0) {
        return;
    }
    machine_quoted(word, sizeof word, strchr(text, '\'') + 1);
    machine_quoted(name, sizeof name, at + sizeof between - 1);
    if (machine_similar(word, name)) {
        return;
    }
    at += 1; /* the first character after the closing quote of the word */
    snprintf(old, sizeof old, "%.*s", (int)strcspn(at, ","), at);
    machine_replace(at, capacity - (size_t)(at - text), old, "; plan --list shows all");
    if (missing[0] != 0 && strncmp(text, "unknown machine", 15) == 0 &&
        strpbrk(word, "./") != NULL) {
        machine_replace(at, capacity - (size_t)(at - text), ";", missing);
    }
}

#endif
