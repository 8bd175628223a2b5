/* SPDX-License-Identifier: MIT-0 */
/* chunked - staging slots used again and again: small collectives (a copy in the slot, published by
 * the entry), chunked exchanges (words a, b) and two-shot all_reduce (words a, b, c and result
 * slots), in every order. Claim: each read sees the chunk that it is meant to see, and all come to
 * the end.
 *
 *   chunk j of an exchange: wait for all b >= j - 1, copy into half j & 1, a = j + 1;
 *                           wait for all a >= j + 1, read the others' halves, b = j + 1
 *   of an all_reduce:       wait for all b >= j - 1, copy into half j & 1, a = j + 1;
 *                           wait for all a >= j + 1 and all c >= j - 1, reduce the others' halves
 *                           into half j & 1 of the result, b = j + 1;
 *                           wait for all b >= j + 1, read the others' results, c = j + 1
 *   at the end:             wait until the last word of all is complete
 *   -DAHEAD: chunk j + 1 is copied in before the others' chunk j is waited for.
 *
 * A word holds (operation, chunks): here MOST * operation + chunks. Each word has one writer and
 * only grows, so waiting for one rank after the other is waiting for all. What a word publishes was
 * written (a: a half; b: a result; b, c: "I have read") before it in the program: release store and
 * acquire load are enough, stores and loads here are single steps. A read is one step at the
 * latest moment that the program allows, which is the worst.
 *
 * A slot has two halves, used by chunks; there are two slots, used by the parity of the operation.
 * -DONE_SLOT       chunks take the two slots as their halves: then the last wait is needed
 * -DNO_LAST        no wait at the end: fine with halves inside the slot of the parity
 * -DONE_SLOT -DNO_LAST   a small one behind an exchange overwrites what is being read  must fail
 * -DAHEAD -DLAX_B  copy without waiting for b                                must fail
 * -DLAX_B          the same without AHEAD is fine: a rank that has seen all a >= j has seen ranks
 *                  that had set b = j - 1 before
 * -DLAX_A          read when all a >= j                                      must fail
 * -DLAX_C          results without waiting for c: fine too, all a >= j + 1 says all c >= j - 1
 * -DLAX_R          results read when all b >= j                              must fail
 * -DSTRICT_B       copy when all b >= j + 1: everybody waits for the next step   must fail
 * -DBARE_WORDS     words without the operation, set to 0 at its start        must fail
 * -DUNEVEN         the last rank has one chunk less; it publishes "all" at once and takes part in
 *                  no further step (pieces of different sizes)
 * -DUNEVEN -DNO_JUMP   it does not publish "all"                             must fail */
#ifndef N
#define N 3
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef CHUNKS
#define CHUNKS 3
#endif
#define MOST 8
#define SMALL 1
#define EXCHANGE 2
#define TWO_SHOT 3

#ifdef ONE_SLOT
#define HALF(r, k, j) (4 * (r) + 2 * ((j) & 1))
#else
#define HALF(r, k, j) (4 * (r) + 2 * ((k) & 1) + ((j) & 1))
#endif
#define SLOT(r, k) (4 * (r) + 2 * ((k) & 1))
#ifdef BARE_WORDS
#define AT(k, j) (j)
#else
#define AT(k, j) (MOST * (k) + (j))
#endif

byte entry[N * 2], a[N], b[N], c[N];
byte half[N * 4];   /* what lies there: AT of its operation and chunk */
byte result[N * 2]; /* the same */
byte kind[OPS + 1];

#define ALL(w, x) (w[0] >= (x) && w[1] >= (x) && w[N - 1] >= (x))
#define ENTERED(k) (entry[(k) & 1] >= (k) && entry[2 + ((k) & 1)] >= (k) && entry[2 * (N - 1) + ((k) & 1)] >= (k))
#define NAME(k, j) (MOST * (k) + (j))

#ifdef STRICT_B
#define FREE_B(j) ((j) + 1)
#else
#define FREE_B(j) ((j) - 1)
#endif
#ifdef LAX_A
#define READY_A(j) (j)
#else
#define READY_A(j) ((j) + 1)
#endif
#ifdef LAX_R
#define READY_R(j) (j)
#else
#define READY_R(j) ((j) + 1)
#endif
#ifdef UNEVEN
#define MINE(r) (CHUNKS - ((r) == N - 1))
#else
#define MINE(r) CHUNKS
#endif

inline copy_in(r, k, i) {
#ifndef LAX_B
    (i) < 2 || ALL(b, AT(k, FREE_B(i)));
#endif
    half[HALF(r, k, i)] = NAME(k, (i) + 1);
    a[r] = AT(k, (i) + 1)
}

/* Reads the halves of the others; a rank whose chunks are used up has none. */
inline read_halves(k, j) {
    p = 0;
    do
    :: p < N -> d_step {
        assert(p == r || j >= MINE(p) || half[HALF(p, k, j)] == NAME(k, j + 1));
        p++
    }
    :: else -> break
    od;
    skip
}

inline read_results(k, j) {
    p = 0;
    do
    :: p < N -> d_step {
        assert(p == r || result[2 * p + (j & 1)] == NAME(k, j + 1));
        p++
    }
    :: else -> break
    od;
    skip
}

proctype rank(byte r) {
    byte k = 1, j, p;
    do
    :: k <= OPS ->
        atomic {
            if
            :: kind[k] == 0 ->
                if
                :: kind[k] = SMALL
                :: kind[k] = EXCHANGE
#ifndef UNEVEN
                :: kind[k] = TWO_SHOT
#endif
                fi
            :: else
            fi
        }
        if
        :: kind[k] == SMALL ->
            half[SLOT(r, k)] = NAME(k, 7);
            half[SLOT(r, k) + 1] = NAME(k, 7)
        :: else
        fi;
#ifdef BARE_WORDS
        d_step {
            a[r] = 0;
            b[r] = 0;
            c[r] = 0
        }
#endif
        entry[2 * r + (k & 1)] = k;
        ENTERED(k);
        if
        :: kind[k] == SMALL ->
            p = 0;
            do
            :: p < N -> d_step {
                assert(half[SLOT(p, k)] == NAME(k, 7) && half[SLOT(p, k) + 1] == NAME(k, 7));
                p++
            }
            :: else -> break
            od
        :: kind[k] == EXCHANGE ->
            j = 0;
            do
            :: j < MINE(r) ->
#ifdef AHEAD
                if
                :: j == 0 -> copy_in(r, k, 0)
                :: else
                fi;
                if
                :: j + 1 < MINE(r) -> copy_in(r, k, j + 1)
                :: else
                fi;
#else
                copy_in(r, k, j);
#endif
                ALL(a, AT(k, READY_A(j)));
                read_halves(k, j);
                b[r] = AT(k, j + 1);
                j++
            :: else -> break
            od;
#ifdef UNEVEN
            /* Nothing of its own is left, but the others' chunks are to be read. */
            if
            :: MINE(r) < CHUNKS ->
#ifndef NO_JUMP
                a[r] = AT(k, CHUNKS);
#endif
                do
                :: j < CHUNKS ->
                    ALL(a, AT(k, j + 1));
                    read_halves(k, j);
                    b[r] = AT(k, j + 1);
                    j++
                :: else -> break
                od
            :: else
            fi;
#endif
#ifndef NO_LAST
            ALL(b, AT(k, CHUNKS))
#endif
        :: kind[k] == TWO_SHOT ->
            j = 0;
            do
            :: j < CHUNKS ->
#ifdef AHEAD
                if
                :: j == 0 -> copy_in(r, k, 0)
                :: else
                fi;
#else
                copy_in(r, k, j);
#endif
                ALL(a, AT(k, READY_A(j)));
#ifndef LAX_C
                j < 2 || ALL(c, AT(k, j - 1));
#endif
                read_halves(k, j);
                result[2 * r + (j & 1)] = NAME(k, j + 1);
                b[r] = AT(k, j + 1);
#ifdef AHEAD
                if
                :: j + 1 < CHUNKS -> copy_in(r, k, j + 1)
                :: else
                fi;
#endif
                ALL(b, AT(k, READY_R(j)));
                read_results(k, j);
                c[r] = AT(k, j + 1);
                j++
            :: else -> break
            od;
#ifndef NO_LAST
            ALL(c, AT(k, CHUNKS))
#endif
        fi;
        atomic {
            j = 0;
            p = 0;
            k++
        }
    :: else -> break
    od
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
        skip
    }
}
