/* SPDX-License-Identifier: MIT-0 */
/* collective_textbook - what collectives cost by the textbooks: alpha-beta-gamma formulas (MPICH's
 * comments; Thakur, Rabenseifner, Gropp 2005): alpha seconds a message, beta seconds a byte, gamma
 * seconds a byte reduced; and nccl-tests' bus factor: bytes / time * factor = bus bandwidth. Bars
 * for dpar_collective_predict, which models the machine instead. Included behind the
 * implementation.
 */
#ifndef COLLECTIVE_TEXTBOOK_H
#define COLLECTIVE_TEXTBOOK_H

#include "dpar.h"

enum {
    BOOK_RING,
    BOOK_RECURSIVE_DOUBLING,
    BOOK_RECURSIVE_HALVING,
    BOOK_RABENSEIFNER,
    BOOK_BINOMIAL,
    BOOK_BRUCK,
    BOOK_PAIRWISE,
    BOOK_SCATTER_DOUBLING, /* broadcast: scatter + recursive-doubling all-gather */
    BOOK_SCATTER_RING,     /* broadcast: scatter + ring all-gather */
    BOOK_CHAIN,            /* pipelined chain with the best number of pieces */
    BOOK_TREE,             /* pipelined double binary tree */
    BOOK_IN_SWITCH,        /* NVLS, SHARP */
    BOOK_DISSEMINATION
};

/* 2 (n-1)/n * bytes / Bps, 0 for n = 1: no latency, no saturation. */
static double ring_all_reduce(double bytes, int32_t n, double Bps)
{
    return n > 1 && Bps > 0.0 ? 2.0 * (n - 1.0) / n * bytes / Bps : 0.0;
}

static double bus_factor(int32_t kind, int32_t n)
{
    double p = n;
    if (n < 2) {
        return 1.0;
    }
    switch (kind) {
    case DPAR_ALL_REDUCE: return 2.0 * (p - 1.0) / p;
    case DPAR_ALL_GATHER:
    case DPAR_REDUCE_SCATTER:
    case DPAR_ALL_TO_ALL:
    case DPAR_GATHER:
    case DPAR_SCATTER: return (p - 1.0) / p;
    default: return 1.0;
    }
}

/* ---- textbook ------------------------------------------------------------------------------- */

/* The terms every formula is made of. n = bytes, p = ranks, lg = log2 p. */
typedef struct dpari_terms {
    double p, lg, up, down; /* log2, rounded up and down */
    double n, alpha, beta, gamma;
    int32_t power; /* p is a power of two */
} dpari_terms;

static double dpari_all_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case BOOK_RECURSIVE_DOUBLING: return t->up * (t->alpha + t->n * (t->beta + t->gamma));
    case BOOK_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 2.0) * t->alpha + (2.0 * part + 2.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    case BOOK_RING:
        return 2.0 * (t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma;
    case BOOK_TREE: return 2.0 * t->up * t->alpha + 2.0 * t->n * t->beta;
    case BOOK_IN_SWITCH: return 2.0 * t->alpha + t->n * (t->p + 1.0) / t->p * t->beta;
    default: return -1.0;
    }
}

static double dpari_gather_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case BOOK_RING: return (t->p - 1.0) * t->alpha + t->n * part * t->beta;
    case BOOK_RECURSIVE_DOUBLING: return t->power ? t->lg * t->alpha + t->n * part * t->beta : -1.0;
    case BOOK_BRUCK: return t->up * t->alpha + t->n * part * t->beta;
    default: return -1.0;
    }
}

static double dpari_scatter_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, both = t->beta + t->gamma;
    switch (algorithm) {
    case BOOK_RECURSIVE_HALVING:
        return t->power ? t->lg * t->alpha + t->n * part * both
                        : (t->down + 2.0) * t->alpha + t->n * (1.0 + part) * both;
    case BOOK_PAIRWISE:
    case BOOK_RING: return (t->p - 1.0) * t->alpha + t->n * part * both;
    case BOOK_RECURSIVE_DOUBLING: return t->lg * t->alpha + t->n * (t->lg - part) * both;
    default: return -1.0;
    }
}

static double dpari_broadcast_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p, k;
    switch (algorithm) {
    case BOOK_BINOMIAL: return t->up * (t->alpha + t->n * t->beta);
    case BOOK_SCATTER_DOUBLING: return 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta;
    case BOOK_SCATTER_RING: return (t->lg + t->p - 1.0) * t->alpha + 2.0 * t->n * part * t->beta;
    case BOOK_CHAIN: /* the best number of pieces */
        k = t->alpha > 0.0 ? dpari_sqrt((t->p - 2.0) * t->n * t->beta / t->alpha) : 1e9;
        k = k < 1.0 ? 1.0 : k;
        return (t->p - 2.0 + k) * (t->alpha + t->n / k * t->beta);
    default: return -1.0;
    }
}

static double dpari_reduce_textbook(int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (algorithm) {
    case BOOK_BINOMIAL: return t->up * (t->alpha + t->n * t->beta + t->n * t->gamma);
    case BOOK_RABENSEIFNER:
        return t->power
                   ? 2.0 * t->lg * t->alpha + 2.0 * t->n * part * t->beta + t->n * part * t->gamma
                   : (2.0 * t->down + 1.0) * t->alpha + (2.0 * part + 1.0) * t->n * t->beta +
                         t->n * (1.0 + part) * t->gamma;
    default: return -1.0;
    }
}

static double dpari_textbook(int32_t kind, int32_t algorithm, const dpari_terms *t)
{
    double part = (t->p - 1.0) / t->p;
    switch (kind) {
    case DPAR_ALL_REDUCE: return dpari_all_reduce_textbook(algorithm, t);
    case DPAR_ALL_GATHER: return dpari_gather_textbook(algorithm, t);
    case DPAR_REDUCE_SCATTER: return dpari_scatter_textbook(algorithm, t);
    case DPAR_BROADCAST: return dpari_broadcast_textbook(algorithm, t);
    case DPAR_REDUCE: return dpari_reduce_textbook(algorithm, t);
    case DPAR_ALL_TO_ALL:
        return algorithm == BOOK_PAIRWISE ? (t->p - 1.0) * t->alpha + t->n * part * t->beta
               : algorithm == BOOK_BRUCK  ? t->lg * t->alpha + 0.5 * t->n * t->lg * t->beta
                                          : -1.0;
    case DPAR_GATHER:
    case DPAR_SCATTER:
        return algorithm == BOOK_BINOMIAL ? t->up * t->alpha + t->n * part * t->beta : -1.0;
    case DPAR_SEND_RECV: return algorithm == BOOK_PAIRWISE ? t->alpha + t->n * t->beta : -1.0;
    default: return algorithm == BOOK_DISSEMINATION ? t->up * t->alpha : -1.0;
    }
}

static dpar_status collective_textbook(int32_t kind, int32_t algorithm, int32_t n, double bytes,
                                       double alpha, double beta, double gamma, double *seconds)
{
    dpari_terms t;
    double s;
    if (n < 1 || kind <= DPAR_NO_CALL || kind >= DPAR_COLLECTIVES || !(bytes >= 0.0) ||
        !(alpha >= 0.0) || !(beta >= 0.0) || !(gamma >= 0.0)) {
        return DPAR_E_ARG;
    }
    t.p = n;
    t.lg = dpari_log2(n);
    t.up = dpari_ceil_log2(n);
    t.power = ((int32_t)1 << (n > 1 ? dpari_ceil_log2(n) : 0)) == n;
    t.down = t.power ? t.up : t.up - 1.0;
    t.n = bytes;
    t.alpha = alpha;
    t.beta = beta;
    t.gamma = gamma;
    s = dpari_textbook(kind, algorithm, &t);
    if (s < 0.0) {
        return DPAR_E_UNKNOWN;
    }
    *seconds = n == 1 ? 0.0 : s;
    return DPAR_OK;
}

#endif
