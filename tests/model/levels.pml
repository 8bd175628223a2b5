/* SPDX-License-Identifier: MIT-0 */
/* levels - checks an all-reduce over two nodes of two ranks (dpar_mpi.h): FIRST each node adds up
 * in its memory, BETWEEN the i-th ranks of both nodes exchange messages, LAST each node shares its
 * parts. One rank may be killed at any step, and a message that it sent in the same step may be
 * lost. A rank that waits in its node's memory sees that its mate has died; a rank that waits for a
 * message checks that now and then. A rank that fails reports it to all others by letters, then
 * aborts the node's own communicator; a rank that learns of it in either of these two ways fails
 * too. The close at the end has the same three steps.
 * Claim: a rank that accepts a result as right has the sum of what all ranks contributed; all live
 * ranks finish; and no rank needs the deadline before the close. (In the close it may be needed if
 * a rank dies whose mate has already left, or which is the only one on its node.)
 *
 * Entries of a node's memory are one step each here; entry.pml and abort.pml check them. MPI keeps
 * the order of messages, and a rank is at most one operation ahead of another, so two slots are
 * enough.
 *
 * -DLEAD          small ones: only the first ranks exchange, and pass the result to their mates
 * -DMESSAGES      without a node's memory: each sends to each
 * -DOTHER         no rank dies; in the last operation node 1 calls another kind: all must fail
 * -DNO_ABORT      a rank that fails does not abort the node's communicator: letters are enough
 * -DNO_LETTERS    a rank that fails tells only its node                       must fail
 * -DDEAF          letters, and notes of waiting ranks, are not read across must fail
 * -DNO_PEER       a wait in the node's memory does not see the mate's death   must fail
 * -DEARLY_LAST    parts are shared before the other's arrived                must fail
 * -DMESSAGES -DNO_LOOK   a wait for messages ignores the mate                 must fail
 * -DOTHER -DNO_TAG       messages of other kinds match                        must fail
 * -DOTHER -DDEAF                                                              must fail */
#define N 4
#ifndef OPS
#define OPS 2
#endif
#define CLOSE (OPS + 1)
#define SUM 1
#define ANOTHER 2
#define mate (me ^ 1)
#define far (me ^ 2)
#define node (me / 2)
#define slot(to, from) (((to) * N + (from)) * 2 + op % 2)
#ifdef NO_TAG
#define tag op
#else
#define tag (op * 4 + kind)
#endif

byte first[N], last[N], part[N]; /* in the node's memory: the last operation, and the part */
byte sent[N * N * 2], load[N * N * 2];
byte waits[N], waits_in[N]; /* reported to all: the operation, and its kind */
bit letter[N], aborted[2], dead[N], killed;
byte ended[N]; /* 1: all was right, 2: failed */


#ifdef OTHER
#define may_die() skip
#else
#define may_die()                                                                                  \
    if                                                                                             \
    :: atomic {                                                                                    \
        !killed -> killed = 1;                                                                     \
        dead[me] = 1;                                                                              \
        if                                                                                         \
        :: between -> sent[slot(far, me)] = 0                                                      \
        :: true                                                                                    \
        fi                                                                                         \
    }                                                                                              \
        goto out                                                                                   \
    :: true                                                                                        \
    fi
#endif

#define UNLIKE(r) (waits[r] == op && waits_in[r] != kind)
#define HEARD (letter[me] || UNLIKE(far) || UNLIKE((far) ^ 1))

/* Waits in the node's memory. */
inline meet(done) {
    waits_in[me] = kind;
    waits[me] = op;
    if
    :: (done)
    :: HEARD -> goto failed
    :: aborted[node] -> goto failed
#ifndef NO_PEER
    :: dead[mate] && !(done) -> goto failed
#endif
    :: timeout && op == CLOSE -> goto failed
    fi
}

inline get(from) {
    waits_in[me] = kind;
    waits[me] = op;
    if
    :: sent[slot(me, from)] == tag -> mask = mask | load[slot(me, from)]
#ifndef DEAF
    :: HEARD -> goto failed
#endif
#ifndef NO_LOOK
    :: dead[mate] -> goto failed
#endif
    :: timeout && op == CLOSE -> goto failed
    fi
}

inline put(to) {
    d_step {
        load[slot(to, me)] = (kind == SUM -> mask : 0);
        sent[slot(to, me)] = tag
    }
}

proctype rank(byte me) {
    byte op = 1, kind, mask;
    bit between;
    do
    :: op <= CLOSE ->
        kind = SUM;
#ifdef OTHER
        kind = (op == OPS && node == 1 -> ANOTHER : SUM);
#endif
        may_die();
#ifdef MESSAGES
        mask = 1 << me;
        put(mate);
        put(far);
        between = 1;
        may_die();
        put(far ^ 1);
        may_die();
        get(mate);
        get(far);
        get(far ^ 1);
        between = 0;
#else
        first[me] = op;
        meet(first[mate] >= op);
        mask = 1 << me | 1 << mate;
        may_die();
#ifdef EARLY_LAST
        part[me] = mask;
        last[me] = op;
#endif
#ifdef LEAD
        if
        :: me % 2 == 0 ->
#endif
        put(far);
        between = 1;
        may_die();
        get(far);
        between = 0;
#ifdef LEAD
        :: else
        fi;
#endif
        may_die();
#ifndef EARLY_LAST
        part[me] = mask;
        last[me] = op;
#endif
        meet(last[mate] >= op);
#ifdef LEAD
        mask = part[me & 2];
#else
        mask = mask & part[mate];
#endif
#endif
        assert(kind != SUM || mask == 15);
#ifdef OTHER
        assert(op != OPS);
#endif
        op++
    :: else -> break
    od;
    ended[me] = 1;
    goto out;
failed:
    ended[me] = 2;
    d_step {
        letter[mate] = 1;
#ifndef NO_LETTERS
        letter[far] = 1;
        letter[far ^ 1] = 1
#endif
    }
#ifndef NO_ABORT
    aborted[node] = 1;
#endif
out:
    skip
}

init {
    byte i;
    atomic {
        do
        :: i < N ->
            run rank(i);
            i++
        :: else -> break
        od;
        i = 0
    }
    (_nr_pr == 1);
    d_step {
        do
        :: i < N ->
            assert(dead[i] || ended[i] != 0);
            i++
        :: else -> break
        od
    }
}
