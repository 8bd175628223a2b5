/* SPDX-License-Identifier: MIT-0 */
/* near - checks how devices of a node that read each other's memory synchronise (dpar_nccl.h,
 * "memory that the devices of a node read"). Each rank's stream runs exchanges, one after the
 * other: it writes a part of its memory, meets its peers, reads their part. Called exchanges use
 * parts 0 and 1 in turns and meet once, in the set of flags with that number. Replays of a graph
 * use part 2, and meet in set 3 before they write, in set 2 before they read. All sequences of both
 * kinds are tried.
 *
 * Claim: no rank reads anything of another exchange or while it is being written; no flag is set
 * twice; all ranks finish.
 *
 * -DCHAIN        ranks meet only their neighbours in a row           holds, too
 *
 * -DONE_PART     called ones write only part 0                      must fail
 * -DNO_BEFORE    replays do not meet before they write              must fail
 * -DSAME_PART    replays write what called ones write, and meet once    must fail
 * -DONE_SET      called ones meet only in set 0                     must fail
 * -DNO_WAIT      flags of one peer are not waited for               must fail
 * -DEARLY        flags are set before the part is written           must fail
 * -DNO_CLEAR     flags are not cleared                              must fail */
#ifndef OPS
#define OPS 4
#endif
#ifndef N
#define N 3
#endif
#ifdef CHAIN
#define PEER(p) (p == me + 1 || p + 1 == me)
#else
#define PEER(p) (p != me)
#endif
#define FLAG(r, set, of) (((r) * 4 + (set)) * N + (of))

bool flag[N * 4 * N];
byte part[N * 3];
bit replay[OPS + 1]; /* the same on all ranks */
bit chosen;

inline set_flags(set) {
    p = 0;
    do
    :: p < N ->
        if
        :: PEER(p) -> d_step { assert(!flag[FLAG(p, set, me)]); flag[FLAG(p, set, me)] = true }
        :: else
        fi;
        p++
    :: else -> break
    od
}

inline await_flags(set) {
    p = 0;
    do
    :: p < N ->
#ifdef NO_WAIT
        if
        :: PEER(p) && p != 0 -> flag[FLAG(me, set, p)]
        :: else
        fi;
#else
        if
        :: PEER(p) -> flag[FLAG(me, set, p)]
        :: else
        fi;
#endif
        p++
    :: else -> break
    od;
#ifndef NO_CLEAR
    p = 0;
    do
    :: p < N ->
        if
        :: PEER(p) -> flag[FLAG(me, set, p)] = false
        :: else
        fi;
        p++
    :: else -> break
    od
#endif
}

inline exchange(at, set, k) {
#ifdef EARLY
    set_flags(set);
#endif
    part[me * 3 + at] = 0; /* half of it is written */
    part[me * 3 + at] = k;
#ifndef EARLY
    set_flags(set);
#endif
    await_flags(set);
    p = 0;
    do
    :: p < N -> assert((p != me && !PEER(p)) || part[p * 3 + at] == k); p++
    :: else -> break
    od
}

proctype rank(byte me) {
    byte k = 1, p;
    bit turn;
    chosen;
    do
    :: k <= OPS && replay[k] ->
#ifdef SAME_PART
        exchange(0, 0, k);
#else
#ifndef NO_BEFORE
        set_flags(3);
        await_flags(3);
#endif
        exchange(2, 2, k);
#endif
        k++
    :: k <= OPS && !replay[k] ->
#if defined(ONE_PART)
        exchange(0, turn, k);
#elif defined(ONE_SET)
        exchange(turn, 0, k);
#else
        exchange(turn, turn, k);
#endif
        turn = 1 - turn;
        k++
    :: else -> break
    od
}

init {
    byte k = 1, r;
    do
    :: k <= OPS -> if :: replay[k] = 0 :: replay[k] = 1 fi; k++
    :: else -> break
    od;
    atomic {
        do
        :: r < N -> run rank(r); r++
        :: else -> break
        od;
        chosen = 1
    }
}
