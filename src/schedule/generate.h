/* SPDX-License-Identifier: MIT-0 */
/* generate - the published pipeline orders by name: who computes what after what.
 *
 *     static int64_t memory[1000];
 *     dpar_schedule s;
 *     dpar_schedule_make(memory, sizeof memory, "zbv", 4, 8, &s, &why);    4 ranks, 8 micro-batches
 *
 * A dpar_schedule_desc says more: stages a rank, groups, slices, where stages are.
 * dpar_schedule_lower adds messages, dpar_schedule_simulate times. */
#ifndef DPARI_SCHEDULE_GENERATE_H
#define DPARI_SCHEDULE_GENERATE_H

#include "schedule.h"

/* The rules: p ranks, v stages a rank, m micro-batches, a rank r; F, B, I, W as in schedule.h.
 * "Live" are the activations that a rank holds at most, in stages x micro-batches: from F to B or
 * W. */
enum {
    /* All F, then all B in the same order (PyTorch, DeepSpeed), with `lifo` from the last
     * micro-batch to the first (as Huang 2019 draws it). Live: m. */
    DPAR_SCHEDULE_GPIPE = 1,
    /* p-1-r F ahead, then F and B in turn (PipeDream-flush; Narayanan 2021). Live: p-r. Fewer
     * micro-batches than ranks are fine. */
    DPAR_SCHEDULE_1F1B,
    /* v stages a rank: r, r+p, r+2p, ... Micro-batches go in groups of N (`group`), each group
     * through all of a rank's stages before the next. (v-1) N + 2 (p-1-r) F ahead (Narayanan 2021).
     * Live: one more than are ahead. */
    DPAR_SCHEDULE_INTERLEAVED,
    /* All micro-batches through a rank's first stage, then all through its second, and so on. Then
     * back, the last micro-batch first (Lamy-Poirier 2022, PyTorch's LoopedBFS). Live: m v. */
    DPAR_SCHEDULE_BREADTH_FIRST,
    /* Zero bubble by hand (Qi 2023), I and W apart: 1F1B's start, and the W of an I comes r
     * micro-batches after it. Live: p on every rank. Also called ZB-1P. */
    DPAR_SCHEDULE_ZB_H1,
    /* The same with 2 (p-1-r) F ahead and W 2 r behind. With F = I = W no rank pauses between its
     * first F and its last W. Live: 2p-1 on every rank. Also called ZB-2P. */
    DPAR_SCHEDULE_ZB_2P,
    /* Zero bubble on a V: a rank has stages r and 2p-1-r. Below 2p-1 micro-batches it is the list
     * of 2p-1 with the others left out. Live: 2p. */
    DPAR_SCHEDULE_ZBV,
    /* The same V with half and a third of the memory (Qi 2024). A block of 6 slots a micro-batch is
     * repeated, then moved to the front where memory allows. Live: 2 ((p+2)/2), 2 ((p+4)/3),
     * rounded down as in C. */
    DPAR_SCHEDULE_V_HALF,
    DPAR_SCHEDULE_V_MIN,
    /* Two pipelines in opposite directions, stages 0 .. p-1 and p .. 2p-1, with half the
     * micro-batches through each. F of one runs together with B of the other (DeepSeek 2024). p and
     * m even, m >= 2p. Live: p+1. */
    DPAR_SCHEDULE_DUALPIPE,
    /* The same folded onto a V: m >= 2p. Live: 2p+1. */
    DPAR_SCHEDULE_DUALPIPEV,
    /* 1F1B with 2 (p-1-r) F ahead: latency between ranks is paid once, not for each micro-batch
     * (Alpa's overlap-friendly 1F1B). Live: 2 (p-r) - 1. */
    DPAR_SCHEDULE_EAGER_1F1B,
    /* ZB-H1 with v stages a rank, grouped as INTERLEAVED, (v-1) N + p-1-r F ahead (PyTorch's
     * InterleavedZeroBubble). Live with N = p: v p. */
    DPAR_SCHEDULE_INTERLEAVED_ZB,
    /* V_HALF with whole backwards: 2/3 of 1F1B's memory (Qi 2024). Live: 2 (2p/3 + 1), rounded down
     * as in C. */
    DPAR_SCHEDULE_1F1B_V,
    /* INTERLEAVED (v = 1: EAGER_1F1B) with one F more ahead. So each F runs together with a B that
     * does not need it (Megatron's overlap of experts' all-to-all). */
    DPAR_SCHEDULE_MOE_OVERLAP,
    /* 1F1B over slices of the sequence: p-2-r + slices F ahead. Of a micro-batch the last slice
     * goes back first (Sun 2024). Live: p-1-r + slices, of slices. */
    DPAR_SCHEDULE_SEQ1F1B,
    /* Two 1F1B pipelines in opposite directions (Li 2021). Units of p micro-batches follow each
     * other: micro-batches u p .. u p + p/2 - 1 of unit u go down, the rest up. F and B take equal
     * slots. p even. Live: p/2+1 on the outer ranks, p on the inner. */
    DPAR_SCHEDULE_CHIMERA,
    /* Inference: only F, a rank's stages one after another. */
    DPAR_SCHEDULE_FORWARD_ONLY,
    DPAR_SCHEDULE_END /* one past the last: rules are 1 to DPAR_SCHEDULE_END - 1, 0 is none */
};

/* A schedule to be made. Zero it, then set rule, ranks and micros; 0 elsewhere is the rule's own.
 * It has ranks x chunks stages; bidirectional rules have 2 x ranks, in two chains. */
typedef struct dpar_schedule_desc {
    int32_t rule;   /* DPAR_SCHEDULE_GPIPE, ...; must be said */
    int32_t ranks;  /* 1 to 65535 */
    int32_t micros; /* 1 to 65535; SEQ1F1B: x slices */
    /* Stages a rank. Any for INTERLEAVED, BREADTH_FIRST, INTERLEAVED_ZB (0: 2), MOE_OVERLAP and
     * FORWARD_ONLY (0: 1); 2 for the rules on a V or in two directions; 1 for the others. */
    int32_t chunks;
    /* INTERLEAVED, INTERLEAVED_ZB, MOE_OVERLAP: micro-batches of a group, at least `ranks`; 0:
     * ranks. Fewer in all than `ranks` are one group.
     *
     * A last group of `ranks` or more may be shorter (Megatron's rule). When fewer would be left,
     * the full groups share them as evenly as possible, the first ones getting one more. PyTorch
     * does so where all come out equal: 10 on 4 ranks are 5 and 5. */
    int32_t group;
    int32_t slices; /* SEQ1F1B: slices of a micro-batch; 0: 2 */
    int32_t lifo;   /* GPIPE: 1: backward from the last micro-batch to the first */
    /* [stages]: the rank of each stage. NULL: stage s on rank s mod p; V and bidirectional: there
     * and back. GPIPE, BREADTH_FIRST and FORWARD_ONLY take any map. The others take that one with
     * its ranks relabelled: what the rule puts on one rank is on one rank. */
    const uint16_t *rank_of;
    int32_t stages; /* BREADTH_FIRST, FORWARD_ONLY with rank_of: stages of all ranks; 0: ranks x
                       chunks */
} dpar_schedule_desc;

/* Bytes of memory that dpar_schedule_generate takes: dpar_schedule_bytes, and for V_HALF, V_MIN and
 * 1F1B_V 88 m + 72 p + 248 bytes a rank to work in. -1 with a sentence where there is no such
 * schedule. O(stages). */
DPAR_API int64_t dpar_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why);
/* Makes the schedule in mem (aligned as for int64_t): F, B, I and W, no messages, no idle cells.
 * mem behind the schedule's own bytes is free again. E_ARG, E_DIVIDE, E_RANGE: there is no such
 * schedule. E_ROOM. O(actions); V_HALF, V_MIN, 1F1B_V O(actions + p^2), more where much moves. */
DPAR_API dpar_status dpar_schedule_generate(dpar_schedule *schedule,
                                            const dpar_schedule_desc *order, void *mem,
                                            int64_t bytes, dpar_why *why);

/* The name of a rule: "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-2p", "zbv",
 * "v-half", "v-min", "dualpipe", "dualpipev", "eager-1f1b", "interleaved-zb", "1f1b-v",
 * "moe-overlap", "seq1f1b", "chimera", "forward-only". "?" for any other number. Static text. */
DPAR_API const char *dpar_schedule_name(int32_t rule);
/* The rule of a name: sets order->rule and order->lifo, nothing else. Case, '-', '_' and a leading
 * "Schedule" do not matter, so PyTorch's class names do. E_UNKNOWN lists the names. O(rules).
 *
 * Further names: gpipe-lifo, interleaved-1f1b, bfs, looped-bfs, zb-1p, zb1p, zb-h2, zb2p, zb-v,
 * zbv-zero-bubble, izb, interleaved-zero-bubble, flexible-interleaved-1f1b, eager, v1f1b,
 * overlap-1f1b, seq-1f1b, inference. */
DPAR_API dpar_status dpar_schedule_find(dpar_schedule_desc *order, const char *name, dpar_why *why);

/* A schedule by name, all else the rule's own: dpar_schedule_find and dpar_schedule_generate in
 * one. mem: aligned as for int64_t; E_ROOM says how many bytes. Other errors and cost as theirs. */
DPAR_API dpar_status dpar_schedule_make(void *mem, int64_t bytes, const char *name, int32_t ranks,
                                        int32_t micros, dpar_schedule *s, dpar_why *why);

#endif
