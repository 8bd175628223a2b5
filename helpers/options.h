/* SPDX-License-Identifier: MIT-0 */
/* options - reads the command lines of commands, applications and benchmarks, prints their error
 * messages and shows their progress. `program` and `help` must be defined before it is included.
 *
 *     static const char program[] = "plan", help[] = "plan: ...\n";
 *     #include "../helpers/options.h"
 *     const option list[] = {{"--top", OPTION_INT, &top, 1, 64},
 *                            {"--svg", OPTION_WORD, &svg, 0, 0}};
 *     const int end = options_read(argc, argv, list, 2, words, 1);
 *     if (end >= 0) {
 *         return end;
 *     }
 *
 * Every program accepts --help, -h and --version. An option is given at most once. Its value
 * follows as the next argument or after a '=': "--top 3", "--top=3". */
#ifndef DPAR_HELPERS_OPTIONS_H
#define DPAR_HELPERS_OPTIONS_H

#include "clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

enum {
    OPTION_FLAG,  /* int: set to 1; the option has no value */
    OPTION_WORD,  /* const char *: 1 to 999 characters */
    OPTION_INT,   /* int */
    OPTION_LONG,  /* long long */
    OPTION_WHOLE, /* double, without a fraction */
    OPTION_REAL   /* double */
};
typedef struct option {
    const char *name; /* "--top" */
    int kind;
    void *to;
    double least, most; /* range of a number */
} option;

static int options_quiet; /* 1 to print nothing: on all ranks but the first */
static int options_last;  /* 1 to accept repeated options, of which the last counts: for scripts */

/* Takes the error messages of ranks; NULL to print them to stderr at once. */
static void (*options_says)(const char *message);

/* Prints "plan: no such file 'x'" and returns the exit code of bad input. */
static inline int complain(const char *what, const char *word)
{
    char text[1400];
    if (word != NULL) {
        snprintf(text, sizeof text, "%s '%s'", what, word);
    } else {
        snprintf(text, sizeof text, "%s", what);
    }
    if (!options_quiet && options_says != NULL) {
        options_says(text);
    } else if (!options_quiet) {
        fprintf(stderr, "%s: %s\n", program, text);
    }
    return 2;
}

/* Returns the ending of a noun after a number: "" after 1, otherwise `ending`, such as "s". */
static inline const char *options_plural(long long count, const char *ending)
{
    return count == 1 ? "" : ending;
}

/* Flushes the output. Returns `code`, or the exit code of bad input if it could not be written. */
static inline int options_finish(int code)
{
    return fflush(stdout) != 0 || ferror(stdout) ? complain("stdout cannot be written", NULL)
                                                 : code;
}

/* Stores a number; the word must contain nothing else. Returns 0, or 2 after a message. */
static inline int options_number(const option *entry, const char *word)
{
    const int whole = entry->kind != OPTION_REAL;
    char text[120], *end = NULL;
    const int begins = word != NULL && ((*word >= '0' && *word <= '9') || *word == '.' ||
                                        (*word == '-' && entry->least < 0));
    const double number = begins ? strtod(word, &end) : 0;
    if (end == NULL || end == word || *end != 0 ||
        !(number >= entry->least && number <= entry->most) ||
        (whole && (double)(long long)number < number)) {
        snprintf(text, sizeof text, "%s needs a %s of %.16g to %.16g, not", entry->name,
                 whole ? "whole number" : "number", entry->least, entry->most);
        return complain(text, word != NULL ? word : "");
    }
    if (entry->kind == OPTION_INT) {
        *(int *)entry->to = (int)number;
    } else if (entry->kind == OPTION_LONG) {
        *(long long *)entry->to = strspn(word, "-0123456789") == strlen(word)
                                      ? strtoll(word, NULL, 10)
                                      : (long long)number;
    } else {
        *(double *)entry->to = number;
    }
    return 0;
}

/* Stores the value of an option; NULL if it is missing. Returns 0, or 2 after a message. */
static inline int options_value(const option *entry, const char *value)
{
    if (value == NULL) {
        return complain("a value must follow", entry->name);
    }
    if (entry->kind != OPTION_WORD) {
        return options_number(entry, value);
    }
    if (*value == 0 || strlen(value) > 999) {
        char text[80];
        snprintf(text, sizeof text,
                 "1 to 999 characters must follow, not %lu:", (unsigned long)strlen(value));
        return complain(text, entry->name);
    }
    *(const char **)entry->to = value;
    return 0;
}

/* Returns the number of letters to change, insert or delete, or of neighbours to swap, to turn
 * `word` into `name`, which has at most 39 letters. */
static inline int options_unlike(const char *word, const char *name)
{
    int older[40] = {0}, row[40] = {0}, next[40] = {0}, i, k, n = (int)strlen(name);
    for (k = 0; k <= n; k++) {
        row[k] = k;
    }
    for (i = 1; word[i - 1] != 0 && i < 40; i++) {
        next[0] = i;
        for (k = 1; k <= n; k++) {
            int least = row[k - 1] + (word[i - 1] != name[k - 1]);
            least = row[k] + 1 < least ? row[k] + 1 : least;
            least = next[k - 1] + 1 < least ? next[k - 1] + 1 : least;
            if (i > 1 && k > 1 && word[i - 1] == name[k - 2] && word[i - 2] == name[k - 1] &&
                older[k - 2] + 1 < least) {
                least = older[k - 2] + 1;
            }
            next[k] = least;
        }
        memcpy(older, row, sizeof older);
        memcpy(row, next, sizeof row);
    }
    return row[n];
}

/* Returns 1 if `unlike` changes turn a word of `letters` letters into a name that the user may have
 * meant: at most one change for each three letters. */
static inline int options_near(int unlike, size_t letters)
{
    return 3 * (size_t)unlike <= letters;
}

/* Prints "unknown option; the nearest is --gpus, --help lists all: '--gpu'". The nearest is left
 * out if no option is similar. */
static inline int options_unknown(const char *word, const option *list, int options)
{
    char name[40], text[120];
    const char *closest = "--help";
    int k, least = 1000;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (k = 0; k < options; k++) {
        const int unlike = options_unlike(name, list[k].name);
        closest = unlike < least ? list[k].name : closest;
        least = unlike < least ? unlike : least;
    }
    if (!options_near(least, strlen(name) - strspn(name, "-"))) {
        return complain("unknown option; --help lists all:", word);
    }
    snprintf(text, sizeof text, "unknown option; the nearest is %s, --help lists all:", closest);
    return complain(text, word);
}

/* Returns 1 if the word is this option, otherwise 0. *value gets the text after a '=', or NULL. */
static inline int options_is(const option *entry, const char *word, const char **value)
{
    const size_t n = strlen(entry->name);
    if (strncmp(word, entry->name, n) != 0 || (word[n] != 0 && (word[n] != '=' || n < 3))) {
        return 0;
    }
    *value = word[n] == '=' ? word + n + 1 : NULL;
    return 1;
}

/* Prints the help or the version if the command line asks for it. Returns the exit code, or -1 if
 * it does not ask. */
static inline int options_asked(int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            if (!options_quiet) {
                fputs(help, stdout);
            }
            return options_finish(0);
        }
        if (strcmp(argv[i], "--version") == 0) {
            if (!options_quiet) {
                printf("%s, dpar %d.%d.%d\n", program, DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
                       DPAR_VERSION_PATCH);
            }
            return options_finish(0);
        }
    }
    return -1;
}

/* Reads the command line. Returns -1 to go on, or the exit code of the program: 0 after --help or
 * --version, 2 after an error message. `words` gets up to `room` arguments that are not options. */
static inline int options_read(int argc, char **argv, const option *list, int options,
                               const char **words, int room)
{
    const int asked = options_asked(argc, argv);
    unsigned long long seen = 0; /* bits of the options so far: repeated ones are refused */
    int i, k, n = 0;
    for (i = 1; asked < 0 && i < argc; i++) {
        const char *value = NULL;
        k = 0;
        while (k < options && !options_is(&list[k], argv[i], &value)) {
            k++;
        }
        /* "-5x100" is a wrong argument, not an option */
        if (k == options && argv[i][0] == '-' && strspn(argv[i] + 1, "0123456789") == 0 &&
            argv[i][1] != 0) {
            return options_unknown(argv[i], list, options);
        }
        if (k == options && n == room) {
            return complain(room == 0 ? "options begin with --, but this does not:"
                                      : "too many arguments:",
                            argv[i]);
        }
        if (k == options) {
            words[n++] = argv[i];
            continue;
        }
        if (!options_last && (seen >> k & 1u) != 0) {
            return complain("given twice:", list[k].name);
        }
        seen |= 1ull << k;
        if (list[k].kind == OPTION_FLAG) {
            if (value != NULL) {
                return complain("this option takes no value:", argv[i]);
            }
            *(int *)list[k].to = 1;
            continue;
        }
        /* an argument that begins with -- is no value: --svg --json must not write to "--json" */
        if (value == NULL && i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0) {
            value = argv[++i];
        }
        if (options_value(&list[k], value) != 0) {
            return 2;
        }
    }
    return asked;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Returns 1 if a file descriptor is a terminal, otherwise 0. */
static inline int options_terminal(int file)
{
#if defined(__unix__) || defined(__APPLE__)
    return isatty(file);
#else
    (void)file;
    return 0;
#endif
}

/* Prints "42 %  23.1 M configurations, 3 s left" to stderr, if that is a terminal and the work
 * takes longer than 2 s. `share` is 0 to 1; 1 removes the line. `what` describes the work done, or
 * is NULL. */
static inline void options_progress(double since, double share, const char *what)
{
    const double spent = now() - since;
    const double left = share > 0.01 ? spent * (1.0 - share) / share : 0.0;
    if (options_quiet || spent < 2.0 || !options_terminal(2)) {
        return;
    }
    if (share >= 1.0) {
        fprintf(stderr, "\r%60s\r", "");
    } else if (what != NULL) {
        fprintf(stderr, "\r%3.0f %%  %s, %.0f s left   ", 100.0 * share, what, left);
    } else {
        fprintf(stderr, "\r%3.0f %%  %.0f s left   ", 100.0 * share, left);
    }
}

#endif
