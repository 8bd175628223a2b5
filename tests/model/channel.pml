/* SPDX-License-Identifier: MIT-0 */
/* channel - messages between two ranks, a ring of cells each way. Each sends three messages, with
 * tags 1, 1, 2, before it receives tags 2, 1, 1; kinds are chosen for all but the second: EAGER (whole in a cell),
 * LARGE (RTS, then CTS, then DATA and DATA), DIRECT (RTS, the receiver reads the sender's memory,
 * FIN). Either all is posted and then waited for, in any interleaving with progress, or (-DBLOCKING,
 * eager only: large ones would be the user's deadlock) each is waited for before the next. A rank whose
 * own operations are done makes no progress any more. Claim: each receive gets the message it is
 * due, the oldest of its tag; nothing is lost or doubled; both come to the end.
 *
 * Cells: the sender writes when fewer than CELLS are unread (its own count minus `consumed`), fills
 * the cell, then stores its word = index + 1; the receiver sees the word it is due, reads the cell,
 * then stores `consumed`. Words and `consumed` have one writer: release and acquire are enough, all
 * are single steps here. What no other rank can see between two stores is one step with them; -DFINE:
 * it is not. Records that no posted receive wants leave the ring, too.
 *
 * -DNO_ROOM         does not look at consumed                                 must fail
 * -DEARLY_WORD      the word before the cell                                  must fail
 * -DEARLY_CONSUMED  consumed before the cell is read                          must fail
 * -DIN_RING         records that nobody wants stay in the ring (-DBLOCKING)   must fail
 * -DDEAF            a rank that sends does not read (-DBLOCKING)              must fail
 * -DANY_ORDER       sends go out in any order                                 must fail
 * -DLAST_FIRST      the newest of a tag is taken                              must fail
 * -DFIN_LATER       a receive is done before its FIN is in the ring           must fail */
#ifndef CELLS
#define CELLS 2
#endif
#define M 3     /* messages each way */
#define PARTS 2 /* of a large one */
#define TAG(id) (1 + (id) / 2)     /* 1, 1, 2 */
#define WANT(i) (2 - ((i) + 1) / 2) /* 2, 1, 1 */
#define DUE(i) (((i) + 2) % 3)     /* message 2, then 0, 1 */

mtype = { EAGER, LARGE, DIRECT, RTS, CTS, DATA, FIN };
/* a ring a rank: its way out */
byte word[2 * CELLS], id[2 * CELLS], part[2 * CELLS], consumed[2];
mtype kind[2 * CELLS];

#define QUEUED 1
#define OFFERED 2
#define CLEARED 3
#define DONE 4
mtype how[2 * M];
byte sent[2 * M], parts[2 * M]; /* state of a send */

#define POSTED 1
#define MATCHED 2
#define LEAVING 3 /* its FIN is not yet in the ring */
byte state[2 * M], from[2 * M], got[2 * M]; /* of a receive */
mtype early[2 * M];                        /* records that came before their receive */
mtype reply[2 * M];                        /* CTS or FIN to be sent, by message */

#define ME(i) (me * M + (i))
#define ALL_DONE                                                                                   \
    (sent[ME(0)] == DONE && sent[ME(1)] == DONE && sent[ME(2)] == DONE && state[ME(0)] == DONE &&  \
     state[ME(1)] == DONE && state[ME(2)] == DONE)
#define HAS_REPLY(i) (reply[ME(i)] != 0)
#define HAS_DATA(i) (sent[ME(i)] == CLEARED)
#define HAS_FIRST(i) (sent[ME(i)] == QUEUED)
#define HAS(i) (HAS_REPLY(i) || HAS_DATA(i) || HAS_FIRST(i))
#ifdef NO_ROOM
#define ROOM true
#else
#define ROOM (ahead - consumed[me] < CELLS)
#endif
#ifdef DEAF
#define LISTENS (!HAS(0) && !HAS(1) && !HAS(2))
#else
#define LISTENS true
#endif
#define CELL(n) (me * CELLS + (n) % CELLS)
#define THEIRS(n) ((1 - me) * CELLS + (n) % CELLS)

/* Receive i takes message m, of which this record was the first. */
inline take(i, m, r) {
    from[ME(i)] = m;
    if
    :: r == EAGER -> state[ME(i)] = DONE
    :: r == RTS && how[(1 - me) * M + m] == LARGE ->
        state[ME(i)] = MATCHED;
        reply[ME(m)] = CTS
    :: else ->
        assert(sent[(1 - me) * M + m] == OFFERED);
        reply[ME(m)] = FIN;
#ifdef FIN_LATER
        state[ME(i)] = DONE
#else
        state[ME(i)] = LEAVING
#endif
    fi
}

/* Which receive wants message m? M: none. */
inline wanted(m, i) {
    i = 0;
    do
    :: i < M && !(state[ME(i)] == POSTED && WANT(i) == TAG(m)) -> i++
    :: else -> break
    od
}

inline post() {
    if
    :: posted < M ->
        sent[ME(posted)] = QUEUED
    :: else ->
        i = posted - M;
        state[ME(i)] = POSTED;
#ifdef LAST_FIRST
        m = M;
        do
        :: m > 0 && !(early[ME(m - 1)] != 0 && TAG(m - 1) == WANT(i)) -> m--
        :: else -> break
        od;
        m = (m == 0 -> M : m - 1);
#else
        m = 0;
        do
        :: m < M && !(early[ME(m)] != 0 && TAG(m) == WANT(i)) -> m++
        :: else -> break
        od;
#endif
        if
        :: m < M ->
            take(i, m, early[ME(m)]);
            early[ME(m)] = 0
        :: else
        fi
    fi;
    posted++;
    i = 0;
    m = 0
}

/* A record from the ring. */
inline accept() {
    if
    :: r == EAGER || r == RTS ->
        assert(m == arrived);
        arrived++;
        wanted(m, i);
        if
        :: i < M -> take(i, m, r)
        :: else -> early[ME(m)] = r
        fi
    :: r == CTS ->
        assert(sent[ME(m)] == OFFERED && how[ME(m)] == LARGE);
        sent[ME(m)] = CLEARED
    :: r == FIN ->
        assert(sent[ME(m)] == OFFERED && how[ME(m)] == DIRECT);
        sent[ME(m)] = DONE
    :: r == DATA ->
        i = 0;
        do
        :: i < M && !(state[ME(i)] == MATCHED && from[ME(i)] == m) -> i++
        :: else -> break
        od;
        assert(i < M && got[ME(i)] == p);
        got[ME(i)]++;
        if
        :: got[ME(i)] == PARTS -> state[ME(i)] = DONE
        :: else
        fi
    fi;
    i = 0;
    r = 0;
    m = 0;
    p = 0
}

/* What goes out next: replies, then data, then new messages. */
inline choose() {
    p = 0;
    m = 0;
    do
    :: m < M && !HAS_REPLY(m) -> m++
    :: else -> break
    od;
    if
    :: m < M ->
        r = reply[ME(m)];
        reply[ME(m)] = 0
    :: else ->
        m = 0;
        do
        :: m < M && !HAS_DATA(m) -> m++
        :: else -> break
        od;
        if
        :: m < M ->
            r = DATA;
            p = parts[ME(m)];
            parts[ME(m)]++;
            if
            :: parts[ME(m)] == PARTS -> sent[ME(m)] = DONE
            :: else
            fi
        :: else ->
#ifdef ANY_ORDER
            m = M - 1;
            do
            :: !HAS_FIRST(m) -> m--
            :: else -> break
            od;
#else
            m = 0;
            do
            :: !HAS_FIRST(m) -> m++
            :: else -> break
            od;
#endif
            r = (how[ME(m)] == EAGER -> EAGER : RTS);
            sent[ME(m)] = (how[ME(m)] == EAGER -> DONE : OFFERED)
        fi
    fi;
    /* the receive whose FIN this is */
    i = 0;
    do
    :: i < M && !(r == FIN && state[ME(i)] == LEAVING && from[ME(i)] == m) -> i++
    :: else -> break
    od;
    if
    :: i < M -> state[ME(i)] = DONE
    :: else
    fi;
    i = 0
}

proctype rank(byte me) {
    byte ahead, head, posted, i, m, p, arrived;
    mtype r;
    do
#ifdef BLOCKING
    :: posted < 2 * M &&
       (posted == 0 || (posted <= M && sent[ME(posted - 1)] == DONE) ||
        (posted > M && state[ME(posted - M - 1)] == DONE)) -> d_step {
        post()
    }
#else
    :: posted < 2 * M -> d_step {
        post()
    }
#endif
    :: (HAS(0) || HAS(1) || HAS(2)) && ROOM ->
        d_step {
            choose()
        }
#ifdef EARLY_WORD
        word[CELL(ahead)] = ahead + 1;
#endif
        d_step {
            kind[CELL(ahead)] = r;
            id[CELL(ahead)] = m;
            part[CELL(ahead)] = p;
#ifdef FINE
        }
        d_step {
#endif
            word[CELL(ahead)] = ahead + 1;
            ahead++;
            r = 0;
            m = 0;
            p = 0
        }
    :: word[THEIRS(head)] == head + 1 && LISTENS ->
#ifdef IN_RING
        d_step {
            m = id[THEIRS(head)];
            r = kind[THEIRS(head)];
            wanted(m, i);
            p = (r != EAGER && r != RTS) || i < M;
            i = 0;
            m = 0;
            r = 0
        }
        if
        :: p == 0 -> (posted < 2 * M && false)
        :: else -> p = 0
        fi;
#endif
#ifdef EARLY_CONSUMED
        consumed[1 - me] = head + 1;
#endif
        d_step {
            r = kind[THEIRS(head)];
            m = id[THEIRS(head)];
            p = part[THEIRS(head)];
#ifdef FINE
        }
        d_step {
#endif
            accept();
            head++;
            consumed[1 - me] = head
        }
    :: posted == 2 * M && ALL_DONE -> break
    od;
    atomic {
        i = 0;
        do
        :: i < M ->
            assert(from[ME(i)] == DUE(i));
            i++
        :: else -> break
        od
    }
}

init {
    byte i;
    atomic {
        do
        :: i < 2 * M ->
            if
            :: how[i] = EAGER
#ifndef BLOCKING
            :: i % M != 1 -> how[i] = LARGE
            :: i % M != 1 -> how[i] = DIRECT
#endif
            fi;
            i++
        :: else -> break
        od;
        /* the two ranks are alike: one of each two mirrored choices is enough */
        if
        :: 9 * how[0] + 3 * how[1] + how[2] <= 9 * how[M] + 3 * how[M + 1] + how[M + 2] ->
            run rank(0);
            run rank(1)
        :: else
        fi
    }
}
