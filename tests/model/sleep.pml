/* SPDX-License-Identifier: MIT-0 */
/* sleep - checks that a rank which waits long may sleep, because a rank that publishes rings the
 * ranks asleep for its news. There are two sleepers; each waits for the first word of one
 * publisher, then the last of the other. Claim: all ranks finish although a sleep here lasts until
 * it is rung (in the library it is bounded, so that a fault costs time and not the job).
 *
 * sleeper   announces its sleep: remembers the bell; sleepers + 1; for = whom; asleep = 1; FENCE.
 *           Then it looks at the word and sleeps while the bell is what it was. Afterwards it
 *           withdraws: turns asleep from 1 to 0 (and if that works, sleepers - 1). If it now wants
 *           the word of another rank, it withdraws and announces again.
 * publisher word = v; FENCE; sleepers > 0? then for each rank: asleep, and for me? turn asleep from
 *           1 to 0 (if that works: sleepers - 1, bell + 1, wake)
 *
 * Memory is TSO: a plain store goes into a buffer of its process, which a second process empties in
 * order at any time; an atomic read-modify-write waits until the buffer is empty, and so does a
 * sequentially consistent store, which is therefore one step where a process has no plain ones (a
 * plain store right before one, such as that to `for`, counts as part of the step). On weaker
 * machines the loads behind the FENCEs must be sequentially consistent too, or the FENCEs must be
 * real ones (order.c). futex_wait compares and sleeps in one step, as the kernel does. With
 * -DSPARE=1 it may also return without a reason, once per sleeper.
 *
 * -DPLAIN_WORD    the publisher's store is not sequentially consistent         must fail
 * -DPLAIN_ASLEEP  the sleeper's store is not                                   must fail
 * -DNO_LOOK       the sleeper does not look again                              must fail
 * -DLATE_BELL     it remembers the bell after it has looked                    must fail
 * -DNO_RING       who wakes does not change the bell first                     must fail
 * -DFLAG_FIRST    asleep before it is counted: a ringer takes it off the count before it is on it,
 *                 so that the count is 0 while another one sleeps              must fail
 * -DNO_AGAIN      awake it sleeps again without announcing                     must fail
 * -DOTHER_PEER    announced for one word it sleeps for another                 must fail
 * -DFOR_LATE      for = whom after asleep = 1 and its fence                    must fail */
#ifndef SPARE
#define SPARE 0
#endif
#ifndef WORDS
#define WORDS 1 /* that a publisher publishes */
#endif
#define S 2          /* sleepers 0, 1; publishers 2, 3 */
#define NONE 9
#define WORD(p) (p)  /* addresses: 2, 3 */
#define ASLEEP(s) (4 + (s))
#define FOR(s) (6 + (s))
byte mem[8];
byte bell[S];
short sleepers; /* read as unsigned by the publisher: != 0 */
bit kernel[S];  /* it sleeps in the kernel */
chan buffer[4] = [2] of { byte, byte };

#define plain(me, at, v) buffer[me]!at, v
#define fence(me) empty(buffer[me])
#ifdef PLAIN_WORD
#define store_word plain
#define DRAIN_P
#else
#define store_word(me, at, v) mem[at] = v
#endif
#if defined(PLAIN_ASLEEP) || defined(FOR_LATE)
#define store_asleep plain
#define store_for plain
#define DRAIN_S
#else
#define store_asleep(me, at, v) mem[at] = v
#define store_for(me, at, v) mem[at] = v
#endif

proctype drain(byte me) {
    byte at, v;
end:
    do
    :: atomic {
        buffer[me]?at, v;
        mem[at] = v;
        at = 0;
        v = 0
    }
    od
}

inline announce() {
    seen = bell[me];
#ifdef FLAG_FIRST
    store_for(me, FOR(me), whom);
    store_asleep(me, ASLEEP(me), 1);
    atomic {
        fence(me) -> sleepers++
    }
#else
    atomic {
        fence(me) -> sleepers++
    }
#ifdef FOR_LATE
    store_asleep(me, ASLEEP(me), 1);
    fence(me);
    store_for(me, FOR(me), whom);
#else
    store_for(me, FOR(me), whom);
    store_asleep(me, ASLEEP(me), 1);
#ifndef PLAIN_ASLEEP
    fence(me);
#endif
#endif
#endif
    announced = whom
}

/* Whoever turns the flag back removes the sleeper from the count. */
inline withdraw() {
    atomic {
        fence(me) -> ok = (mem[ASLEEP(me)] == 1);
        mem[ASLEEP(me)] = 0;
        announced = 0
    }
    if
    :: ok -> atomic {
        sleepers--;
        ok = 0
    }
    :: else
    fi
}

/* The kernel compares and sleeps. */
inline futex() {
    atomic {
        if
        :: bell[me] == seen -> kernel[me] = 1
        :: else
        fi
    }
    if
    :: kernel[me] == 0
    :: atomic {
        kernel[me] == 1 && spare > 0 -> spare--;
        kernel[me] = 0
    }
    fi
}

proctype sleeper(byte me) {
    byte turn = 1, need = 1, whom = 2 + me, announced, seen, spare = SPARE;
    bit ok;
    do
    :: mem[WORD(whom)] >= need -> atomic {
        turn++;
        need = WORDS;
        whom = 5 - whom;
        if
        :: turn > 2 -> break
        :: else
        fi
    }
    :: mem[WORD(whom)] < need ->
        if
        :: announced == 0 ->
            announce();
#ifdef NO_LOOK
            futex();
            withdraw()
#endif
#ifdef OTHER_PEER
        :: announced != 0 ->
#else
        :: announced != 0 && announced != whom ->
            withdraw();
            announce()
        :: announced == whom ->
#endif
#ifdef LATE_BELL
            seen = bell[me];
#endif
            futex();
#ifdef NO_AGAIN
            seen = bell[me]
#else
            withdraw()
#endif
        fi
    od;
    if
    :: announced != 0 -> withdraw()
    :: else
    fi
}

proctype publisher(byte me) {
    byte v = 1, s;
    bit ok;
    do
    :: v <= WORDS ->
        store_word(me, WORD(me), v);
        if
        :: sleepers != 0 ->
            s = 0;
            do
            :: s < S ->
                if
                :: mem[ASLEEP(s)] == 1 ->
                    if
                    :: mem[FOR(s)] == me ->
                        atomic {
                            fence(me) -> ok = (mem[ASLEEP(s)] == 1);
                            if
                            :: ok -> mem[ASLEEP(s)] = 0
                            :: else
                            fi
                        }
                        if
                        :: ok ->
                            sleepers--;
#ifndef NO_RING
                            bell[s]++;
#endif
                            atomic {
                                kernel[s] = 0;
                                ok = 0
                            }
                        :: else
                        fi
                    :: else
                    fi
                :: else
                fi;
                s++
            :: else -> break
            od
        :: else
        fi;
        atomic {
            s = 0;
            v++
        }
    :: else -> break
    od
}

init {
    atomic {
        mem[FOR(0)] = NONE;
        mem[FOR(1)] = NONE;
        run sleeper(0);
        run sleeper(1);
        run publisher(2);
        run publisher(3);
#ifdef DRAIN_S
        run drain(0);
        run drain(1);
#endif
#ifdef DRAIN_P
        run drain(2);
        run drain(3);
#endif
        skip
    }
}
