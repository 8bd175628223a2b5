/* SPDX-License-Identifier: MIT-0 */
/* direct - checks that ranks can read and write each other's buffers (registered memory). Steps:
 * entry, wait for all entries, access, word a, wait for all a, return; then the caller rewrites its
 * buffers. Each rank may or may not register a buffer in each operation: the entries state it, and
 * all ranks access the buffers directly if all are registered, otherwise copy through the slots.
 * Claim: each access gets the operation that it belongs to, the caller's result is complete, and
 * all ranks finish.
 *
 * in[r] and out[r] are the buffers: the number of the operation that they belong to, 0 while the
 * caller may do anything with them. Words have one writer and only grow; the accesses are between
 * an acquire (entries) and a release (a), the caller's between the acquire of a and its next
 * entry's release. Stores and loads are single steps.
 *
 * -DNO_LAST      returns without waiting for all a                    must fail
 * -DROOT_WAITS   broadcast: only the root waits for a; holds, no rank touches others' buffers
 * -DROOT_LEAVES  broadcast: all but the root wait                     must fail
 * -DNO_ENTRIES   accesses before all entries                          must fail
 * -DOWN_CHOICE   each rank decides by its own buffer                  must fail
 * -DRETURN_NEXT  the last wait is left to the next entries            must fail */
#ifndef N
#define N 3
#endif
#ifndef OPS
#define OPS 2
#endif
#define PULL 1      /* all read all inputs: all_gather */
#define PUSH 2      /* all read their piece of all inputs, write it to all outputs: all_reduce */
#define BROADCAST 3 /* all read rank 0's */

byte in[N], out[N * N], slot[N * 2];
byte entry[N * 2], a[N], kind[OPS + 1];
bit flag[N * 2]; /* registered? stated in the entry */

#define HERE(r, k) (entry[2 * (r) + ((k) & 1)] >= (k))
#define ENTERED(k) (HERE(0, k) && HERE(1, k) && HERE(N - 1, k))
#define ALL_A(k) (a[0] >= (k) && a[1] >= (k) && a[N - 1] >= (k))
#define ALL_DIRECT(k) (flag[(k) & 1] && flag[2 + ((k) & 1)] && flag[2 * (N - 1) + ((k) & 1)])
#define READS(p) (kind[k] != BROADCAST || (p) == 0)

proctype rank(byte r) {
    byte k = 1, p;
    bit direct;
    do
    :: k <= OPS ->
        atomic {
            if
            :: kind[k] == 0 ->
                if
                :: kind[k] = PULL
                :: kind[k] = PUSH
                :: kind[k] = BROADCAST
                fi
            :: else
            fi;
            if
            :: direct = 0
            :: direct = 1
            fi
        }
        in[r] = k; /* the caller's input */
        atomic {
            slot[2 * r + (k & 1)] = k;
            flag[2 * r + (k & 1)] = direct
        }
        entry[2 * r + (k & 1)] = k;
#ifndef NO_ENTRIES
        ENTERED(k);
#endif
#ifndef OWN_CHOICE
        direct = ALL_DIRECT(k);
#endif
        if
        :: direct ->
            p = 0;
            do
            :: p < N -> d_step {
                assert(!READS(p) || in[p] == k);
                p++
            }
            :: else -> break
            od;
            p = 0;
            do
            :: p < N && kind[k] == PUSH -> d_step {
                out[p * N + r] = k;
                p++
            }
            :: p < N && kind[k] != PUSH -> d_step {
                out[r * N + p] = k;
                p++
            }
            :: p == N -> break
            od;
            a[r] = k;
#ifdef RETURN_NEXT
            skip;
#else
#ifndef NO_LAST
#ifdef ROOT_WAITS
            kind[k] == BROADCAST && r != 0 || ALL_A(k);
#else
#ifdef ROOT_LEAVES
            kind[k] == BROADCAST && r == 0 || ALL_A(k);
#else
            ALL_A(k);
#endif
#endif
#endif
#endif
        :: else -> d_step {
            p = 0;
            do
            :: p < N ->
                assert(!READS(p) || slot[2 * p + (k & 1)] == k);
                out[r * N + p] = k;
                p++
            :: else -> break
            od
        }
        fi;
        /* Returns to the caller: its result is there, and its buffers are its own. */
        d_step {
            p = 0;
            do
            :: p < N ->
                assert(out[r * N + p] == k);
                out[r * N + p] = 0;
                p++
            :: else -> break
            od;
            in[r] = 0;
            direct = 0;
            p = 0
        }
        /* Some time later no rank has written into them, and it calls again. */
        d_step {
            assert(out[r * N] == 0 && out[r * N + 1] == 0 && out[r * N + N - 1] == 0);
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
