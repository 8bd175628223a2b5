/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes the check of schedules: reads a CSV, changes its numbers at will, checks it, runs it on
 * every transport, assigns slots and steps through it. The first bytes of the input choose chains,
 * slices and changes, the others are the text. Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a
 * main that feeds argv[1] fixed pseudo-random mutations of a few seeds. Run with:
 * tests/compile/fuzz.sh. */
#include "dpar_schedule.h"

#include "schedule_calls.h"
#include "must.h"

#include <stdlib.h>
#include <string.h>

/* Allocates exactly as much as is requested, so that a sanitizer sees accesses beyond it. */
static void *room(int64_t bytes)
{
    void *mem = malloc(bytes > 0 ? (size_t)bytes : 1);
    must(mem != NULL);
    return mem;
}

/* Checks that what passes with blocking transport passes with all; a finished rank is -1, the
 * others are at a position in their lists. */
static void run_all(const dpar_schedule *s, int32_t k)
{
    int64_t bytes = check_run_bytes(s);
    int64_t *stuck = (int64_t *)room(8 * (int64_t)s->ranks);
    void *mem = room(bytes);
    int32_t t, r, blocking = DPAR_OK;
    for (t = 1; t < DPAR_TRANSPORT_COUNT; t++) {
        dpar_why why;
        dpar_status st;
        int stands = 0;
        why.text[0] = 0;
        stuck[0] = -7;
        st = check_run(s, t, k, stuck, mem, bytes, &why);
        must(st == DPAR_OK || ((st == DPAR_E_ARG || st == DPAR_E_STUCK) && why.text[0] != 0));
        for (r = 0; r < s->ranks && stuck[0] != -7; r++) {
            must(stuck[r] == -1 || (stuck[r] >= s->begin[r] && stuck[r] < s->begin[r + 1]));
            stands |= stuck[r] >= 0;
        }
        must(stuck[0] == -7 || (stands && st == DPAR_E_STUCK));
        blocking = t == DPAR_TRANSPORT_BLOCKING ? st : blocking;
        must(blocking != DPAR_OK || st == DPAR_OK);
    }
    free(mem);
    free(stuck);
}

static void within_counts(const dpar_schedule *s, const dpar_action_slots *slots,
                          const dpar_slot_counts *counts)
{
    int32_t r;
    int64_t i;
    for (r = 0; r < s->ranks; r++) {
        for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
            const dpar_action_slots *x = &slots[i];
            must(x->receive == DPAR_SLOT_NONE || x->receive < counts[r].receive);
            must(x->activation == DPAR_SLOT_NONE || x->activation < counts[r].activation);
            must(x->send == DPAR_SLOT_NONE || x->send < counts[r].send);
            must(x->weight == DPAR_SLOT_NONE || x->weight < counts[r].weight);
        }
    }
}

static void check_all(const dpar_schedule *s, int32_t k)
{
    int64_t bytes = check_list_bytes(s), n = s->begin[s->ranks];
    void *mem = room(bytes);
    dpar_why why;
    dpar_status tagged, strict;
    why.text[0] = 0;
    strict = check_list(s, 0, mem, bytes, &why);
    must(strict == DPAR_OK ||
         ((strict == DPAR_E_ARG || strict == DPAR_E_STUCK) && why.text[0] != 0));
    tagged = check_list(s, DPAR_CHECK_TAGGED, mem, bytes, NULL);
    must(strict != DPAR_OK || tagged == DPAR_OK);
    free(mem);
    run_all(s, k);
    if (bytes >= 0) {
        dpar_action_slots *slots = (dpar_action_slots *)room(n * (int64_t)sizeof *slots);
        dpar_slot_counts *counts = (dpar_slot_counts *)room(s->ranks * (int64_t)sizeof *counts);
        bytes = dpari_schedule_slots_bytes(s);
        mem = room(bytes);
        must(give_slots(s, k - 1, slots, counts, mem, bytes, NULL) == tagged);
        if (tagged == DPAR_OK) {
            within_counts(s, slots, counts);
        }
        free(mem);
        free(counts);
        free(slots);
    }
}

#ifdef __cplusplus
extern "C"
#endif
    int
    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 8;
    dpar_schedule s;
    int64_t bytes, n;
    void *mem;
    if (size < 8) {
        return 0;
    }
    bytes = read_csv_bytes(text, size - 8, NULL);
    if (bytes < 0) {
        return 0;
    }
    mem = room(bytes);
    if (read_csv(&s, text, size - 8, data[0] % 5, mem, bytes, NULL) == DPAR_OK) {
        s.slices = 1 + data[1] % 3;
        n = s.begin[s.ranks];
        if (data[2] % 4 == 1 && n > 0) { /* two bytes of the actions, with any value */
            uint8_t *at = (uint8_t *)s.action;
            at[(data[3] | data[4] << 8) % (8 * n)] = data[5];
            at[(data[6] | data[7] << 8) % (8 * n)] = data[7];
        } else if (data[2] % 4 == 2) {
            s.rank_of[data[3] % s.stages] = data[4];
            s.micro_batches += (int8_t)data[5];
            s.chain += (int8_t)data[6] / 32;
        } else if (data[2] % 4 == 3) {
            s.begin[data[3] % (s.ranks + 1)] += (int8_t)data[4] / 32;
            s.begin[s.ranks] = s.begin[s.ranks] > n ? n : s.begin[s.ranks]; /* there are no more */
        }
        check_all(&s, 1 + data[3] % 3);
    }
    free(mem);
    return 0;
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n",
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0I1,0W1,0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1OFFLOAD0,1RECV_F1,1RELOAD0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,"
    "1REDUCE_GRAD,1RESHARD\n",
    "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,,(1F1;1B0)OVERLAP_F_B,1F2,1B1,1RECOMPUTE2,1B2\n",
    "0F0,0F1,2F2,2F3,0B1,0B0,2B3,2B2\n1F0,1F1,3F2,3F3,1B1,1B0,3B3,3B2\n"};

static uint64_t random_bits(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x >> 11;
}

/* Swaps two cells of the text or two letters, or replaces one by another. */
static void mutate(char *text, size_t n, uint64_t *x)
{
    static const char odd[] = "0123FBIW,";
    size_t a = random_bits(x) % n, b = random_bits(x) % n;
    size_t i = a, j = b, k;
    char c;
    while (i > 0 && text[i - 1] != ',' && text[i - 1] != '\n') {
        i--;
    }
    while (j > 0 && text[j - 1] != ',' && text[j - 1] != '\n') {
        j--;
    }
    if (random_bits(x) % 4 > 0) { /* cells of one length, as many are */
        for (k = 0; i + k < n && j + k < n && text[i + k] != ',' && text[j + k] != ',' &&
                    text[i + k] != '\n' && text[j + k] != '\n';
             k++) {
            c = text[i + k];
            text[i + k] = text[j + k];
            text[j + k] = c;
        }
    } else {
        text[a] = odd[random_bits(x) % (sizeof odd - 1)];
    }
}

int main(int argc, char **argv)
{
    long runs = argc > 1 ? atol(argv[1]) : 100000, i;
    uint64_t x = 88172645463325252u;
    for (i = 0; i < runs; i++) {
        static char input[1024];
        const char *text = seed[i % (long)(sizeof seed / sizeof seed[0])];
        size_t n = strlen(text), k;
        int changes = (int)(random_bits(&x) % 5);
        for (k = 0; k < 8; k++) {
            input[k] = (char)random_bits(&x);
        }
        input[0] = (char)(i % 4 == 3 ? 2 : 0);
        memcpy(input + 8, text, n);
        while (changes-- > 0) {
            mutate(input + 8, n, &x);
        }
        LLVMFuzzerTestOneInput((const uint8_t *)input, 8 + n);
    }
    return 0;
}
#endif
