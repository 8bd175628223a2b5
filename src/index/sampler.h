/* SPDX-License-Identifier: MIT-0 */
/* sampler - which sample of a data set a rank reads next: torch's DistributedSampler and randperm
 * bit for bit, Megatron's consecutive batches, exact coverage, resuming inside an epoch, and a
 * shuffle that needs no memory. */
#ifndef DPARI_INDEX_SAMPLER_H
#define DPARI_INDEX_SAMPLER_H

#include "../base/base.h"

/* What becomes of the samples that the ranks cannot share evenly. */
enum {
    DPAR_SAMPLES_PAD,  /* begin again until they can: some are read twice. torch's default */
    DPAR_SAMPLES_DROP, /* leave them out. torch's and Megatron's drop_last */
    DPAR_SAMPLES_EXACT /* each exactly once: ranks' numbers differ by up to `run`, so that metrics
                          are exact, and collectives must stop after dpar_sampler_common samples */
};

/* Zero it, fill it in, and let dpar_sampler_init judge it. Positions first, first + 1, ... of an
 * epoch's order are dealt to the ranks in turn, `run` at a time.
 * torch: rest, count, ranks. Megatron: run = micro-batch, DROP, or EXACT for drop_last=False. To
 * resume, also on another number of ranks: first = the positions consumed so far (what
 * dpar_sampler_consumed says); on the same number it goes on exactly as it would have. */
typedef struct dpar_sampler {
    int32_t rest;    /* DPAR_SAMPLES_PAD, ... */
    int32_t ranks;   /* that read: the data-parallel ones, not all */
    int64_t count;   /* samples of an epoch, 0..2^62 */
    int64_t first;   /* already consumed, by all ranks together */
    int64_t run;     /* 0 or 1: rank r takes r, r + ranks, ... (torch). A micro-batch: runs of it */
    int32_t shuffle; /* 1: dpar_sampler_at gives what lies at a position in an order of `seed` and
                        `epoch` that needs no memory, the same on every machine (a Feistel network;
                        not for secrets). 0: the position; the order is the caller's: 0, 1, 2, ...,
                        or an array that dpar_sampler_shuffle filled */
    int32_t low, high; /* private */
    uint64_t seed, epoch;
    uint64_t key; /* private */
} dpar_sampler;

/* E_ARG, E_RANGE with a sentence; *s is written on success only. Not collective. O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *s, dpar_why *why);
/* Samples that `rank` reads: never fewer than a later rank. 0 outside. O(1). */
DPAR_API int64_t dpar_sampler_size(const dpar_sampler *s, int32_t rank);
/* What every rank reads in whole runs: collectives that each sample or batch needs are safe so far.
 * After that some ranks have a shorter batch or none: the hang of a last, partial batch. O(1). */
DPAR_API int64_t dpar_sampler_common(const dpar_sampler *s);
/* The k-th sample that `rank` reads, 0..count-1: its position, or with `shuffle` what lies there;
 * -1 past its last. O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *s, int32_t rank, int64_t k);
/* Positions consumed when each rank has read k samples, k a multiple of run (or all it has): what a
 * checkpoint must remember. At most count. -1 for another k. O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *s, int64_t k);

/* The order of an epoch in torch, bit for bit: torch.randperm(count) on the CPU after
 * manual_seed(seed), into order[0 .. count-1]: below 214748364 elements Fisher-Yates with a 32-bit
 * draw each, from there on inside out with 64-bit draws, of MT19937, the generator of C++'s
 * std::mt19937. DistributedSampler's seed for an epoch is seed + epoch; only the low 32 bits count.
 * scratch: the generator's state. E_ARG with a sentence for a negative count. O(count). */
typedef struct dpar_mt19937 {
    uint32_t word[624]; /* private, as all of it; 2.5 KB, the caller's */
    int32_t at;         /* of the next word; 624: make new ones */
} dpar_mt19937;
DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why);

#endif
