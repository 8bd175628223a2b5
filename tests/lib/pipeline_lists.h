/* SPDX-License-Identifier: MIT-0 */
/* pipeline_lists: lists of actions for tests: the files of tests/data/pipeline, editing, and
 * messages by PyTorch's rule, written out in a simple way. */
#ifndef DPAR_PIPELINE_LISTS_H
#define DPAR_PIPELINE_LISTS_H

#include "schedule_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_RANKS = 8, LIST_MOST = 1600 };

/* A schedule that is easy to change. */
typedef struct lists {
    int ranks, stages, micros, chain, slices;
    int n[LIST_RANKS];
    dpar_action a[LIST_RANKS][LIST_MOST];
    int rank_of[64];
} lists;

static const char *const list_files[] = {"1f1b_p4_m2_fewer_mb_than_stages",
                                         "1f1b_p4_m8",
                                         "1f1b_p4_m8_comms",
                                         "chimera_p4_m4",
                                         "dualpipe_p4_m8",
                                         "eager1f1b_p4_m8",
                                         "forward_only_p4_m4",
                                         "gpipe_fifo_p4_m4",
                                         "gpipe_lifo_p4_m4",
                                         "interleaved1f1b_flex_p4_v2_m10",
                                         "interleaved1f1b_p4_v2_m8",
                                         "interleaved1f1b_p4_v2_m8_comms",
                                         "interleaved_zb_p4_v2_m8",
                                         "loopedbfs_p4_v2_m4",
                                         "megatron_tunable_p2_v2_m5_N3",
                                         "overlap_1f1b_p4_m8",
                                         "pt_dualpipev_p4_m10",
                                         "pt_interleaved_p2_v2_m4_recv_late_DEADLOCK",
                                         "seq1f1b_p4_m4_s2",
                                         "unbalanced_p2_5stages_m1",
                                         "vhalf_p4_m8",
                                         "vmin_p4_m8",
                                         "zb_auto_mem1p_p4_m8",
                                         "zb_h1_p4_m8",
                                         "zbv_p4_m8"};
enum { LIST_FILES = (int)(sizeof list_files / sizeof list_files[0]) };

static uint64_t list_seed = 88172645463325252u;
static int list_random(int below)
{
    list_seed ^= list_seed << 13;
    list_seed ^= list_seed >> 7;
    list_seed ^= list_seed << 17;
    return (int)((list_seed >> 11) % (uint64_t)below);
}

/* Reads the schedule of a text. It points to a buffer that the next call overwrites. */
static dpar_status list_read(dpar_schedule *s, const char *csv, size_t n, int chain)
{
    static int64_t memory[1 << 14];
    dpar_why why;
    dpar_status st = read_csv(s, csv, n, chain, memory, (int64_t)sizeof memory, &why);
    if (st != DPAR_OK) {
        printf("%s\n", why.text);
    }
    return st;
}

/* Loads a file. The chain of the bidirectional files has 4 stages, and seq1f1b has 2 slices, as
 * their comments say. */
static int list_load(dpar_schedule *s, const char *name)
{
    static char text[1 << 16];
    char path[128];
    size_t n;
    FILE *f;
    snprintf(path, sizeof path, "tests/data/pipeline/%s.csv", name);
    f = fopen(path, "rb");
    if (f == NULL) {
        return 0;
    }
    n = fread(text, 1, sizeof text, f);
    fclose(f);
    if (list_read(s, text, n,
                  strstr(name, "chimera") || strstr(name, "dualpipe_p") == name ? 4 : 0)) {
        return 0;
    }
    s->slices = strstr(name, "seq1f1b") ? 2 : 1;
    return 1;
}

static void list_open(lists *l, const dpar_schedule *s)
{
    int r;
    memset(l, 0, sizeof *l);
    l->ranks = s->ranks, l->stages = s->stages, l->micros = s->micro_batches;
    l->chain = s->chain, l->slices = s->slices;
    for (r = 0; r < s->ranks; r++) {
        l->n[r] = (int)(s->begin[r + 1] - s->begin[r]);
        memcpy(l->a[r], s->action + s->begin[r], (size_t)l->n[r] * sizeof(dpar_action));
    }
    for (r = 0; r < s->stages; r++) {
        l->rank_of[r] = s->rank_of[r];
    }
}

/* Converts to a schedule in a buffer of exactly the needed size, so that a sanitizer sees any
 * access past the end. */
static void *list_close(const lists *l, dpar_schedule *s)
{
    int64_t total = 0, bytes;
    dpar_why why;
    void *mem;
    int r;
    for (r = 0; r < l->ranks; r++) {
        total += l->n[r];
    }
    (void)schedule_init(s, l->ranks, l->stages, total, NULL, 0, &why);
    bytes = why.bytes;
    mem = malloc((size_t)bytes);
    if (mem == NULL || schedule_init(s, l->ranks, l->stages, total, mem, bytes, NULL)) {
        abort();
    }
    s->micro_batches = l->micros, s->chain = l->chain, s->slices = l->slices;
    for (r = 0; r < l->ranks; r++) {
        memcpy(s->action + s->begin[r], l->a[r], (size_t)l->n[r] * sizeof(dpar_action));
        s->begin[r + 1] = s->begin[r] + l->n[r];
    }
    for (r = 0; r < l->stages; r++) {
        s->rank_of[r] = (uint16_t)l->rank_of[r];
    }
    return mem;
}

static void list_insert(lists *l, int r, int at, dpar_action a)
{
    if (l->n[r] < LIST_MOST) {
        memmove(&l->a[r][at + 1], &l->a[r][at], (size_t)(l->n[r] - at) * sizeof a);
        l->a[r][at] = a;
        l->n[r]++;
    }
}

static dpar_action list_action(int kind, int stage, int micro, int peer)
{
    dpar_action a;
    memset(&a, 0, sizeof a);
    a.kind = (uint8_t)kind, a.stage = (uint16_t)stage;
    a.micro_batch = (uint16_t)micro, a.peer = (uint16_t)peer;
    return a;
}

static int list_before(const lists *l, int stage)
{
    return stage % l->chain > 0 ? stage - 1 : -1;
}

static int list_behind(const lists *l, int stage)
{
    return stage % l->chain + 1 < l->chain ? stage + 1 : -1;
}

/* Returns 1 if the list of rank r has an action of one of two kinds, otherwise 0. A kind below 0 is
 * ignored. */
static int list_has(const lists *l, int r, int kind, int other, int stage, int micro)
{
    int i;
    for (i = 0; i < l->n[r]; i++) {
        const dpar_action *a = &l->a[r][i];
        if ((a->kind == kind || a->kind == other) && a->stage == stage && a->micro_batch == micro) {
            return 1;
        }
    }
    return 0;
}

static int list_ready(const lists *out, int r, const dpar_action *a)
{
    int from;
    if (a->kind == DPAR_ACTION_FORWARD) {
        from = list_before(out, a->stage);
        return from < 0 || list_has(out, r, DPAR_ACTION_RECV_F, -1, a->stage, a->micro_batch) ||
               list_has(out, r, DPAR_ACTION_FORWARD, -1, from, a->micro_batch);
    }
    if (a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT) {
        from = list_behind(out, a->stage);
        return from < 0 || list_has(out, r, DPAR_ACTION_RECV_B, -1, a->stage, a->micro_batch) ||
               list_has(out, r, DPAR_ACTION_BACKWARD, DPAR_ACTION_INPUT, from, a->micro_batch);
    }
    return 1;
}

static void list_message(lists *out, int r, const dpar_action *a)
{
    int forward = a->kind == DPAR_ACTION_FORWARD, to, q;
    to = forward ? list_behind(out, a->stage)
         : a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT
             ? list_before(out, a->stage)
             : -1;
    q = to < 0 ? r : out->rank_of[to];
    if (q != r) {
        int send = forward ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B;
        list_insert(out, r, out->n[r], list_action(send, a->stage, a->micro_batch, q));
        list_insert(out, q, out->n[q], list_action(send + 1, to, a->micro_batch, r));
    }
}

/* Computes PyTorch's _add_send_recv: one action per rank and turn, where an action is ready by the
 * rank's own list, and both ends of a message are placed at once. Returns 0 if it cannot
 * continue. */
static int list_lower(lists *out, const lists *in)
{
    int at[LIST_RANKS] = {0}, r, k, went = 1;
    *out = *in;
    memset(out->n, 0, sizeof out->n);
    while (went) {
        went = 0;
        for (r = 0; r < in->ranks; r++) {
            const dpar_action *a = &in->a[r][at[r]];
            int count = at[r] < in->n[r] ? 1 + a->joined : 0, ready = count > 0;
            for (k = 0; k < count; k++) {
                ready = ready && list_ready(out, r, &a[k]);
            }
            for (k = 0; k < count && ready; k++) {
                list_insert(out, r, out->n[r], a[k]);
            }
            for (k = 0; k < count && ready; k++) {
                list_message(out, r, &a[k]);
            }
            at[r] += ready ? count : 0;
            went |= ready;
        }
    }
    for (r = 0; r < in->ranks; r++) {
        if (at[r] < in->n[r]) {
            return 0;
        }
    }
    return 1;
}

static int list_has_messages(const lists *l)
{
    int r, i, found = 0;
    for (r = 0; r < l->ranks; r++) {
        for (i = 0; i < l->n[r]; i++) {
            found |= l->a[r][i].kind >= DPAR_ACTION_SEND_F && l->a[r][i].kind <= DPAR_ACTION_RECV_B;
        }
    }
    return found;
}

/* Loads a file and adds messages. */
static int list_lowered(lists *l, const char *name)
{
    static lists plain;
    dpar_schedule s;
    if (!list_load(&s, name)) {
        return 0;
    }
    list_open(&plain, &s);
    if (list_has_messages(&plain)) {
        *l = plain;
        return 1;
    }
    return list_lower(l, &plain);
}

#endif
