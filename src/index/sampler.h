/* SPDX-License-Identifier: MIT-0 */
/* sampler - computes which sample of a data set a rank reads next: as torch's DistributedSampler
 * and randperm bit for bit, or as Megatron's consecutive batches. It can also read each sample
 * exactly once, resume inside an epoch, and shuffle without memory.
 *
 *     dpar_sampler s = {0};
 *     s.count = 50000;                            samples
 *     s.ranks = 8;
 *     s.shuffle = 1;
 *     s.epoch = 3;
 *     dpar_sampler_init(&s, &why);
 *     for (k = 0; (i = dpar_sampler_at(&s, rank, k)) >= 0; k++)
 */
#ifndef DPARI_INDEX_SAMPLER_H
#define DPARI_INDEX_SAMPLER_H

#include "../base/base.h"

/* What is done with the samples that the ranks cannot share evenly. */
enum {
    DPAR_SAMPLER_PAD,  /* repeat samples from the beginning until they can, which is torch's default
                        */
    DPAR_SAMPLER_DROP, /* leave them out, as drop_last of torch and Megatron does */
    /* Read each sample exactly once, so that metrics are exact. The numbers of samples of two ranks
     * then differ by up to `run`, and collectives must stop after dpar_sampler_common_count
     * samples. */
    DPAR_SAMPLER_EXACT
};

/* A distribution of the samples of an epoch over ranks. Zero it, set the fields, and call
 * dpar_sampler_init. Positions first, first + 1, ... of the epoch's order are dealt to the ranks in
 * turn, `run` at a time.
 *
 * For torch set remainder, count and ranks. For Megatron set run to the micro-batch and remainder
 * to DPAR_SAMPLER_DROP, or DPAR_SAMPLER_EXACT for drop_last=False. To resume, set first to
 * dpar_sampler_consumed. The same number of ranks then continues exactly as it would have; another
 * number of ranks may resume, too.
 */
typedef struct dpar_sampler {
    int32_t remainder; /* DPAR_SAMPLER_PAD, ... */
    int32_t ranks;     /* ranks that read samples: the data-parallel ones */
    int64_t count;     /* samples of an epoch, 0..2^62 */
    int64_t first;     /* number of positions that all ranks together have consumed */
    /* Consecutive positions that a rank gets at a time, such as Megatron's micro-batch. With 0 or 1
     * rank r reads r, r + ranks, ..., as in torch. */
    int64_t run;
    /* With 0 dpar_sampler_at returns a position in the caller's order, which is 0, 1, 2, ... or an
     * array that dpar_sampler_shuffle filled. With 1 it returns a sample, in an order that depends
     * on `seed` and `epoch`, takes no memory and is the same on every machine (a Feistel network;
     * not for secrets). */
    int32_t shuffle;
    int32_t low, high; /* private */
    uint64_t seed, epoch;
    uint64_t key; /* private */
} dpar_sampler;

/* Checks the fields of *sampler and sets its private ones. On failure *sampler is unchanged. Fails
 * with DPAR_E_ARG or DPAR_E_RANGE. Costs O(1). */
DPAR_API dpar_status dpar_sampler_init(dpar_sampler *sampler, dpar_why *why);

/* Counts the samples that a rank reads, which are at least as many as those of a later rank.
 * Returns 0 for a rank outside 0..ranks-1. Costs O(1). */
DPAR_API int64_t dpar_sampler_rank_count(const dpar_sampler *sampler, int32_t rank);

/* Counts the samples, in whole runs, that every rank reads. Up to this number a collective for each
 * sample or batch is safe. Afterwards some ranks have a shorter batch or none, and such a
 * collective hangs. Costs O(1). */
DPAR_API int64_t dpar_sampler_common_count(const dpar_sampler *sampler);

/* Finds the k-th sample that a rank reads, 0..count-1: its position, or with `shuffle` the sample
 * at that position. Returns -1 past the rank's last sample. Costs O(1). */
DPAR_API int64_t dpar_sampler_at(const dpar_sampler *sampler, int32_t rank, int64_t k);

/* Counts the positions that are consumed when each rank has read k samples, which is the number
 * that a checkpoint must store. The result is at most count. Returns -1 if k is neither a multiple
 * of `run` nor the number of all samples of a rank. Costs O(1). */
DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *sampler, int64_t k);

/* The state of MT19937, the generator std::mt19937 of C++: scratch memory of 2.5 KB for
 * dpar_sampler_shuffle. */
typedef struct dpar_mt19937 {
    uint32_t word[624]; /* private */
    int32_t at;         /* private: index of the next word; 624 if new ones must be made */
} dpar_mt19937;

/* Computes the order of an epoch in torch, bit for bit: order[0 .. count-1] becomes
 * torch.randperm(count) on the CPU after manual_seed(seed). DistributedSampler's seed for an epoch
 * is seed + epoch. Only the low 32 bits of `seed` are used.
 *
 * Below 214748364 elements the method is Fisher-Yates with one 32-bit draw for each element; from
 * there on it works inside out with 64-bit draws. Fails with DPAR_E_ARG for a negative count. Costs
 * O(count).
 */
DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why);

#endif
