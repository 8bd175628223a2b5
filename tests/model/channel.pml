/* SPDX-License-Identifier: MIT-0 */
/* channel - checks messages between two ranks, with a ring of cells in each direction. Each rank
 * sends three messages, with tags 1, 1, 2, before it receives tags 2, 1, 1, in many mixtures of
 * these kinds (with -DWRITTEN other ones):
 *
 *   EAGER   whole in one record
 *   LONG    EAGER, then DATA, before any later message
 *   LARGE   RTS; the receiver answers CTS; DATA, DATA
 *   DIRECT  RTS; the receiver reads the sender's memory and answers FIN
 *   PUSH    RTS; the receiver answers CTS; the sender writes the receiver's memory, then PUT
 *
 * Either all operations are posted (the sends at once, then the receives one by one, with progress
 * in between) and waited for; or (with -DBLOCKING, only EAGER and LONG, because large messages
 * would be the user's deadlock) each is waited for before the next. A rank whose own operations are
 * done makes no more progress. Claim: each receive gets its whole message, the oldest with its tag;
 * no message is lost or doubled; both ranks finish.
 *
 * Cells: the sender writes if fewer than CELLS are unread (its own count minus `consumed`), fills
 * the cell, then stores its word = index + 1; the receiver waits for the word of its next index,
 * reads the cell, then stores `consumed` (after every TELL records). Words and `consumed` have one
 * writer, so that release and acquire are enough. Stores between which no other rank can see a
 * difference are one step; with -DFINE they are separate steps. Records that no posted receive
 * wants leave the ring too. The order of sending is: answers, then new messages in their order,
 * then data that a CTS requested; a rank that waits writes if there is nothing to read.
 *
 * -DNO_ROOM         does not check consumed                                   must fail
 * -DEARLY_WORD      the word before the cell                                  must fail
 * -DEARLY_CONSUMED  consumed before the cell is read                          must fail
 * -DTELL=3          consumed is stored too rarely for CELLS = 2               must fail
 * -DIN_RING         records not wanted stay in the ring (-DBLOCKING)          must fail
 * -DDEAF            a rank that sends does not read (-DBLOCKING)              must fail
 * -DANY_ORDER       messages are sent in any order                            must fail
 * -DLAST_FIRST      the newest of a tag is taken                              must fail
 * -DEND_LATER       a send ends before its FIN or PUT is in the ring          must fail */
#ifndef TELL
#define TELL 1
#endif
#ifndef CELLS
#define CELLS 2
#endif
#define M 3     /* messages in each direction */
#define PARTS 2 /* of a large message */
#define TAG(id) (1 + (id) / 2)     /* 1, 1, 2 */
#define WANT(i) (2 - ((i) + 1) / 2) /* 2, 1, 1 */
#define DUE(i) (((i) + 2) % 3)     /* message 2, then 0, 1 */

mtype = { EAGER, LONG, LARGE, DIRECT, PUSH, RTS, CTS, DATA, FIN, PUT };
/* a ring per rank, for its outgoing records */
byte word[2 * CELLS], id[2 * CELLS], part[2 * CELLS], consumed[2];
mtype kind[2 * CELLS];

#define QUEUED 1
#define OFFERED 2
#define CLEARED 3
#define DONE 4
#define STARTED 5 /* a LONG message whose DATA is next */
#define PUTTING 6 /* its PUT is not yet in the ring */
mtype how[2 * M];
byte sent[2 * M], parts[2 * M]; /* state of a send */

#define POSTED 1
#define MATCHED 2
#define LEAVING 3 /* its FIN is not yet in the ring */
byte state[2 * M], from[2 * M], got[2 * M]; /* state of a receive */
byte kept[2 * M];                          /* parts of an early message */
mtype early[2 * M];                        /* records that arrived before their receive */
bit put[2 * M];
mtype reply[2 * M];                        /* CTS or FIN to be sent, by message; put: PUT */

#define ME(i) (me * M + (i))
#define ALL_DONE                                                                                   \
    (sent[ME(0)] == DONE && sent[ME(1)] == DONE && sent[ME(2)] == DONE && state[ME(0)] == DONE &&  \
     state[ME(1)] == DONE && state[ME(2)] == DONE)
#define HAS_REPLY(i) (reply[ME(i)] != 0)
#define HAS_PUT(i) (put[ME(i)])
#define HAS_DATA(i) (sent[ME(i)] == CLEARED)
#define HAS_FIRST(i) (sent[ME(i)] == QUEUED || sent[ME(i)] == STARTED)
#define HAS(i) (HAS_REPLY(i) || HAS_PUT(i) || HAS_DATA(i) || HAS_FIRST(i))
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
#define WANTS(i) (state[ME(i)] == POSTED && WANT(i) == TAG(id[THEIRS(head)]))
#ifdef IN_RING
#define MAY_LEAVE                                                                                  \
    (kind[THEIRS(head)] != EAGER && kind[THEIRS(head)] != RTS || WANTS(0) || WANTS(1) || WANTS(2))
#else
#define MAY_LEAVE true
#endif
#define READABLE (word[THEIRS(head)] == head + 1 && MAY_LEAVE)
#define CELL(n) (me * CELLS + (n) % CELLS)
#define THEIRS(n) ((1 - me) * CELLS + (n) % CELLS)

/* Receive i takes message m, of which this record is the first (and n parts are there). */
inline take(i, m, r, n) {
    from[ME(i)] = m;
    if
    :: r == EAGER && how[(1 - me) * M + m] == EAGER -> state[ME(i)] = DONE
    :: r == EAGER && how[(1 - me) * M + m] == LONG ->
        got[ME(i)] = n;
        state[ME(i)] = (n == PARTS -> DONE : MATCHED)
    :: r == RTS && how[(1 - me) * M + m] != DIRECT ->
        state[ME(i)] = MATCHED;
        reply[ME(m)] = CTS
    :: else ->
        assert(sent[(1 - me) * M + m] == OFFERED);
        reply[ME(m)] = FIN;
#ifdef END_LATER
        state[ME(i)] = DONE
#else
        state[ME(i)] = LEAVING
#endif
    fi
}

/* Finds the receive that wants message m; M if there is none. */
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
        sent[ME(posted)] = QUEUED;
#ifndef BLOCKING
        sent[ME(1)] = QUEUED;
        sent[ME(2)] = QUEUED;
        posted = M - 1
#endif
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
            take(i, m, early[ME(m)], kept[ME(m)]);
            early[ME(m)] = 0
        :: else
        fi
    fi;
    posted++;
    i = 0;
    m = 0
}

/* Handles a record from the ring. */
inline accept() {
    if
    :: r == EAGER || r == RTS ->
        assert(m == arrived);
        arrived++;
        wanted(m, i);
        if
        :: i < M -> take(i, m, r, 1)
        :: else ->
            early[ME(m)] = r;
            kept[ME(m)] = 1
        fi
    :: r == CTS ->
        assert(sent[ME(m)] == OFFERED && (how[ME(m)] == LARGE || how[ME(m)] == PUSH));
        if
        :: how[ME(m)] == LARGE -> sent[ME(m)] = CLEARED
        :: else ->
            put[ME(m)] = 1;
#ifdef END_LATER
            sent[ME(m)] = DONE
#else
            sent[ME(m)] = PUTTING
#endif
        fi
    :: r == FIN ->
        assert(sent[ME(m)] == OFFERED && how[ME(m)] == DIRECT);
        sent[ME(m)] = DONE
    :: r == DATA ->
        i = 0;
        do
        :: i < M && !(state[ME(i)] == MATCHED && from[ME(i)] == m) -> i++
        :: else -> break
        od;
        if
        :: i < M ->
            assert(got[ME(i)] == p);
            got[ME(i)]++;
            state[ME(i)] = (got[ME(i)] == PARTS -> DONE : MATCHED)
        :: else ->
            /* of the newest early message */
            assert(m + 1 == arrived && early[ME(m)] == EAGER && kept[ME(m)] == p);
            kept[ME(m)]++
        fi
    :: r == PUT ->
        i = 0;
        do
        :: !(state[ME(i)] == MATCHED && from[ME(i)] == m) -> i++
        :: else -> break
        od;
        state[ME(i)] = DONE
    fi;
    i = 0;
    r = 0;
    m = 0;
    p = 0
}

/* Chooses what is sent next. */
inline choose() {
    p = 0;
    m = 0;
    do
    :: m < M && !HAS_REPLY(m) && !HAS_PUT(m) -> m++
    :: else -> break
    od;
    if
    :: m < M && HAS_PUT(m) ->
        r = PUT;
        put[ME(m)] = 0;
        sent[ME(m)] = DONE
    :: m < M && !HAS_PUT(m) ->
        r = reply[ME(m)];
        reply[ME(m)] = 0
    :: m == M ->
#ifdef ANY_ORDER
        m = M;
        do
        :: m > 0 && !HAS_FIRST(m - 1) -> m--
        :: else -> break
        od;
        m = (m == 0 -> M : m - 1);
#else
        m = 0;
        do
        :: m < M && !HAS_FIRST(m) -> m++
        :: else -> break
        od;
#endif
        if
        :: m < M && sent[ME(m)] == STARTED ->
            r = DATA;
            p = 1;
            sent[ME(m)] = DONE
        :: m < M && sent[ME(m)] != STARTED ->
            r = (how[ME(m)] == EAGER || how[ME(m)] == LONG -> EAGER : RTS);
            sent[ME(m)] = (how[ME(m)] == EAGER -> DONE : (how[ME(m)] == LONG -> STARTED : OFFERED))
        :: m == M ->
            m = 0;
            do
            :: !HAS_DATA(m) -> m++
            :: else -> break
            od;
            r = DATA;
            p = parts[ME(m)];
            parts[ME(m)]++;
            sent[ME(m)] = (parts[ME(m)] == PARTS -> DONE : CLEARED)
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
    :: (HAS(0) || HAS(1) || HAS(2)) && ROOM && (posted <= M || !READABLE) ->
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
    :: READABLE && LISTENS ->
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
            consumed[1 - me] = (head - consumed[1 - me] >= TELL -> head : consumed[1 - me])
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
#ifdef BLOCKING
            :: how[i] = EAGER
            :: how[i] = LONG
#else
#ifdef WRITTEN
            :: i == 0 || i == M -> how[i] = LONG
            :: i == 0 || i == M + 2 -> how[i] = PUSH
            :: i != 0 && i != M -> how[i] = EAGER
#else
            :: how[i] = EAGER
            :: i == 0 || i == M -> how[i] = LARGE
            :: i == 0 || i == M -> how[i] = DIRECT
#endif
#endif
            fi;
            i++
        :: else -> break
        od;
        run rank(0);
        run rank(1)
    }
}
