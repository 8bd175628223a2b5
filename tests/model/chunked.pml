/* SPDX-License-Identifier: MIT-0 */
/* chunked - checks staging memory that collectives use again and again in every order: small ones
 * (a copy in the slot of their parity before the entry), exchanges (words a, b) and all_reduces
 * (words a, b, c) in chunks. The two slots of a rank are also its four buffers, two per slot; chunk
 * j is in buffer j % 4. One part of a buffer is input for the other ranks, the other part is the
 * result of what the rank itself reduces. Claim: each read gets the right chunk, and all ranks
 * finish.
 *
 *   put in j    once the last word of all (b of an exchange, c of an all_reduce) is >= j - 3;
 *               a = j + 1
 *   take j      (exchange) once all a >= j + 1: read the others' buffers; b = j + 1
 *   reduce j    (all_reduce) once all a >= j + 1: read the others' buffers, write the result into
 *               the own; b = j + 1
 *   results j   once all b >= j + 1: read the others' results; c = j + 1
 *   at the end  wait until the last word of all is complete
 *
 * Chunk j is put in while j - 1 is reduced and the results of j - 2 are read, as in the engine. In
 * a broadcast the root sets b, the other ranks set a to the last step at once, and each advances on
 * its own.
 *
 * A word holds (operation, chunks): here MOST * operation + chunks. Each word has one writer and
 * only grows, so waiting for one rank after the other is waiting for all. What a word reports was
 * done before it in the program: release store and acquire load are enough, and stores and loads
 * here are single steps. A read is one step at the latest moment that the program allows, which is
 * the worst case.
 *
 * -DNO_LAST               no wait at the end: a small box behind overwrites what is read must fail
 * -DNO_FREE               puts in without waiting                                        must fail
 * -DALL_GIVE -DNO_FREE    without broadcasts that is fine: the other waits imply it
 * -DBUFFERS=2             two buffers: everybody waits for everybody                     must fail
 * -DBUFFERS=2 -DNO_FREE   and without waiting they are overwritten                       must fail
 * -DFREE=4                puts in once all are at >= j - 4                               must fail
 * -DFREE=1                puts in once all are at >= j - 1: the same                     must fail
 * -DLAX_A                 reads when all a >= j                                          must fail
 * -DLAX_B                 reads results when all b >= j                                  must fail
 * -DBARE_WORDS            words without the operation, set to 0 at its start             must fail
 */
#define N 3
#ifndef OPS
#define OPS 3
#endif
#ifndef CHUNKS
#define CHUNKS 6
#endif
#ifndef BUFFERS
#define BUFFERS 4
#endif
#ifndef FREE
#define FREE (BUFFERS - 1)
#endif
#define MOST 8
#define SMALL 1
#define EXCHANGE 2
#define TWO_SHOT 3
#define BROADCAST 4

#define BUFFER(r, j) (BUFFERS * (r) + (j) % BUFFERS)
#define SLOT(r, k) (BUFFERS * (r) + BUFFERS / 2 * ((k) & 1)) /* its first buffer */
#define LAST (BUFFERS / 2 - 1)
#define NAME(k, j) (MOST * (k) + (j)) /* of a chunk, 1 .. CHUNKS; 7: a box */
#ifdef BARE_WORDS
#define AT(k, j) (j)
#else
#define AT(k, j) (MOST * (k) + (j))
#endif
#ifdef LAX_A
#define READY_A(j) (j)
#else
#define READY_A(j) ((j) + 1)
#endif
#ifdef LAX_B
#define READY_B(j) (j)
#else
#define READY_B(j) ((j) + 1)
#endif

byte entry[N * 2], a[N], b[N], c[N];
byte input[N * BUFFERS], result[N * BUFFERS]; /* what it holds: a NAME */
byte kind[OPS + 1];

#define ALL(w, x) (w[0] >= (x) && w[1] >= (x) && w[2] >= (x))
#define ENTERED(k)                                                                                 \
    (entry[(k) & 1] >= (k) && entry[2 + ((k) & 1)] >= (k) && entry[4 + ((k) & 1)] >= (k))

/* Visits each of the others, one step each. */
#define read_all(memory, j)                                                                        \
    d_step {                                                                                       \
        p = (r + 1) % N;                                                                           \
        assert(memory[BUFFER(p, j)] == NAME(k, j + 1))                                             \
    }                                                                                              \
    d_step {                                                                                       \
        p = (r + 2) % N;                                                                           \
        assert(memory[BUFFER(p, j)] == NAME(k, j + 1));                                            \
        p = 0                                                                                      \
    }

#ifdef NO_FREE
#define IS_FREE(last) true
#else
#define IS_FREE(last) (in < BUFFERS || ALL(last, AT(k, in - FREE)))
#endif

inline put_in() {
    input[BUFFER(r, in)] = NAME(k, in + 1);
    atomic {
        in++;
        a[r] = AT(k, in)
    }
}

inline exchange() {
    do
    :: in < CHUNKS && in <= mid + 1 ->
        IS_FREE(b);
        put_in()
    :: !(in < CHUNKS && in <= mid + 1) && mid < CHUNKS ->
        ALL(a, AT(k, READY_A(mid)));
        read_all(input, mid);
        atomic {
            mid++;
            b[r] = AT(k, mid)
        }
    :: mid == CHUNKS -> break
    od;
#ifndef NO_LAST
    ALL(b, AT(k, CHUNKS))
#endif
}

#define MAY_PUT (in < CHUNKS && in <= mid + 1 && in <= out + 2)
#define MAY_REDUCE (mid < in && mid <= out + 1)

inline two_shot() {
    do
    :: MAY_PUT ->
        IS_FREE(c);
        put_in()
    :: !MAY_PUT && MAY_REDUCE ->
        ALL(a, AT(k, READY_A(mid)));
        read_all(input, mid);
        result[BUFFER(r, mid)] = NAME(k, mid + 1);
        atomic {
            mid++;
            b[r] = AT(k, mid)
        }
    :: !MAY_PUT && !MAY_REDUCE && out < CHUNKS ->
        ALL(b, AT(k, READY_B(out)));
        read_all(result, out);
        atomic {
            out++;
            c[r] = AT(k, out)
        }
    :: out == CHUNKS -> break
    od;
#ifndef NO_LAST
    ALL(c, AT(k, CHUNKS))
#endif
}

/* The root has nothing to take and reports that once; the others have nothing to give. */
inline broadcast() {
    if
    :: r == 0 ->
        b[r] = AT(k, CHUNKS);
        do
        :: in < CHUNKS ->
            IS_FREE(b);
            put_in()
        :: else -> break
        od
    :: else ->
        a[r] = AT(k, CHUNKS);
        do
        :: mid < CHUNKS ->
            ALL(a, AT(k, READY_A(mid)));
            assert(input[BUFFER(0, mid)] == NAME(k, mid + 1));
            atomic {
                mid++;
                b[r] = AT(k, mid)
            }
        :: else -> break
        od
    fi;
#ifndef NO_LAST
    ALL(b, AT(k, CHUNKS))
#endif
}

inline fill_box() {
    d_step {
        input[SLOT(r, k)] = NAME(k, 7);
        result[SLOT(r, k)] = NAME(k, 7)
    }
    d_step {
        input[SLOT(r, k) + LAST] = NAME(k, 7);
        result[SLOT(r, k) + LAST] = NAME(k, 7)
    }
}

inline read_boxes() {
    p = 0;
    do
    :: p < N -> d_step {
        assert(input[SLOT(p, k)] == NAME(k, 7) && result[SLOT(p, k)] == NAME(k, 7));
        assert(input[SLOT(p, k) + LAST] == NAME(k, 7) && result[SLOT(p, k) + LAST] == NAME(k, 7));
        p++
    }
    :: else -> break
    od
}

proctype rank(byte r) {
    byte k = 1, in, mid, out, p;
    do
    :: k <= OPS ->
        atomic {
            if
            :: kind[k] == 0 ->
                if
                :: kind[k] = SMALL
                :: kind[k] = EXCHANGE
                :: kind[k] = TWO_SHOT
#ifndef ALL_GIVE
                :: kind[k] = BROADCAST
#endif
                fi
            :: else
            fi
        }
        if
        :: kind[k] == SMALL -> fill_box()
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
        :: kind[k] == SMALL -> read_boxes()
        :: kind[k] == EXCHANGE -> exchange()
        :: kind[k] == TWO_SHOT -> two_shot()
        :: kind[k] == BROADCAST -> broadcast()
        fi;
        atomic {
            in = 0;
            mid = 0;
            out = 0;
            p = 0;
            k++
        }
    :: else -> break
    od
}

init {
    atomic {
        run rank(0);
        run rank(1);
        run rank(2)
    }
}
