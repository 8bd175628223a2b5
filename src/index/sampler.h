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

/* A value. Positions first, first + 1, ... of an epoch's order are dealt to the ranks in turn,
 * `run` at a time. The order is the caller's: 0, 1, 2, ..., or an array that dpar_randperm filled,
 * or a dpar_permutation. */
typedef struct dpar_sampler {
    int32_t rest;  /* DPAR_SAMPLES_PAD, ... */
    int32_t ranks; /* that read: the data-parallel ones, not all */
    int64_t count; /* samples of an epoch */
    int64_t first; /* already consumed, by all ranks together */
    int64_t
        run; /* 1: rank r takes r, r + ranks, ... (torch). A micro-batch: runs of it (Megatron) */
} dpar_sampler;

/* torch: rest, count, ranks, run 1, consumed 0. Megatron: run = micro-batch, DROP, or EXACT for
 * drop_last=False. To resume, also on another number of ranks: the positions consumed so far (what
 * dpar_sampler_consumed says); on the same number it goes on exactly as it would have. E_ARG with a
 * sentence; *s is written on success only. Not collective. O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *s, int32_t rest, int64_t count, int32_t ranks,
                                       int64_t run, int64_t consumed, dpar_why *why);
/* Samples that `rank` reads: never fewer than a later rank. 0 outside. O(1). */
DPAR_API int64_t dpar_sampler_size(const dpar_sampler *s, int32_t rank);
/* What every rank reads in whole runs: collectives that each sample or batch needs are safe so far.
 * After that some ranks have a shorter batch or none: the hang of a last, partial batch. O(1). */
DPAR_API int64_t dpar_sampler_common(const dpar_sampler *s);
/* The position, 0..count-1, of the k-th sample that `rank` reads; -1 past its last. O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *s, int32_t rank, int64_t k);
/* Positions consumed when each rank has read k samples, k a multiple of run (or all it has): what a
 * checkpoint must remember. At most count. -1 for another k. O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *s, int64_t k);

/* ---- torch's random numbers ---- */

/* MT19937, the generator of C++'s std::mt19937 and of torch on the CPU. 2.5 KB, the caller's. */
typedef struct dpar_mt19937 {
    uint32_t word[624];
    int32_t at; /* of the next word; 624: make new ones */
} dpar_mt19937;
/* As torch.Generator().manual_seed(seed): only the low 32 bits count. DistributedSampler's seed for
 * an epoch is seed + epoch. */
DPAR_API void dpar_mt19937_init(dpar_mt19937 *g, uint64_t seed);
/* The next 32 bits. */
DPAR_API uint32_t dpar_mt19937_next(dpar_mt19937 *g);
/* torch.randperm(count, generator=g) on the CPU, into order[0 .. count-1]: below 214748364 elements
 * Fisher-Yates with a 32-bit draw each, from there on inside out with 64-bit draws. E_ARG with a
 * sentence for a negative count. O(count). */
DPAR_API dpar_status dpar_randperm(dpar_mt19937 *g, int64_t count, int64_t *order, dpar_why *why);

/* ---- a shuffle without memory ---- */

/* A permutation of 0..count-1, the same on every machine: a Feistel network over the next power of
 * two, walked until it is inside. Not for secrets. */
typedef struct dpar_permutation {
    int64_t count;
    uint64_t key;
    int32_t low, high; /* bits of the two halves */
} dpar_permutation;
/* Different (seed, epoch) give different orders. count 0..2^62. E_ARG, E_RANGE with a sentence. */
DPAR_API dpar_status dpar_permutation_init(dpar_permutation *p, int64_t count, uint64_t seed,
                                           uint64_t epoch, dpar_why *why);
/* What lies at position i, and where value v lies; -1 outside 0..count-1. O(1): fewer than two
 * walks on average. */
DPAR_API int64_t dpar_permutation_at(const dpar_permutation *p, int64_t i);
DPAR_API int64_t dpar_permutation_find(const dpar_permutation *p, int64_t v);

#endif
