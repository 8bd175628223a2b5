/* SPDX-License-Identifier: MIT-0 */
/* entry - checks successive collectives over entry lines: two lines per rank, selected by the
 * parity of the sequence number, each with a payload and the word that publishes it. All ranks wait
 * for all words, whatever the kind, then read the payloads that the kind needs. Claim: no rank
 * reads a payload of another operation, and all ranks finish.
 *
 * Stores and loads are single steps in the order of the program. Payload and word may be in weakly
 * ordered memory as long as the word is stored with release and loaded with acquire: these forbid
 * three reorderings, which are the variants EARLY_WORD, EARLY_READ and LATE_READ, and each of the
 * three breaks the claim.
 *
 * -DPARITIES=1     one line per rank                                         must fail
 * -DRUN_AHEAD      a rank that needs no payload does not wait                must fail
 * -DEARLY_WORD     the word before the payload (store without release)       must fail
 * -DEARLY_READ     payloads before the words (load without acquire)          must fail
 * -DLATE_READ      the last payload after the next word                      must fail
 * -DMISMATCH       one rank calls another kind once: all end there, all with the error
 * -DMISMATCH -DNO_COMPARE   fingerprints are not compared                    must fail
 * -DREUSE          operation OPS is the barrier that closes the communicator; all but the last rank
 *                  then go on with the same lines in a communicator of their own, counting on: the
 *                  last rank, late in its barrier, may find newer words there, and goes by them
 * -DREUSE -DEQUAL  it wants to see the word of its barrier                   must fail */
#ifndef N
#define N 3 /* the last rank is 2 */
#endif
#ifndef OPS
#define OPS 4
#endif
#ifndef PARITIES
#define PARITIES 2
#endif
#ifdef REUSE
#define ENDS(r) ((r) == N - 1 -> OPS : OPS + 2)
#define COMPARES
#else
#define ENDS(r) OPS
#endif
#ifdef MISMATCH
#define COMPARES
#endif
#define LINE(r, k) ((r) * PARITIES + (k) % PARITIES)
#define BARRIER 1   /* nobody reads */
#define BROADCAST 2 /* all read rank 0's */
#define GATHER 3    /* rank 0 reads all */
#define ALL 4       /* all read all */
#define NEEDS(what, r, p)                                                                          \
    ((p) != (r) && ((what) == ALL || ((what) == BROADCAST && (p) == 0) ||                          \
                    ((what) == GATHER && (r) == 0)))

byte payload[N * PARITIES];
byte word[N * PARITIES];  /* the sequence number */
byte print[N * PARITIES]; /* the fingerprint, stored in the same word */
byte kind[OPS + 3];       /* what the program does, chosen when the first rank arrives there */
byte odd;                 /* the operation in which the last rank calls another kind */
byte done[N], failed;

#ifdef RUN_AHEAD
#define WAITS(what, r) ((what) == ALL || (what) == BARRIER || ((what) == BROADCAST) == ((r) != 0))
#else
#define WAITS(what, r) true
#endif
#define SEEN(p, k) (word[LINE(p, k)] >= (k))
/* Tests whether the word of rank p is one that does not fit. */
#ifdef EQUAL
#define NEWER_FITS false
#else
#define NEWER_FITS true
#endif
#define DIFFERS(p, k)                                                                              \
    (!(NEWER_FITS && word[LINE(p, k)] > (k)) &&                                                    \
     (word[LINE(p, k)] != (k) || print[LINE(p, k)] != mine))

inline publish(r, k) {
    d_step {
        word[LINE(r, k)] = k;
        print[LINE(r, k)] = mine
    }
}

inline read_all(r, k) {
    p = 0;
    do
    :: p < N && NEEDS(kind[k], r, p) && (k <= OPS || p < N - 1) -> d_step {
        assert(payload[LINE(p, k)] == k);
        p++
    }
    :: p < N && !(NEEDS(kind[k], r, p) && (k <= OPS || p < N - 1)) -> p++
    :: p == N -> break
    od;
    skip
}

proctype rank(byte r) {
    byte k = 1, p, mine;
    do
    :: k <= ENDS(r) ->
        atomic {
            if
            :: kind[k] == 0 ->
                if
#ifdef REUSE
                :: kind[k] = BARRIER
                :: k != OPS -> kind[k] = ALL
#else
                :: kind[k] = BARRIER
                :: kind[k] = BROADCAST
                :: kind[k] = GATHER
                :: kind[k] = ALL
#endif
                fi
            :: else
            fi;
            mine = kind[k] + (k > OPS -> 10 : 0); /* the new communicator calls anything */
#ifdef MISMATCH
            if
            :: k == odd && r == N - 1 -> mine = 5
            :: else
            fi
#endif
        }
#ifdef EARLY_WORD
        publish(r, k);
        payload[LINE(r, k)] = k;
#else
        payload[LINE(r, k)] = k;
        publish(r, k);
#endif
#ifdef LATE_READ
        if
        :: k > 1 && NEEDS(kind[k - 1], r, (r + 1) % N) ->
            assert(payload[LINE((r + 1) % N, k - 1)] == k - 1)
        :: else
        fi;
#endif
#ifdef EARLY_READ
        read_all(r, k);
#endif
        if
        :: WAITS(kind[k], r) -> (SEEN(0, k) && SEEN(1, k) && (k > OPS || SEEN(N - 1, k)))
        :: else
        fi;
#ifdef COMPARES
#ifndef NO_COMPARE
        if
        :: DIFFERS(0, k) || DIFFERS(1, k) || (k <= OPS && DIFFERS(N - 1, k)) ->
            d_step {
                assert(k == odd);
                failed++
            }
            goto out
        :: else
        fi;
#endif
#endif
#ifndef EARLY_READ
        read_all(r, k);
#endif
        d_step {
            done[r] = k;
            p = 0;
            k++
        }
    :: else -> break
    od;
out:
    skip
}

init {
    byte i;
    atomic {
        i = 0;
#ifdef MISMATCH
        select(i : 1 .. OPS);
        odd = i;
        i = 0;
#endif
        do
        :: i < N ->
            run rank(i);
            i++
        :: else -> break
        od;
        skip
    }
    (_nr_pr == 1);
    d_step {
#ifdef MISMATCH
        assert(failed == N && done[0] == odd - 1 && done[1] == odd - 1 && done[N - 1] == odd - 1)
#else
        assert(done[0] == ENDS(0) && done[1] == ENDS(1) && done[N - 1] == OPS)
#endif
    }
}
