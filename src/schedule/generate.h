/* SPDX-License-Identifier: MIT-0 */
/* generate - makes the published pipeline schedules by name.
 *
 *     static int64_t memory[1000];
 *     dpar_schedule_desc desc = {0};
 *     desc.name = "zbv";
 *     desc.ranks = 4;
 *     desc.micro_batches = 8;
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);
 *
 * The descriptor also sets stages per rank, groups, slices and the rank of each stage.
 * Afterwards dpar_schedule_lower adds messages, and dpar_schedule_simulate computes times.
 */
#ifndef DPARI_SCHEDULE_GENERATE_H
#define DPARI_SCHEDULE_GENERATE_H

#include "schedule.h"

/* The rules, for p ranks, v stages per rank, m micro-batches and a rank r; F, B, I, W as in
 * schedule.h. "Live" is the largest number of activations that a rank holds at one time, in stages
 * x micro-batches. Each is held from its F to its B or W. */
enum {
    /* GPipe: all F, then all B in the same order (PyTorch, DeepSpeed), or with `lifo` from the last
     * micro-batch to the first (as drawn in Huang 2019). Live: m. */
    DPAR_SCHEDULE_GPIPE = 1,
    /* 1F1B: p-1-r F, then F and B in turn (PipeDream-flush; Narayanan 2021). Fewer micro-batches
     * than ranks are allowed. Live: p-r. */
    DPAR_SCHEDULE_1F1B,
    /* Interleaved 1F1B: a rank has the v stages r, r+p, r+2p and so on. Micro-batches run in groups
     * of N (`group`), and each group passes all stages of a rank before the next group starts. A
     * rank starts with (v-1) N + 2 (p-1-r) F (Narayanan 2021). Live: one more than that. */
    DPAR_SCHEDULE_INTERLEAVED,
    /* Breadth first: all micro-batches through a rank's first stage, then all through its second,
     * and so on; then back, the last micro-batch first (Lamy-Poirier 2022, PyTorch's LoopedBFS).
     * Live: m v. */
    DPAR_SCHEDULE_BREADTH_FIRST,
    /* ZB-H1 or ZB-1P, a handcrafted zero-bubble schedule (Qi 2023) with separate I and W: it starts
     * like 1F1B, and the W of an I follows r micro-batches later. Live: p on every rank. */
    DPAR_SCHEDULE_ZB_H1,
    /* ZB-2P: as ZB-H1, but it starts with 2 (p-1-r) F, and the W of an I follows 2 r micro-batches
     * later. If F = I = W, no rank pauses between its first F and its last W. Live: 2p-1 on every
     * rank. */
    DPAR_SCHEDULE_ZB_2P,
    /* ZB-V: zero bubble on a V, in which a rank has stages r and 2p-1-r. With fewer than 2p-1
     * micro-batches it is the schedule for 2p-1 without the missing ones. Live: 2p. */
    DPAR_SCHEDULE_ZBV,
    /* V-Half: the V of ZB-V with half the memory (Qi 2024). A block of 6 slots is repeated for each
     * micro-batch, then actions move forward where memory allows. Live: 2 ((p+2)/2), rounded down
     * as in C. */
    DPAR_SCHEDULE_V_HALF,
    /* V-Min: the same with a third of the memory of ZB-V. Live: 2 ((p+4)/3), rounded down as in C.
     */
    DPAR_SCHEDULE_V_MIN,
    /* DualPipe: two pipelines in opposite directions, stages 0 .. p-1 and p .. 2p-1, each with half
     * of the micro-batches. F of one runs together with B of the other (DeepSeek 2024). p and m
     * must be even, and m >= 2p. Live: p+1. */
    DPAR_SCHEDULE_DUALPIPE,
    /* DualPipeV: DualPipe folded onto a V, with m >= 2p. Live: 2p+1. */
    DPAR_SCHEDULE_DUALPIPEV,
    /* Eager 1F1B: 1F1B that starts with 2 (p-1-r) F, so that the latency between ranks counts once,
     * not for each micro-batch (Alpa's overlap-friendly 1F1B). Live: 2 (p-r) - 1. */
    DPAR_SCHEDULE_EAGER_1F1B,
    /* Interleaved zero bubble: ZB-H1 with v stages per rank and the groups of INTERLEAVED. A rank
     * starts with (v-1) N + p-1-r F (PyTorch's InterleavedZeroBubble). Live with N = p: v p. */
    DPAR_SCHEDULE_INTERLEAVED_ZB,
    /* 1F1B-V: V_HALF with unsplit backwards, and 2/3 of the memory of 1F1B (Qi 2024). Live: 2 (2p/3
     * + 1), rounded down as in C. */
    DPAR_SCHEDULE_1F1B_V,
    /* MoE overlap: INTERLEAVED, or for v = 1 EAGER_1F1B, with one more F at the start, so that each
     * F runs together with a B that does not need it (Megatron's overlap of the experts'
     * all-to-all). */
    DPAR_SCHEDULE_MOE_OVERLAP,
    /* Seq1F1B: 1F1B over slices of the sequence. A rank starts with p-2-r + slices F. The backward
     * of a micro-batch begins with its last slice (Sun 2024). Live: p-1-r + slices, in slices. */
    DPAR_SCHEDULE_SEQ1F1B,
    /* Chimera: two 1F1B pipelines in opposite directions (Li 2021). Micro-batches form units of p
     * that follow each other. In unit u, micro-batches u p .. u p + p/2 - 1 pass down the ranks and
     * the others up. F and B take equal slots. p must be even. Live: p/2+1 on the outer ranks, p on
     * the inner ones. */
    DPAR_SCHEDULE_CHIMERA,
    /* Inference: only F, a rank's stages one after another. */
    DPAR_SCHEDULE_FORWARD_ONLY,
    DPAR_SCHEDULE_END /* one past the last rule; rules are 1 to DPAR_SCHEDULE_END - 1, and 0 is no
                         rule */
};

/* A schedule to be made. Zero it, then set rule or name, ranks and micro_batches; 0 in another
 * field selects the rule's own value. A schedule has ranks x chunks stages; a rule in two
 * directions has two chains of `ranks` stages. */
typedef struct dpar_schedule_desc {
    int32_t rule;          /* DPAR_SCHEDULE_GPIPE, ...; 0 selects `name` */
    int32_t ranks;         /* 1 to 65535 */
    int32_t micro_batches; /* 1 to 65535; for SEQ1F1B, micro_batches x slices at most 65535 */
    /* Stages per rank: any number for INTERLEAVED, BREADTH_FIRST and INTERLEAVED_ZB (0 selects 2),
     * and for MOE_OVERLAP and FORWARD_ONLY (0 selects 1); 2 for rules on a V or in two directions;
     * 1 for the others. */
    int32_t chunks;
    /* For INTERLEAVED, INTERLEAVED_ZB and MOE_OVERLAP, the micro-batches of a group, at least
     * `ranks`; 0 selects `ranks`. If there are fewer micro-batches than `ranks`, they are one
     * group.
     *
     * The last group may be shorter if it has at least `ranks` micro-batches (Megatron's rule).
     * Otherwise its micro-batches are shared among the full groups as evenly as possible, and the
     * first groups get one more. If all groups are then equal, the result is also PyTorch's: 10
     * micro-batches on 4 ranks form groups of 5 and 5.
     */
    int32_t group;
    int32_t slices; /* SEQ1F1B: slices of a micro-batch; 0 selects 2 */
    int32_t lifo;   /* GPIPE: 1 runs backwards from the last micro-batch to the first */
    /* [stages], the rank of each stage. NULL selects the rule's own map: DPAR_STAGE_MAP_LOOP, _V or
     * _BIDIRECTIONAL. GPIPE, BREADTH_FIRST and FORWARD_ONLY accept any map. The other rules accept
     * their own map with renumbered ranks, so that stages which the rule puts on one rank stay
     * together. */
    const uint16_t *rank_of;
    /* For BREADTH_FIRST and FORWARD_ONLY with rank_of, the stages of all ranks together; 0 selects
     * ranks x chunks. */
    int32_t stages;
    /* The name of the rule, as for dpar_schedule_find, which also sets `lifo`. Read only by
     * dpar_schedule_generate, and only if `rule` is 0. */
    const char *name;
} dpar_schedule_desc;

/* Makes a schedule in the caller's memory. It has F, B, I and W, but no messages and no idle
 * actions.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs. After the call only the bytes of the schedule itself are
 *       in use. V_HALF, V_MIN and 1F1B_V need another 88 m + 72 p + 248 bytes per rank during the
 *       call.
 *
 * Fails with DPAR_E_UNKNOWN if there is no rule of that name, and with DPAR_E_ARG, DPAR_E_DIVIDE or
 * DPAR_E_RANGE if there is no such schedule. Fails with DPAR_E_ROOM if `bytes` is too small. Costs
 * O(actions); V_HALF, V_MIN and 1F1B_V cost O(actions + p^2), and more if many actions move.
 */
DPAR_API dpar_status dpar_schedule_generate(dpar_schedule *schedule, const dpar_schedule_desc *desc,
                                            void *mem, int64_t bytes, dpar_why *why);

/* Returns the name of a rule: "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-2p",
 * "zbv", "v-half", "v-min", "dualpipe", "dualpipev", "eager-1f1b", "interleaved-zb", "1f1b-v",
 * "moe-overlap", "seq1f1b", "chimera", "forward-only". Returns "?" for any other number. The text
 * is static. */
DPAR_API const char *dpar_schedule_name(int32_t rule);

/* Finds the rule with a given name, and sets desc->rule and desc->lifo. Case, '-', '_' and a
 * leading "Schedule" do not matter, so PyTorch's class names are found too. Fails with
 * DPAR_E_UNKNOWN; the message lists the names. Costs O(rules).
 *
 * Further names are gpipe-lifo, interleaved-1f1b, bfs, looped-bfs, zb-1p, zb1p, zb-h2, zb2p, zb-v,
 * zbv-zero-bubble, izb, interleaved-zero-bubble, flexible-interleaved-1f1b, eager, v1f1b,
 * overlap-1f1b, seq-1f1b, inference.
 */
DPAR_API dpar_status dpar_schedule_find(dpar_schedule_desc *desc, const char *name, dpar_why *why);

#endif
