/* SPDX-License-Identifier: MIT-0 */
/* Fuzzes schedules: any text through the reader, and any actions through the passes. What is read
 * is written and read again as the same; lowering keeps each rank's computations in order and pairs
 * each SEND with a RECV in the same order on both ranks; sinking keeps the order within a class.
 * Has libFuzzer's entry, and with -DDPAR_FUZZ_MAIN a main that feeds argv[1] fixed pseudo-random
 * mutations of the seeds. Run with: tests/compile/fuzz.sh. */
#include "dpar_schedule.h"

#include <stdio.h>

#include "texts.h"
#include "schedule_calls.h"
#include "must.h"

enum { MOST = 1 << 20 };

/* Returns memory of exactly this size, so that a sanitizer sees accesses behind it; NULL if it is
 * too much. */
static void *get(int64_t bytes)
{
    void *mem = bytes < 0 || bytes > MOST ? NULL : malloc((size_t)bytes);
    if (mem != NULL) {
        memset(mem, 0x5a, (size_t)bytes);
    }
    return mem;
}

static int is_extra(const dpar_action *a)
{
    return a->kind == DPAR_ACTION_IDLE || is_message(a->kind) ||
           (a->kind >= DPAR_ACTION_UNSHARD && a->kind <= DPAR_ACTION_REDUCE_GRAD) ||
           a->kind == DPAR_ACTION_WAIT_REDUCE;
}

static const dpar_action *computation(const dpar_action *a, const dpar_action *end)
{
    while (a < end && is_extra(a)) {
        a++;
    }
    return a;
}

static void check_same_computations(const dpar_schedule *s, const dpar_schedule *t)
{
    int32_t r;
    for (r = 0; r < s->ranks; r++) {
        const dpar_action *a = &s->action[s->begin[r]], *a_end = &s->action[s->begin[r + 1]];
        const dpar_action *b = &t->action[t->begin[r]], *b_end = &t->action[t->begin[r + 1]];
        for (;;) {
            a = computation(a, a_end);
            b = computation(b, b_end);
            if (a == a_end || b == b_end) {
                break;
            }
            must(memcmp(a++, b++, sizeof *a) == 0);
        }
        must(a == a_end && b == b_end);
    }
}

static const dpar_action *with_peer(const dpar_action *a, const dpar_action *end, int32_t peer)
{
    while (a < end && !(is_message(a->kind) && a->peer == peer)) {
        a++;
    }
    return a;
}

/* Checks that the messages between each two ranks have the same order in both lists. */
static void check_mirrored(const dpar_schedule *s)
{
    int32_t r, q;
    for (r = 0; r < s->ranks; r++) {
        for (q = 0; q < r; q++) {
            const dpar_action *a = &s->action[s->begin[r]], *a_end = &s->action[s->begin[r + 1]];
            const dpar_action *b = &s->action[s->begin[q]], *b_end = &s->action[s->begin[q + 1]];
            for (;;) {
                a = with_peer(a, a_end, q);
                b = with_peer(b, b_end, r);
                if (a == a_end || b == b_end) {
                    break;
                }
                must(a->micro_batch == b->micro_batch && is_receive(a) != is_receive(b));
                must(a->kind - is_receive(a) == b->kind - is_receive(b));
                must((a->kind - is_receive(a) == DPAR_ACTION_SEND_F) ==
                     (is_receive(a) ? a->stage == b->stage + 1 : b->stage == a->stage + 1));
                a++;
                b++;
            }
            must(a == a_end && b == b_end);
        }
    }
}

static void check_sinks(const dpar_schedule *s, int lowered)
{
    int c;
    for (c = 0; c < DPAR_CHANNEL_COUNT; c++) {
        dpar_schedule out;
        int64_t bytes = late_recv_bytes(s, NULL);
        void *mem = get(bytes);
        if (mem == NULL) {
            return;
        }
        must(late_recv(&out, s, c, mem, bytes, NULL) == DPAR_OK);
        check_same_computations(s, &out);
        if (lowered && c != DPAR_CHANNEL_EDGE) {
            check_mirrored(&out);
        }
        free(mem);
    }
}

static void check_merge(const dpar_schedule *s)
{
    dpar_schedule once, twice;
    int64_t bytes = merge_list_bytes(s, NULL);
    void *mem = get(bytes), *more = get(bytes);
    if (mem != NULL && more != NULL) {
        must(merge_list(&once, s, mem, bytes, NULL) == DPAR_OK);
        must(merge_list(&twice, &once, more, bytes, NULL) == DPAR_OK);
        must(twice.begin[s->ranks] <= once.begin[s->ranks]);
        must(once.begin[s->ranks] <= s->begin[s->ranks]);
    }
    free(mem);
    free(more);
}

static void check_passes(const dpar_schedule *s)
{
    int32_t passes;
    for (passes = 0; passes < 32; passes++) { /* from 16 on with TURNS */
        dpar_schedule_lower_desc how;
        dpar_schedule out;
        dpar_why why;
        int64_t bytes;
        void *mem;
        memset(&how, 0, sizeof how);
        how.passes = passes % 16 + passes / 16 * DPAR_LOWER_TURNS;
        how.max_active = 1 + passes % 5;
        why.text[0] = 0;
        bytes = dpari_schedule_lower_bytes(s, &how, &why);
        must((bytes < 0) == (why.text[0] != 0));
        mem = get(bytes);
        if (mem == NULL) {
            continue;
        }
        if (dpar_schedule_lower(&out, s, &how, mem, bytes, &why) == DPAR_OK) {
            int messages = (passes & 3) == 0 || (passes & DPAR_LOWER_MESSAGES) != 0;
            must(out.begin[out.ranks] <= bytes / 8);
            check_same_computations(s, &out);
            if (messages) {
                check_mirrored(&out);
            }
            check_sinks(&out, messages);
        } else {
            must(why.text[0] != 0);
        }
        free(mem);
    }
    check_merge(s);
    check_sinks(s, 0);
}

static void check_text(const char *text, size_t n)
{
    dpar_schedule s, again;
    dpar_text t;
    int64_t bytes = read_csv_bytes(text, n, NULL);
    void *mem = get(bytes), *more = get(bytes);
    char *written = (char *)malloc(4 * n + 64);
    if (mem != NULL && more != NULL && written != NULL &&
        read_csv(&s, text, n, 0, mem, bytes, NULL) == DPAR_OK) {
        dpar_text_init(&t, written, 4 * n + 64);
        dpar_schedule_write(&s, "\n", &t);
        must(t.used < 4 * n + 64);
        must(read_csv(&again, written, t.used, 0, more, bytes, NULL) == DPAR_OK);
        must(memcmp(mem, more, (size_t)bytes) == 0 && again.micro_batches == s.micro_batches);
        if (s.ranks < 100) {
            check_passes(&s);
        }
    }
    free(mem);
    free(more);
    free(written);
}

/* Takes actions without sense but within their lists' bounds: the passes refuse them or are
 * right. */
static void check_actions(const uint8_t *data, size_t n)
{
    dpar_schedule s;
    int64_t k, count = (int64_t)(n > 8 ? (n - 8) / 4 : 0), bytes;
    int32_t i;
    void *mem;
    if (n < 8) {
        return;
    }
    count = count < 64 ? count : 64;
    bytes = dpari_schedule_bytes(1 + data[0] % 5, 1 + data[1] % 6, count);
    mem = get(bytes);
    if (mem == NULL ||
        schedule_init(&s, 1 + data[0] % 5, 1 + data[1] % 6, count, mem, bytes, NULL) != 0) {
        return;
    }
    s.micro_batches = data[2] % 8;
    s.chain = 1 + data[3] % 6;
    for (i = 0; i < s.stages; i++) {
        s.rank_of[i] = (uint16_t)((data[4] >> i % 3) % (s.ranks + (data[5] == 7)));
    }
    for (k = 0; k < count; k++) { /* on rank k ranks / count */
        const uint8_t *d = data + 8 + 4 * k;
        dpar_action *a = &s.action[k];
        memset(a, 0, sizeof *a);
        a->kind = (uint8_t)(data[5] % 4 == 0 ? d[0] % 17 : d[0] % 5);
        a->joined = d[1] % 32 == 0;
        a->stage = (uint16_t)(d[2] % (s.stages + (data[5] == 9)));
        for (i = 0; i < s.stages && s.rank_of[a->stage % s.stages] != k * s.ranks / count; i++) {
            a->stage = (uint16_t)((a->stage + 1) % s.stages); /* one of this rank's, if any */
        }
        s.begin[k * s.ranks / count + 1] = k + 1;
        a->micro_batch =
            (uint16_t)(d[3] % 8 % (s.micro_batches + (data[5] == 11) + !s.micro_batches));
        a->peer = (uint16_t)(d[1] / 32 % s.ranks);
    }
    for (i = 0; i < s.ranks; i++) { /* ranks without actions */
        s.begin[i + 1] = s.begin[i + 1] > s.begin[i] ? s.begin[i + 1] : s.begin[i];
    }
    check_passes(&s);
    free(mem);
}

static void one(const char *text, size_t size)
{
    check_text(text, size);
    check_actions((const uint8_t *)text, size);
}

#ifdef DPAR_FUZZ_MAIN
static const char *const seed[] = {
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "# comment\r\n0F0, 0F1,,0I0,0W0,0B1\r\n1F0,(1F1;1B0)OVERLAP_F_B,1I1,1W1\r\n",
    "0F0,3F0,3B0,0B0,0F1,3F1,3B1,0B1\n1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n",
    "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0\n",
    "0F0,1F0,4F0,4B0,1B0,0B0\n2F0,3F0,3B0,2B0\n",
    "0F0,0OFFLOAD0,0RELOAD0,0RECOMPUTE0,0B0\n\n\"\"\n1F0,1B0"};

int main(int argc, char **argv)
{
    static const char odd[] = "0123456789FBIW,,;()\n\"";
    long runs = argc > 1 ? atol(argv[1]) : 100000, i;
    uint64_t x = 88172645463325252u;
    for (i = 0; i < runs; i++) {
        char action[100];
        size_t k;
        for (k = 0; k < sizeof action; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            action[k] = (char)(x >> 30);
        }
        LLVMFuzzerTestOneInput((const uint8_t *)action, 20 + x % 80);
    }
    return feed_texts(runs, seed, sizeof seed / sizeof seed[0], odd, sizeof odd - 1);
}
#endif
