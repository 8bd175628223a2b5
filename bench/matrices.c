/* SPDX-License-Identifier: MIT-0 */
/* matrices - what whole matrices cost: dpar_matrices_gather and _scatter with ZeRO-1 and ZeRO-2,
 * next to two peers in the same run.
 *
 *     whole  every rank gets every whole gradient: an all-gather of the shards. (It would then
 *            compute all directions itself, so that nothing goes back.)
 *     copy   memcpy of the bytes that gather and scatter bring to this rank: those of the matrices
 *            that it owns, and those of its pieces
 *
 *     matrices [ROUNDS]     on the ranks of a launcher or of --ranks; default 30 rounds
 *
 * The matrices are those of a GPT: layers of four matrices. Times are minima and medians over the
 * rounds, in microseconds. */
#define _GNU_SOURCE
#include "dpar_train.h"
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, MATRICES = 4 * LAYERS, MOST_ROUNDS = 1000 };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints a row: the smallest and median time, also divided by those of gather and scatter. */
static void row(dpar_comm *c, const char *what, int64_t width, double *seconds, double *ours, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    if (c->rank == 0) {
        printf("matrices %s %d, %.1f, %.1f, %.2f (medians %.1f, %.1f, %.2f)\n", what, (int)width,
               seconds[0] * 1e6, ours[0] * 1e6, ours[0] / seconds[0], seconds[n / 2] * 1e6,
               ours[n / 2] * 1e6, ours[n / 2] / seconds[n / 2]);
        fflush(stdout);
    }
}

/* Measures matrices of width x width, and of 4 width x width, in alternate calls. */
static void measure(dpar_comm *c, dpar_fsdp *fsdp, dpar_zero1 *zero1, int64_t width,
                    const int64_t *count, int rounds)
{
    static double ours[MOST_ROUNDS], whole[MOST_ROUNDS], copied[MOST_ROUNDS];
    int64_t all = 0, share, owned = 0, k;
    dpar_matrices_desc desc = {0};
    dpar_matrices *m = NULL;
    dpar_update update = {0};
    dpar_why why;
    void *from = NULL, *to = NULL;
    desc.zero1 = zero1;
    desc.fsdp = fsdp;
    desc.matrices = MATRICES;
    dpar_require(c, dpar_matrices_make(c, &desc, &m, &why), &why);
    for (k = 0; k < MATRICES; k++) {
        all += count[k];
        owned += dpar_matrices_owner(m, (int32_t)k) == c->rank ? count[k] : 0;
    }
    share = (all + c->size - 1) / c->size;
    dpar_require(c, dpar_comm_alloc(c, 4 * (share + owned), &from), NULL);
    dpar_require(c, dpar_comm_alloc(c, 4 * share * c->size, &to), NULL);
    memset(from, 0, (size_t)(4 * (share + owned)));
    memset(to, 0, (size_t)(4 * share * c->size));
    if (zero1 != NULL) {
        dpar_require(c, dpar_zero1_norm(zero1, &update), NULL);
    }
    for (int i = -2; i < rounds; i++) {
        const int at = i < 0 ? 0 : i;
        double t;
        dpar_require(c, dpar_barrier(c, NULL), NULL);
        t = now();
        dpar_require(c, dpar_matrices_gather(m), NULL);
        dpar_require(c, dpar_matrices_scatter(m), NULL);
        ours[at] = now() - t;
        dpar_require(c, dpar_barrier(c, NULL), NULL);
        t = now();
        dpar_require(c, dpar_all_gather(c, from, to, share, DPAR_F32, NULL), NULL);
        whole[at] = now() - t;
        dpar_require(c, dpar_barrier(c, NULL), NULL);
        t = now();
        memcpy(to, from, (size_t)(4 * owned));
        memcpy(from, to, (size_t)(4 * share));
        copied[at] = now() - t;
    }
    qsort(ours, (size_t)rounds, sizeof *ours, ascending);
    row(c, zero1 != NULL ? "zero1 by all-gather" : "zero2 by all-gather", width, whole, ours,
        rounds);
    row(c, zero1 != NULL ? "zero1 by copy" : "zero2 by copy", width, copied, ours, rounds);
    dpar_matrices_free(m);
    dpar_comm_release(c, from);
    dpar_comm_release(c, to);
}

int main(int argc, char **argv)
{
    static const int64_t widths[] = {64, 256, 512};
    dpar_comm *c = NULL;
    dpar_why why;
    dpar_optimizer sgd;
    int rounds;
    dpar_require(NULL, dpar_init_or_launch(&argc, &argv, NULL, &c, &why), &why);
    rounds = argc > 1 ? atoi(argv[1]) : 30;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "matrices: ROUNDS is %d, but must be 1 to %d\n", rounds, MOST_ROUNDS);
        return 2;
    }
    pin(c->rank);
    dpar_optimizer_init(&sgd, DPAR_OPTIMIZER_SGD);
    for (int s = 0; s < 3; s++) {
        const int64_t w = widths[s];
        int64_t count[MATRICES], all = 0;
        int32_t per_unit[LAYERS];
        dpar_ddp_desc ddp_desc = {0};
        dpar_zero1_desc zero1_desc = {0};
        dpar_fsdp_desc fsdp_desc = {0};
        dpar_ddp *ddp = NULL;
        dpar_zero1 *zero1 = NULL;
        dpar_fsdp *fsdp = NULL;
        void *memory[2] = {NULL, NULL};
        for (int k = 0; k < MATRICES; k++) {
            static const int64_t times[4] = {3, 1, 4, 4}; /* qkv, projection, and the two of the
                                                             feed-forward part */
            count[k] = times[k % 4] * w * w;
            all += count[k];
            per_unit[k / 4] = 4;
        }
        for (int k = 0; k < 2; k++) {
            dpar_require(c, dpar_comm_alloc(c, 4 * all, &memory[k]), NULL);
            memset(memory[k], 0, (size_t)(4 * all));
        }
        ddp_desc.params = MATRICES;
        ddp_desc.count = count;
        ddp_desc.type = DPAR_F32;
        ddp_desc.gradients = memory[0];
        zero1_desc.weights = memory[1];
        zero1_desc.optimizer = &sgd;
        dpar_require(c, dpar_ddp_make(c, &ddp_desc, &ddp, &why), &why);
        dpar_require(c, dpar_zero1_make(ddp, &zero1_desc, &zero1, &why), &why);
        measure(c, NULL, zero1, w, count, rounds);
        dpar_zero1_free(zero1);
        dpar_ddp_free(ddp);
        fsdp_desc.units = LAYERS;
        fsdp_desc.params_per_unit = per_unit;
        fsdp_desc.count = count;
        fsdp_desc.zero = 2;
        fsdp_desc.optimizer = sgd;
        dpar_require(c, dpar_fsdp_make(c, &fsdp_desc, &fsdp, &why), &why);
        measure(c, fsdp, NULL, w, count, rounds);
        dpar_fsdp_free(fsdp);
        dpar_comm_release(c, memory[0]);
        dpar_comm_release(c, memory[1]);
    }
    return dpar_finalize(c);
}
