/* SPDX-License-Identifier: MIT-0 */
/* Compares attention over a sliding window, whose keys are exchanged as a halo, with the textbook
 * formulas (attention_cases.h).
 *
 *   window_attention [processes|threads] [ranks]     without arguments: processes 1 to 8, threads 1 to 4
 *   window_attention long [ranks]                    more random layers
 *   mpirun -np 4 window_attention                    built with -DUSE_MPI */
#include "attention_cases.h"

/* Tests windows shorter and longer than a rank's slice, and longer than the whole sequence. */
static int halo_cases(dpar_comm *c, int rounds)
{
    static const int windows[] = {1, 2, 5, 11, 100};
    uint32_t state = 99;
    test_case t;
    int n, bad = 0;
    for (n = 0; n < 5 + rounds; n++) {
        t = n < 5 ? plain(23) : by_lot(&state);
        t.halo = 1;
        t.rule = n % 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK;
        t.window = n < 5 ? windows[n] : t.window > 0 ? t.window : 1 + n % 7;
        bad += layer_case(c, &t, 9000 + (uint32_t)n, n % 8 == 0);
    }
    for (n = 0; n < 2; n++) { /* a step without tokens, and with one */
        t = plain(n);
        bad += layer_case(c, &t, 9997, 0);
        t.halo = 1;
        t.rule = DPAR_SPLIT_EVEN;
        t.window = 3;
        bad += layer_case(c, &t, 9998 + (uint32_t)n, n);
    }
    return bad;
}

/* Runs all tests. arg: number of random rounds. */
static int everything(dpar_comm *c, void *arg)
{
    const int rounds = *(const int *)arg;
    const double began = now();
    int64_t bad = 0;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 28);
    c = device_take(c);
    bad += halo_cases(c, rounds / 4) + (the_device.calls == 0);
    c = device_return(c);
    device_end();
    return all_right(c, bad, began);
#endif
    bad += halo_cases(c, rounds / 2);
    return all_right(c, bad, began);
}

int main(int argc, char **argv)
{
#ifdef USE_MPI
    int rounds = 30;
#else
    int rounds = argc > 1 && strcmp(argv[1], "long") == 0 ? 1500 : 60;
#endif
#ifdef DEVICE_MEMORY
    return rank_program(argc, argv, everything, &rounds, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, &rounds, 8, 4, NULL);
#endif
}
