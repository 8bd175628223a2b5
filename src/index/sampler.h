/* SPDX-License-Identifier: MIT-0 */
/* sampler - which sample of a data set a rank reads next: torch's DistributedSampler and randperm
 * bit for bit, or Megatron's consecutive batches. It also covers each sample exactly once, resumes
 * inside an epoch, and shuffles without memory.
 *
 *     dpar_sampler s = {0};
 *     s.count = 50000;                            samples
 *     s.ranks = 8;
 *     s.shuffle = 1;
 *     s.epoch = 3;
 *     dpar_sampler_init(&s, &why);
 *     for (k = 0; (i = dpar_sampler_at(&s, rank, k)) >= 0; k++) */
#ifndef DPARI_INDEX_SAMPLER_H
#define DPARI_INDEX_SAMPLER_H

#include "../base/base.h"

/* What happens to the samples that the ranks cannot share evenly. */
enum {
    DPAR_SAMPLER_PAD,  /* begin again until they can: some are read twice; torch's default */
    DPAR_SAMPLER_DROP, /* leave them out: drop_last of torch and Megatron */
    DPAR_SAMPLER_EXACT /* each exactly once, so that metrics are exact. Ranks' numbers differ by up
                          to `run`: collectives must stop after dpar_sampler_common_count samples */
};

/* How samples are dealt. Zero it, fill it in, and let dpar_sampler_init judge it. Positions first,
 * first + 1, ... of an epoch's order are dealt to the ranks in turn, `run` at a time.
 *
 * torch: set rest, count, ranks. Megatron: run = micro-batch, DROP; EXACT for drop_last=False. To
 * resume, set first to dpar_sampler_consumed. The same number of ranks then goes on exactly as it
 * would have; another number may resume, too. */
typedef struct dpar_sampler {
    int32_t rest;    /* DPAR_SAMPLER_PAD, ... */
    int32_t ranks;   /* ranks that read: the data-parallel ones */
    int64_t count;   /* samples of an epoch, 0..2^62 */
    int64_t first;   /* positions already consumed, by all ranks together */
    int64_t run;     /* 0 or 1: rank r takes r, r + ranks, ... (torch). Megatron: the micro-batch */
    int32_t shuffle; /* 0: dpar_sampler_at gives a position. The order is the caller's: 0, 1, 2,
                        ..., or what dpar_sampler_shuffle filled. 1: it gives a sample, in an order
                        of `seed` and `epoch` that takes no memory and is the same on every machine
                        (a Feistel network; not for secrets) */
    int32_t low, high; /* private */
    uint64_t seed, epoch;
    uint64_t key; /* private */
} dpar_sampler;

/* Judges s and fills its private part, on success only. E_ARG, E_RANGE with a sentence. Not
 * collective. O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *s, dpar_why *why);
/* Samples that `rank` reads: at least as many as a later rank. 0 outside. O(1). */
DPAR_API int64_t dpar_sampler_rank_count(const dpar_sampler *s, int32_t rank);
/* Samples that every rank reads, in whole runs: so far collectives for each sample or batch are
 * safe. After that some ranks have a shorter batch or none, and such a collective hangs. O(1). */
DPAR_API int64_t dpar_sampler_common_count(const dpar_sampler *s);
/* The k-th sample that `rank` reads: its position, or with `shuffle` what lies there, 0..count-1.
 * -1 past its last. O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *s, int32_t rank, int64_t k);
/* Positions consumed when each rank has read k samples: what a checkpoint must remember. At most
 * count. k is a multiple of run, or all that the rank has; -1 for another k. O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *s, int64_t k);

/* The order of an epoch in torch, bit for bit: order[0 .. count-1] becomes torch.randperm(count) on
 * the CPU after manual_seed(seed). DistributedSampler's seed for an epoch is seed + epoch. Only the
 * low 32 bits count. E_ARG with a sentence: a negative count. O(count).
 *
 * The generator is MT19937, std::mt19937 of C++; `scratch` is its state. Below 214748364 elements
 * it is Fisher-Yates with a 32-bit draw each, from there on inside out with 64-bit draws. */
typedef struct dpar_mt19937 {
    uint32_t word[624]; /* private, all of it; 2.5 KB, the caller's */
    int32_t at;         /* of the next word; 624: make new ones */
} dpar_mt19937;
DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why);

#endif
