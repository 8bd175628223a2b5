/* SPDX-License-Identifier: MIT-0 */
/* abort - checks the record of how a communicator broke: claimed by compare-and-swap, filled,
 * published. Ranks 0 and 1 each find an error and have a verdict of their own; ranks 2 and 3 wait
 * for something that will not arrive, and find out only that some rank is dead. One of 0 and 1 may
 * be killed at any step. A rank that has a verdict tries to claim the record; a rank that finds it
 * claimed waits for it for a while and then uses its own verdict. Claim: each live rank ends with
 * an error; what it reads from the record is complete; and all ranks that read it read the same.
 *
 * state is published with release and read with acquire; stores and loads are single steps. "A
 * while" is any length of time. Ranks 2 and 3 check forever which ranks live, as a wait does.
 *
 * -DHANG        a rank that finds it claimed waits until it is published      must fail
 * -DHALF        reads it when it is claimed                                   must fail
 * -DEARLY       published before it is filled                                 must fail
 * -DNO_CLAIM    a look and a store in place of the compare-and-swap           must fail */
#define N 4
#define NONE 0
#define CLAIMED 1
#define SET 2
byte state, status, text;
byte ended[N]; /* with this error */
bit from_record[N];
bit dead[N], killed;

#define ANY_DEAD (dead[0] || dead[1])
#ifdef HALF
#define READABLE (state != NONE)
#else
#define READABLE (state == SET)
#endif

/* A place where the rank may be killed. */
#define may_die()                                                                                  \
    if                                                                                             \
    :: atomic {                                                                                    \
        !killed && me < 2 -> killed = 1;                                                           \
        dead[me] = 1                                                                               \
    }                                                                                              \
        goto out                                                                                   \
    :: true                                                                                        \
    fi

inline fill() {
    may_die();
#ifdef EARLY
    state = SET;
#endif
    status = 1 + me;
    may_die();
    text = 1 + me;
    may_die();
    state = SET
}

inline take() {
    s = status;
    t = text;
    d_step {
        assert(s != 0 && s == t);
        ended[me] = s;
        from_record[me] = 1
    }
}

proctype rank(byte me) {
    byte s, t;
    bit mine;
    /* Runs when something is wrong, or the record reports an error. */
    if
    :: me < 2 -> may_die()
    :: me >= 2 && READABLE ->
        take();
        goto out
    :: me >= 2 && ANY_DEAD
    fi;
#ifdef NO_CLAIM
    mine = (state == NONE);
    if
    :: mine -> state = CLAIMED
    :: else
    fi;
#else
    atomic {
        mine = (state == NONE);
        if
        :: mine -> state = CLAIMED
        :: else
        fi
    }
#endif
    if
    :: mine -> fill()
    :: else
    fi;
    if
    :: READABLE -> take()
#ifndef HANG
    :: !mine -> ended[me] = 1 + me
#endif
    fi;
    may_die();
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
            assert(!from_record[i] || ended[i] == status);
            i++
        :: else -> break
        od
    }
}
