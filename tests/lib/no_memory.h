/* SPDX-License-Identifier: MIT-0 */
/* no_memory: finds all messages that a call gives if the system has few pages for it, or none.
 * Calls it again and again with less and less address space, between each two limits whose results
 * differ. Linux; does nothing where such limits are not enforced (sanitizers, emulators). */
#ifndef DPAR_NO_MEMORY_H
#define DPAR_NO_MEMORY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Makes the call, frees what it got, and writes the message to text: "" on success. */
typedef void (*few_pages_call)(void *arg, char *text);

enum { FEW_SAID = 12, FEW_TEXT = 240 };
typedef struct few_pages {
    few_pages_call call;
    void *arg;
    struct rlimit before;
    rlim_t used;
    char said[FEW_SAID][FEW_TEXT]; /* each message once */
    int count;
} few_pages;

static inline rlim_t few_pages_used(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        pages = fscanf(f, "%lu", &pages) == 1 ? pages : 0;
        fclose(f);
    }
    return (rlim_t)pages * 4096;
}

/* Calls with this many pages more than are in use. */
static inline void few_pages_with(few_pages *few, rlim_t pages, char *text)
{
    struct rlimit less = few->before;
    int i = 0;
    memset(text, 0, FEW_TEXT);
    less.rlim_cur = few->used + 4096 * pages;
    (void)setrlimit(RLIMIT_AS, &less);
    few->call(few->arg, text);
    (void)setrlimit(RLIMIT_AS, &few->before);
    while (i < few->count && strcmp(few->said[i], text) != 0) {
        i++;
    }
    if (i == few->count && i < FEW_SAID) {
        memcpy(few->said[few->count++], text, FEW_TEXT);
    }
}

static inline void few_pages_between(few_pages *few, rlim_t low, const char *at_low, rlim_t high,
                                     const char *at_high)
{
    char text[FEW_TEXT];
    rlim_t middle = low + (high - low) / 2;
    if (middle == low || strcmp(at_low, at_high) == 0) {
        return;
    }
    few_pages_with(few, middle, text);
    few_pages_between(few, low, at_low, middle, text);
    few_pages_between(few, middle, text, high, at_high);
}

/* Tries limits from 0 to `most` pages. Returns 0 if limits are not enforced here. */
static inline int few_pages_said(few_pages *few, few_pages_call call, void *arg, rlim_t most)
{
    char none[FEW_TEXT], all[FEW_TEXT];
    struct rlimit less;
    void *at;
    memset(few, 0, sizeof *few);
    few->call = call;
    few->arg = arg;
    few->used = few_pages_used();
    if (few->used == 0 || few->used >> 12 > (rlim_t)1 << 26 || getrlimit(RLIMIT_AS, &few->before) != 0) {
        return 0;
    }
    call(arg, none); /* memory that is allocated only once exists after this */
    few->used = few_pages_used();
    less = few->before;
    less.rlim_cur = few->used;
    (void)setrlimit(RLIMIT_AS, &less);
    at = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)setrlimit(RLIMIT_AS, &few->before);
    if (at != MAP_FAILED) {
        (void)munmap(at, 1 << 22);
        return 0;
    }
    few_pages_with(few, 0, none);
    few_pages_with(few, most, all);
    few_pages_between(few, 0, none, most, all);
    return 1;
}

/* Returns 1 if a message contains these words, otherwise 0. */
static inline int few_pages_has(const few_pages *few, const char *words)
{
    int i, found = 0;
    for (i = 0; i < few->count; i++) {
        found |= strstr(few->said[i], words) != NULL;
    }
    if (!found) {
        printf("nothing with \"%s\" among:\n", words);
        for (i = 0; i < few->count; i++) {
            printf("    %s\n", few->said[i]);
        }
    }
    return found;
}

#endif
