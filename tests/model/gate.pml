/* SPDX-License-Identifier: MIT-0 */
/* gate - checks how a large group learns in levels that all ranks have entered. Entries are as in
 * entry.pml: a payload and a word, two lines per rank. Ranks 0 and 1 are one cluster, 2 and 3 the
 * other; 0 and 2 lead. A leader that has seen its cluster's words copies the payloads into its `up`
 * line (two, by parity) and publishes it; after it has also seen the other leader's it publishes a
 * result in its `down` line (one), which its rank reads. Each rank may at any time read all words
 * instead; a leader that passed in this manner still publishes both lines. A rank's payload is read
 * in its leader's `up` line if the word there is that of the operation, otherwise in its entry.
 *
 * In the last operation leader 2 enters and then does something else until rank 3 is done with it.
 * Claim: no rank reads anything of another operation, and all ranks finish.
 *
 * -DUPS=1          one `up` line per leader                                  must fail
 * -DTRUST          after `down` a rank reads `up` without its word           must fail
 * -DEARLY_DOWN     `down` before the leader has seen the other leader        must fail
 * -DEARLY_WORD     the word of `down` before the result                      must fail
 * -DNO_ALL         no rank reads all words                                   must fail */
#ifndef OPS
#define OPS 3
#endif
#ifndef UPS
#define UPS 2
#endif
#define N 4
#define LINE(r, k) ((r) * 2 + (k) % 2)
#define UP(r, k) ((r) * 2 + (k) % UPS)
#define LEAD(r) ((r) / 2 * 2)
#define OTHER(r) ((r) == 0 -> 2 : 0)
#ifdef NO_ALL
#define ALL(k) false
#else
#define ALL(k) (word[LINE(0, k)] >= k && word[LINE(1, k)] >= k && word[LINE(2, k)] >= k && word[LINE(3, k)] >= k)
#endif
#ifdef TRUST
#define THERE(r, k) (by_levels || up[UP(LEAD(r), k)] == k)
#else
#define THERE(r, k) (up[UP(LEAD(r), k)] == k)
#endif

byte payload[N * 2], word[N * 2];
byte box[N * 2], up[N * 2]; /* of leaders */
byte result[N], down[N];
byte done[N];

inline tell_leaders(r, k) {
    d_step {
        assert(payload[LINE(r, k)] == k && payload[LINE(r + 1, k)] == k);
        box[UP(r, k)] = k
    }
    up[UP(r, k)] = k
}

inline read_given(r, k) {
    p = 0;
    do
    :: p < N ->
        if
        :: THERE(p, k) -> assert(box[UP(LEAD(p), k)] == k)
        :: else -> assert(payload[LINE(p, k)] == k)
        fi;
        p++
    :: else -> break
    od;
    skip
}

inline tell_cluster(r, k) {
#ifdef EARLY_WORD
    down[r] = k;
    result[r] = k
#else
    result[r] = k;
    down[r] = k
#endif
}

proctype leader(byte r) {
    byte k = 1, p;
    bit told, by_levels;
    do
    :: k <= OPS ->
        payload[LINE(r, k)] = k;
        word[LINE(r, k)] = k;
        told = 0;
        by_levels = 0;
        if
        :: k == OPS && r == 2 -> done[3] == OPS
        :: else
        fi;
        if
        :: word[LINE(r + 1, k)] >= k ->
            tell_leaders(r, k);
            told = 1;
#ifdef EARLY_DOWN
            tell_cluster(r, k);
#endif
            if
            :: up[UP(OTHER(r), k)] >= k -> by_levels = 1
            :: ALL(k)
            fi
        :: ALL(k)
        fi;
        if
        :: !told -> tell_leaders(r, k)
        :: else
        fi;
        read_given(r, k);
        tell_cluster(r, k);
        d_step {
            done[r] = k;
            p = 0;
            k++
        }
    :: else -> break
    od
}

proctype follower(byte r) {
    byte k = 1, p;
    bit by_levels;
    do
    :: k <= OPS ->
        payload[LINE(r, k)] = k;
        word[LINE(r, k)] = k;
        by_levels = 0;
        if
        :: down[LEAD(r)] >= k ->
            by_levels = 1;
            assert(result[LEAD(r)] == k)
        :: ALL(k)
        fi;
        read_given(r, k);
        d_step {
            done[r] = k;
            p = 0;
            k++
        }
    :: else -> break
    od
}

init {
    atomic {
        run leader(0);
        run follower(1);
        run leader(2);
        run follower(3)
    }
    (_nr_pr == 1);
    assert(done[0] == OPS && done[1] == OPS && done[2] == OPS && done[3] == OPS)
}
