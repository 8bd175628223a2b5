/* SPDX-License-Identifier: MIT-0 */
/* share - checks a large message between registered memories, of which each rank copies a half:
 * RTS; the receiver answers CTS, copies the first half from the sender's memory, then sends FIN;
 * the sender copies the second half into the receiver's memory, then sends PUT. The sender is done
 * when its PUT is sent and FIN has arrived, the receiver when its FIN is sent and PUT has arrived.
 * Then each may change its memory, and continues with the next message. Claim: each half is copied
 * while it belongs to the message, the receiver gets both halves, and both ranks finish.
 *
 * Channels are as in channel.pml and reduced to their promise here: records arrive in order.
 *
 * -DNO_FIN      the sender is done when its PUT is out                       must fail
 * -DEARLY_FIN   FIN before the half is copied                                must fail
 * -DNO_PUT      the receiver is done when its own half is copied             must fail */
#define MESSAGES 2
mtype = { RTS, CTS, PUT, FIN };
chan there = [2] of { mtype, byte };
chan back = [2] of { mtype, byte };
byte in[2], out[2]; /* halves: the message that they hold, 0 for the caller's */

proctype sender() {
    byte m = 1;
    bit put, fin;
    do
    :: m <= MESSAGES ->
        in[0] = m;
        in[1] = m;
        there!RTS, m;
        do
        :: back?CTS, eval(m) ->
            out[1] = in[1];
            there!PUT, m;
            put = 1
        :: back?FIN, eval(m) -> fin = 1
#ifdef NO_FIN
        :: put -> break
#else
        :: put && fin -> break
#endif
        od;
        atomic {
            in[0] = 0;
            in[1] = 0;
            put = 0;
            fin = 0;
            m++
        }
    :: else -> break
    od
}

proctype receiver() {
    byte m = 1;
    do
    :: m <= MESSAGES ->
        there?RTS, eval(m);
        back!CTS, m;
#ifdef EARLY_FIN
        back!FIN, m;
#endif
        assert(in[0] == m);
        out[0] = in[0];
#if !defined(EARLY_FIN) && !defined(NO_FIN)
        back!FIN, m;
#endif
#ifndef NO_PUT
        there?PUT, eval(m);
#endif
        d_step {
            assert(out[0] == m && out[1] == m);
            out[0] = 0;
            out[1] = 0
        }
        assert(out[0] == 0 && out[1] == 0);
        m++
    :: else -> break
    od
}

init {
    atomic {
        run sender();
        run receiver()
    }
}
