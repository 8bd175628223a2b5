/* SPDX-License-Identifier: MIT-0 */
/* teams: the threads of a rank and what they do with communicators: one thread calls while the
 * others compute on the same memory; threads take turns; or all call at once, each with its own
 * world. Uses OpenMP threads if compiled with OpenMP, otherwise POSIX threads. All values are known
 * beforehand: element i of rank r in round k is value(r, k, i). */
#ifndef DPAR_TEAMS_H
#define DPAR_TEAMS_H

#define CHECK_THREADS
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

enum { TEAM = 3, TEAM_N = 3000, TEAM_RANKS = 16 };

typedef struct team {
    dpar_comm *comm[TEAM];
    void (*work)(struct team *t, int me);
    int64_t rounds, turn;
    int64_t *own, *next; /* from dpar_comm_alloc: data of this round and of the next */
    int64_t *out[TEAM];
    dpar_work posted; /* posted in one thread's turn, waited for in the next one's */
    int64_t sum[2];
    int here, met;
    pthread_cond_t all;
#if defined(_OPENMP)
    omp_lock_t turns;
#else
    pthread_mutex_t turns;
#endif
    pthread_mutex_t lock;
} team;

typedef struct team_seat {
    team *of;
    int me;
} team_seat;

static inline int64_t value(int64_t rank, int64_t round, int64_t i)
{
    return rank * 1000003 + round * 101 + i;
}

/* Returns the sum over all ranks of c. */
static inline int64_t value_sum(const dpar_comm *c, int64_t round, int64_t i)
{
    const int64_t n = c->size;
    return n * (n - 1) / 2 * 1000003 + n * (round * 101 + i);
}

static inline void team_lock(team *t)
{
#if defined(_OPENMP)
    omp_set_lock(&t->turns);
#else
    pthread_mutex_lock(&t->turns);
#endif
}

static inline void team_unlock(team *t)
{
#if defined(_OPENMP)
    omp_unset_lock(&t->turns);
#else
    pthread_mutex_unlock(&t->turns);
#endif
}

/* Waits until all threads of the team have arrived. */
static inline void team_meet(team *t)
{
#if defined(_OPENMP)
    (void)t;
#pragma omp barrier
#else
    int now;
    pthread_mutex_lock(&t->lock);
    now = t->met;
    t->here++;
    if (t->here == TEAM) {
        t->here = 0;
        t->met++;
        pthread_cond_broadcast(&t->all);
    }
    while (now == t->met) {
        pthread_cond_wait(&t->all, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
#endif
}

#if !defined(_OPENMP)
static void *team_thread(void *arg)
{
    team_seat *seat = (team_seat *)arg;
    seat->of->work(seat->of, seat->me);
    return NULL;
}
#endif

/* Runs work(t, 0 .. TEAM - 1), each in a thread; the caller's is 0. */
static inline void team_run(team *t, void (*work)(team *t, int me))
{
    t->work = work;
    t->turn = 0;
#if defined(_OPENMP)
    omp_init_lock(&t->turns);
#pragma omp parallel num_threads(TEAM)
    {
        if (omp_get_num_threads() == TEAM) {
            work(t, omp_get_thread_num());
        } else {
            CHECK_INT(omp_get_num_threads(), TEAM);
        }
    }
    omp_destroy_lock(&t->turns);
#else
    {
        pthread_t thread[TEAM];
        team_seat seat[TEAM];
        int i;
        pthread_mutex_init(&t->turns, NULL);
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->all, NULL);
        for (i = 0; i < TEAM; i++) {
            seat[i].of = t;
            seat[i].me = i;
            if (i > 0 && pthread_create(&thread[i], NULL, team_thread, &seat[i]) != 0) {
                exit(1);
            }
        }
        work(t, 0);
        for (i = 1; i < TEAM; i++) {
            pthread_join(thread[i], NULL);
        }
        pthread_cond_destroy(&t->all);
        pthread_mutex_destroy(&t->lock);
        pthread_mutex_destroy(&t->turns);
    }
#endif
}

static inline void team_open(team *t, dpar_comm *c, int64_t rounds)
{
    void *memory = NULL;
    int i;
    memset(t, 0, sizeof *t);
    t->rounds = rounds;
    t->comm[0] = c;
    CHECK(c->size <= TEAM_RANKS);
    CHECK_INT(dpar_comm_alloc(c, 2 * TEAM_N * 8, &memory), DPAR_OK);
    t->own = (int64_t *)memory;
    t->next = t->own + TEAM_N;
    for (i = 0; i < TEAM; i++) {
        t->out[i] = (int64_t *)malloc((size_t)(TEAM_RANKS + 1) * TEAM_N * 8);
    }
    if (memory == NULL || t->out[0] == NULL || t->out[1] == NULL || t->out[2] == NULL) {
        exit(1);
    }
}

static inline void team_close(team *t)
{
    int i;
    for (i = 0; i < TEAM; i++) {
        free(t->out[i]);
    }
    dpar_comm_release(t->comm[0], t->own < t->next ? t->own : t->next);
}

/* ---- one thread calls, the others compute ---- */

static inline void team_fill(int64_t *to, int64_t rank, int64_t round, int part, int parts)
{
    int64_t i;
    for (i = TEAM_N * part / parts; i < (int64_t)TEAM_N * (part + 1) / parts; i++) {
        to[i] = value(rank, round, i);
    }
}

/* Posts sending the round's data to the next rank, and a sum of it. */
static inline void team_exchange(team *t)
{
    dpar_comm *c = t->comm[0];
    const int32_t up = (c->rank + 1) % c->size, down = (c->rank + c->size - 1) % c->size;
    int64_t *got = t->out[0];
    dpar_work work[3];
    memset(work, 0, sizeof work);
    CHECK_INT(dpar_recv(c, got, TEAM_N, DPAR_I64, down, 5, &work[0]), DPAR_OK);
    if (up != c->rank) {
        CHECK_INT(dpar_send(c, t->own, TEAM_N, DPAR_I64, up, 5, &work[1]), DPAR_OK);
    } else {
        CHECK_INT(dpar_send(c, t->own, TEAM_N, DPAR_I64, up, 5, NULL), DPAR_OK);
    }
    CHECK_INT(dpar_all_reduce(c, t->own, got + TEAM_N, TEAM_N, DPAR_I64, DPAR_SUM, &work[2]),
              DPAR_OK);
    while (dpar_test(&work[2]) == DPAR_MORE) {
        sched_yield();
    }
    CHECK_INT(dpar_wait_all(work, 3), DPAR_OK);
}

static inline void team_funneled(team *t, int me)
{
    const dpar_comm *c = t->comm[0];
    const int64_t down = (c->rank + c->size - 1) % c->size;
    int64_t k, i, bad;
    if (me == 0) {
        team_fill(t->own, c->rank, 0, 0, 1);
    }
    team_meet(t);
    for (k = 0; k < t->rounds; k++) {
        if (me == 0) {
            team_exchange(t);
        } else {
            team_fill(t->next, c->rank, k + 1, me - 1, TEAM - 1);
        }
        team_meet(t);
        bad = 0;
        for (i = me; i < TEAM_N; i += TEAM) {
            bad += t->out[0][i] != value(down, k, i);
            bad += t->out[0][TEAM_N + i] != value_sum(c, k, i);
        }
        CHECK_INT(bad, 0);
        team_meet(t);
        if (me == 0) {
            int64_t *was = t->own;
            t->own = t->next;
            t->next = was;
        }
        team_meet(t);
    }
}

/* ---- any thread calls ---- */

static inline void team_group(dpar_comm *c, int64_t k)
{
    dpar_comm *part = NULL;
    const int64_t mine = value(c->rank, k, 0), half = c->rank % 2;
    int64_t sum = 0, expected = 0, r;
    for (r = half; r < c->size; r += 2) {
        expected += value(r, k, 0);
    }
    CHECK_INT(dpar_comm_split(c, (int32_t)half, 0, &part), DPAR_OK);
    CHECK_INT(dpar_all_reduce(part, &mine, &sum, 1, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
    CHECK_INT(sum, expected);
    CHECK_INT(dpar_comm_free(part), DPAR_OK);
}

static inline void team_ring(dpar_comm *c, int64_t k, const int64_t *in, int64_t *out, int64_t n)
{
    const int32_t up = (c->rank + 1) % c->size, down = (c->rank + c->size - 1) % c->size;
    dpar_call call[2];
    memset(call, 0, sizeof call);
    call[0].kind = DPAR_CALL_RECV;
    call[1].kind = DPAR_CALL_SEND;
    call[0].type = call[1].type = DPAR_I64;
    call[0].count = call[1].count = n;
    call[0].root = down;
    call[1].root = up;
    call[0].out = out;
    call[1].in = in;
    CHECK_INT(dpar_batch(c, call, 2, NULL), DPAR_OK);
    CHECK_INT(out[n - 1], value(down, k, n - 1));
}

/* Runs the k-th operation on c, which is the same on all ranks. room: (TEAM_RANKS + 1) TEAM_N
 * elements. */
static inline void team_ask(dpar_comm *c, int64_t k, int64_t *room)
{
    static const int64_t counts[] = {1, TEAM_N, 300};
    const int64_t n = counts[k / 8 % 3];
    int64_t *in = room, *out = room + TEAM_N, i, bad = 0;
    const int32_t root = (int32_t)(k % c->size);
    void *memory = NULL;
    for (i = 0; i < n; i++) {
        in[i] = value(c->rank, k, i);
        out[i] = -1;
    }
    switch (k % 8) {
    case 0:
        CHECK_INT(dpar_all_reduce(c, in, out, n, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            bad += out[i] != value_sum(c, k, i);
        }
        break;
    case 1: team_ring(c, k, in, out, n); break;
    case 2:
        CHECK_INT(dpar_all_gather(c, in, out, n, DPAR_I64, NULL), DPAR_OK);
        for (i = 0; i < n * c->size; i++) {
            bad += out[i] != value(i / n, k, i % n);
        }
        break;
    case 3:
        CHECK_INT(dpar_broadcast(c, in, n, DPAR_I64, root, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            bad += in[i] != value(root, k, i);
        }
        break;
    case 4: CHECK_INT(dpar_barrier(c, NULL), DPAR_OK); break;
    case 5: team_group(c, k); break;
    case 6:
        CHECK_INT(dpar_comm_alloc(c, n * 8, &memory), DPAR_OK);
        CHECK_INT(dpar_all_reduce(c, in, memory, n, DPAR_I64, DPAR_MAX, NULL), DPAR_OK);
        for (i = 0; memory != NULL && i < n; i++) {
            bad += ((int64_t *)memory)[i] != value(c->size - 1, k, i);
        }
        dpar_comm_release(c, memory);
        break;
    default:
        CHECK_INT(dpar_reduce_scatter(c, in, out, n / c->size, DPAR_I64, DPAR_SUM, NULL), DPAR_OK);
        for (i = 0; i < n / c->size; i++) {
            bad += out[i] != value_sum(c, k, c->rank * (n / c->size) + i);
        }
        break;
    }
    CHECK_INT(bad, 0);
}

/* Waits for the sum that the thread before this one has posted, and posts one for the next
 * thread. */
static inline void team_hand_over(team *t, int64_t k)
{
    if (k > 0) {
        CHECK_INT(dpar_wait(&t->posted), DPAR_OK);
        CHECK_INT(t->sum[1], value_sum(t->comm[0], k - 1, 7));
    }
    t->sum[0] = value(t->comm[0]->rank, k, 7);
    CHECK_INT(
        dpar_all_reduce(t->comm[0], &t->sum[0], &t->sum[1], 1, DPAR_I64, DPAR_SUM, &t->posted),
        DPAR_OK);
}

/* Uses one communicator by the threads in turn. */
static inline void team_serialized(team *t, int me)
{
    int64_t k = me;
    while (k < t->rounds) {
        team_lock(t);
        if (t->turn == k) {
            team_hand_over(t, k);
            team_ask(t->comm[0], k, t->out[0]);
            t->turn++;
            k += TEAM;
        }
        team_unlock(t);
        sched_yield();
    }
    team_meet(t);
    if (me == TEAM - 1) {
        CHECK_INT(dpar_wait(&t->posted), DPAR_OK);
    }
}

/* Uses one world per thread, all at once. */
static inline void team_multiple(team *t, int me)
{
    int64_t k;
    for (k = 0; k < t->rounds; k++) {
        team_ask(t->comm[me], k + me, t->out[me]);
    }
}

#endif
