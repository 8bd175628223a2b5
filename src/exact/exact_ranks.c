/* SPDX-License-Identifier: MIT-0 */
/* Computes terms over the ranks of a communicator. Each rank adds its elements to sums of its own,
 * normalizes them, and an all-reduce of integers adds the words that the types can reach. A last
 * word counts the ranks that found a wrong argument, so that all ranks fail then. */
#include "exact_ranks.h"

#include "../comm/agree.h"
#include "exact_bins.h"

enum { DPARI_EX_SPECIAL = DPAR_EXACT_WORDS - DPAR_EXACT_DIGITS };

/* The words of several sums, and the number of ranks that have failed. */
typedef struct dpari_ex_message {
    int64_t word[DPAR_EXACT_TERMS * DPAR_EXACT_WORDS + 1];
    int64_t words;
    uint64_t hash; /* of what all ranks must pass */
} dpari_ex_message;

/* Copies words between a sum and a message, from digit `first` to the one before `last`. */
static void dpari_ex_copy(dpar_exact *sum, dpari_ex_message *message, int32_t first, int32_t last,
                          int into_message)
{
    int32_t d;
    for (d = first; d < DPAR_EXACT_WORDS; d++) {
        d = d == last ? DPAR_EXACT_DIGITS : d;
        if (into_message) {
            message->word[message->words++] = sum->word[d];
        } else {
            sum->word[d] = message->word[message->words++];
        }
    }
}

/* Adds a message over all ranks. If a rank has failed, all ranks return an error. */
static DPARI_COLD dpar_status dpari_ex_reduce(dpar_comm *comm, dpari_ex_message *message,
                                              dpar_status status, dpar_why *why)
{
    dpar_call call;
    dpar_status posted;
    message->word[message->words++] = status < 0;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_I64;
    call.op = DPAR_SUM;
    call.in = message->word;
    call.out = message->word;
    call.count = message->words;
    posted = dpari_post_alike(comm, &call, message->hash,
                              "exact: kinds, types or numbers of terms differ", NULL);
    if (posted < 0) {
        return posted;
    }
    if (message->word[message->words - 1] != 0) {
        status = dpari_agree(comm, status, why);
        return dpari_repeat(status, &comm->why, why->text);
    }
    return DPAR_OK;
}

/* Computes at most DPAR_EXACT_TERMS terms. Returns their number in *done. */
static DPARI_COLD dpar_status dpari_ex_some(dpar_comm *comm, dpar_status status, dpar_why *why,
                                            const dpar_exact_term *terms, int32_t count,
                                            double *results)
{
    dpari_ex_message message;
    dpar_exact sum;
    int32_t i, first, last;
    message.words = 0;
    message.hash = dpari_hash(0, count);
    for (i = 0; i < count; i++) {
        const dpar_exact_term *term = &terms[i];
        message.hash = dpari_hash(dpari_hash(message.hash, term->kind), term->type);
        if (dpari_ex_format_of(term->type).bytes == 0) {
            continue; /* this rank has failed */
        }
        dpari_zero(&sum, sizeof sum);
        if (status == DPAR_OK) {
            dpar_exact_add_term(&sum, term);
        }
        dpari_ex_range(term->type, term->kind != DPAR_EXACT_SUM, &first, &last);
        dpari_ex_carry(sum.word, first, last);
        dpari_ex_copy(&sum, &message, first, last, 1);
    }
    status = dpari_ex_reduce(comm, &message, status, why);
    if (status < 0) {
        return status;
    }
    message.words = 0;
    for (i = 0; i < count; i++) {
        const dpar_exact_term *term = &terms[i];
        dpari_ex_range(term->type, term->kind != DPAR_EXACT_SUM, &first, &last);
        dpari_zero(&sum, sizeof sum);
        dpari_ex_copy(&sum, &message, first, last, 0);
        results[i] = term->kind == DPAR_EXACT_NORM ? dpar_exact_root(&sum, term->type)
                                                   : dpar_exact_result(&sum, term->type);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_ex_many(dpar_comm *comm, dpar_status status,
                                                    dpar_why *why, const dpar_exact_term *terms,
                                                    int32_t count, double *results)
{
    int32_t i;
    if (!terms || count < 0) {
        count = 0;
    }
    for (i = 0; i < count && status == DPAR_OK; i++) {
        status = dpari_ex_check(&terms[i], why);
    }
    if (status == DPAR_OK && !results) {
        status = dpari_wrong(why, "exact: the address of the results is NULL");
    }
    i = 0;
    do {
        const int32_t some = (int32_t)dpari_least(count - i, DPAR_EXACT_TERMS);
        status = dpari_ex_some(comm, status, why, terms + i, some, results + i);
        i += some;
    } while (status == DPAR_OK && i < count);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_many(dpar_comm *comm, const dpar_exact_term *terms,
                                                int32_t count, double *results)
{
    dpar_status status = DPAR_OK;
    dpar_why why;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if (count < 0 || (count > 0 && !terms)) {
        status =
            dpari_wrong(&why, "exact: %d terms at %s: count must be 0 or more, and terms not NULL",
                        count, terms ? "an address" : "NULL");
    }
    return dpari_ex_many(comm, status, &why, terms, count, results);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_sum(dpar_comm *comm, const void *x, int64_t count,
                                               int32_t type, double *sum)
{
    const dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    return dpar_exact_many(comm, &term, 1, sum);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_dot(dpar_comm *comm, const void *x, const void *y,
                                               int64_t count, int32_t type, double *dot)
{
    const dpar_exact_term term = dpar_exact_dot_of(x, y, count, type);
    return dpar_exact_many(comm, &term, 1, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_norm(dpar_comm *comm, const void *x, int64_t count,
                                                int32_t type, double *norm)
{
    const dpar_exact_term term = dpar_exact_norm_of(x, count, type);
    return dpar_exact_many(comm, &term, 1, norm);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_all_reduce(dpar_comm *comm, dpar_exact *sums,
                                                      int32_t count)
{
    dpar_status status = DPAR_OK;
    dpar_why why;
    int32_t i, at = 0;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if (count < 0 || (count > 0 && !sums)) {
        status =
            dpari_wrong(&why, "exact: %d sums at %s: count must be 0 or more, and sums not NULL",
                        count, sums ? "an address" : "NULL");
        count = 0;
    }
    do {
        const int32_t some = (int32_t)dpari_least(count - at, DPAR_EXACT_TERMS);
        dpari_ex_message message;
        message.words = 0;
        message.hash = dpari_hash(1, count);
        for (i = at; i < at + some; i++) {
            dpar_exact_normalize(&sums[i]);
            dpari_ex_copy(&sums[i], &message, 0, DPAR_EXACT_DIGITS, 1);
        }
        status = dpari_ex_reduce(comm, &message, status, &why);
        message.words = 0;
        for (i = at; i < at + some && status == DPAR_OK; i++) {
            dpari_ex_copy(&sums[i], &message, 0, DPAR_EXACT_DIGITS, 0);
            dpar_exact_normalize(&sums[i]);
        }
        at += some;
    } while (status == DPAR_OK && at < count);
    return status;
}
