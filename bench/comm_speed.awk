# SPDX-License-Identifier: MIT-0
# comm_speed - the tables of docs/records/performance.md from the rows of bench/comm_speed.sh:
#   part,round,engine,ranks,op,bytes,dirty,round,samples,min_us,median_us,busbw,probe_ns,lost
# A limit is the largest allowed ratio of a median to the median of the best peer.

function bar(part, op, bytes, who, ratio) { bars[part, op, bytes, who] = ratio; bar_order[++n_bars] = part SUBSEP op SUBSEP bytes SUBSEP who }
function both(op, bytes, private_, heap) { bar("sampled", op, bytes, "dpar", private_); bar("sampled", op, bytes, "dpar-heap", heap) }

BEGIN {
    bar("back", "barrier", 0, "dpar", 0.55)
    bar("back", "all_reduce", 4, "dpar", 0.5)
    bar("sampled", "all_reduce", 4, "dpar", 0.75)
    both("all_reduce", 65536, 0.5, 0.25)
    both("all_reduce", 1048576, 0.75, 0.33)
    both("all_reduce", 16777216, 0.8, 0.4)
    both("all_reduce", 67108864, 0.5, 0.2)
    bar("sampled", "reduce_scatter", 65536, "dpar-heap", 0.4)
    bar("sampled", "reduce_scatter", 1048576, "dpar-heap", 0.33)
    bar("sampled", "reduce_scatter", 67108864, "dpar-heap", 0.2)
    bar("sampled", "all_gather", 65536, "dpar-heap", 0.5)
    bar("sampled", "all_gather", 1048576, "dpar-heap", 0.65)
    bar("sampled", "all_gather", 67108864, "dpar-heap", 0.75)
    bar("sampled", "all_to_all", 65536, "dpar-heap", 0.75)
    bar("sampled", "all_to_all", 1048576, "dpar-heap", 0.75)
    bar("sampled", "all_to_all", 67108864, "dpar-heap", 0.75)
    bar("sampled", "p2p", 4, "dpar", 0.85)
    for (b = 4; b <= 67108864; b *= b == 4 ? 16 : b == 64 ? 16 : 4) both("broadcast", b, 1, 1)
    bar("four", "barrier", 0, "dpar", 1.2)
    busy_us = 30 # four ranks beside two busy loops
    floor_bar = 1.15 # registered all_reduce of 64 MiB over the copy
}

$1 == "machine" { sub(/^machine,/, ""); machine = machine (machine == "" ? "" : "; ") $0; next }

{ row[++rows] = $0; if ($13 > 0) { probes++; probe_ns[int($13)]++ } }

# What a cache line takes between the cores most of the time.
function median_probe(ns, sum) {
    for (ns = 0; 2 * sum < probes; ns++) sum += probe_ns[ns]
    return ns
}

# Keep a row when the cores were as far apart as in the others (a virtual machine's may move) and
# free: with cores shared by plan neither can be asked.
function good(f, own) {
    own = f[1] != "four" && f[1] != "busy"
    if (own && (f[13] > 1.5 * probe || f[13] < probe / 1.5)) { far++; return 0 }
    if (own && f[14] > 0.03) { shared++; return 0 }
    return 1
}

function keep(f, key, n) {
    key = f[1] SUBSEP f[5] SUBSEP f[6] SUBSEP f[3]
    n = ++count[key]
    value[key, n] = f[11] + 0
    if (!(key in least) || f[10] + 0 < least[key]) least[key] = f[10] + 0
}

# The median over rounds; 0 when there is none
function median(key, n, i, j, t) {
    n = count[key]
    if (n == 0) return 0
    if (key in medians) return medians[key]
    for (i = 2; i <= n; i++) {
        t = value[key, i]
        for (j = i - 1; j > 0 && value[key, j] > t; j--) value[key, j + 1] = value[key, j]
        value[key, j + 1] = t
    }
    return medians[key] = n % 2 ? value[key, (n + 1) / 2] : (value[key, n / 2] + value[key, n / 2 + 1]) / 2
}

function med(part, op, bytes, who) { return median(part SUBSEP op SUBSEP bytes SUBSEP who) }

function best_peer(part, op, bytes, names, n, i, t, best) {
    n = split("openmpi openmpi-nocma mpich", names, " ")
    best = 0; peer = ""
    for (i = 1; i <= n; i++) {
        t = med(part, op, bytes, names[i])
        if (t > 0 && (best == 0 || t < best)) { best = t; peer = title[names[i]] }
    }
    return best
}

function us(t) { return t == 0 ? "-" : t < 1 ? sprintf("%.2f", t) : t < 10 ? sprintf("%.2f", t) : t < 100 ? sprintf("%.1f", t) : sprintf("%d", t + 0.5) }
function size_name(b) { return b == 0 ? "-" : b >= 1048576 ? b / 1048576 " MiB" : b >= 1024 ? b / 1024 " KiB" : b " B" }
function pair(part, op, bytes, who, t) {
    t = med(part, op, bytes, who)
    return t == 0 ? "-" : us(least[part SUBSEP op SUBSEP bytes SUBSEP who]) " / " us(t)
}

function judged(what, ratio, limit) {
    asked++
    if (ratio <= limit) { met++; return "met" }
    missed = missed sprintf("* %s: %.2f, limit %.2f\n", what, ratio, limit)
    return "**missed**"
}

# "us | ratio | limit"
function against(part, op, bytes, who, best, t, key, r) {
    t = med(part, op, bytes, who); key = part SUBSEP op SUBSEP bytes SUBSEP who
    if (t == 0) return "- | - | " (key in bars ? bars[key] : "")
    if (best == 0) return pair(part, op, bytes, who) " | - | "
    r = t / best
    return pair(part, op, bytes, who) sprintf(" | %.2f | ", r) \
        (key in bars ? bars[key] ", " judged(op (bytes ? " " size_name(bytes) : "") (part == "sampled" ? ", " title[who] : ", " part_title[part]), r, bars[key]) : "")
}

function floor_us(op, bytes, a, b) {
    a = med("sampled", op, bytes, "copy"); b = med("sampled", op, bytes, "stream")
    return a == 0 ? b : b == 0 ? a : a < b ? a : b
}

function op_table(op, bytes, best) {
    if (!(("sampled", op) in seen)) return
    printf "\n### %s\n\n", op
    print "| size | best peer | us | dpar, private | ratio | limit | dpar, registered | ratio | limit | floor |"
    print "|---|---|---|---|---|---|---|---|---|---|"
    for (bytes = 4; bytes <= 67108864; bytes *= bytes < 1024 ? 16 : 4) {
        best = best_peer("sampled", op, bytes)
        if (best == 0 && med("sampled", op, bytes, "dpar") == 0) continue
        printf "| %s | %s | %s | %s | %s | %s |\n", size_name(bytes), peer,
            best == 0 ? "-" : us(peer_least(op, bytes)) " / " us(best), against("sampled", op, bytes, "dpar", best),
            against("sampled", op, bytes, "dpar-heap", best), bytes < 1048576 || op == "p2p" ? "" : us(floor_us(op, bytes))
    }
}

function peer_least(op, bytes, k) {
    for (k in title) if (title[k] == peer) return least["sampled" SUBSEP op SUBSEP bytes SUBSEP k]
}

function small_table(part, op, bytes, best) {
    best = best_peer(part, op, bytes)
    if (best == 0) return
    printf "| %s, %s | %s | %s | %s | %s |\n", op (bytes ? " " size_name(bytes) : ""), part_title[part],
        pair(part, op, bytes, "openmpi"), pair(part, op, bytes, "mpich"),
        against(part, op, bytes, "dpar", best), part == "back" ? pair(part, op, bytes, "dpar-heap") : "-"
}

function busy_row(t) {
    t = med("busy", "barrier", 0, "dpar")
    if (!(("busy", "barrier") in seen)) return
    printf "| barrier, %s | %s | %s | %s | %s | %s | - |\n", part_title["busy"], pair("busy", "barrier", 0, "openmpi"),
        pair("busy", "barrier", 0, "mpich"), pair("busy", "barrier", 0, "dpar"),
        t ? sprintf("%.4f", t / best_peer("busy", "barrier", 0)) : "-",
        t ? busy_us " us, " judged("barrier, four ranks beside busy loops, us", t, busy_us) : ""
}

# Not judged: with a session a rank (Hydra) sched_yield may not reach the other ranks.
function hydra_lines(t) {
    t = med("four", "barrier", 0, "dpar-hydra")
    if (t) printf "\nStarted by MPICH's Hydra, four ranks: dpar %s us; beside busy loops %s us (MPICH in the columns above).\n",
        pair("four", "barrier", 0, "dpar-hydra"), pair("busy", "barrier", 0, "dpar-hydra")
}

function floor_lines(t, f, s) {
    t = med("sampled", "all_reduce", 67108864, "dpar-heap"); f = floor_us("all_reduce", 67108864)
    if (t && f) {
        printf "\nall_reduce of 64 MiB from registered memory takes %.2f of a copy of 64 MiB by both ranks at once\n(%s us, streaming stores): limit %.2f, %s.\n", \
            t / f, us(f), floor_bar, judged("all_reduce 64 MiB registered over the floor", t / f, floor_bar)
    }
    s = med("settings", "all_reduce", 67108864, "openmpi-sm")
    if (s) {
        printf "\nOpen MPI with coll/sm at high priority (no default): all_reduce of 64 MiB %s us", pair("settings", "all_reduce", 67108864, "openmpi-sm")
        if (t) printf "; dpar is at %.2f of it (private), %.2f (registered)", med("sampled", "all_reduce", 67108864, "dpar") / s, t / s
        print "."
    }
}

END {
    title["openmpi"] = "Open MPI"; title["openmpi-nocma"] = "Open MPI, no CMA"; title["mpich"] = "MPICH"
    title["dpar"] = "private"; title["dpar-heap"] = "registered"
    part_title["back"] = "back to back"; part_title["four"] = "four ranks on two cores"
    part_title["busy"] = "four ranks, two busy loops on a core"
    probe = median_probe()
    for (i = 1; i <= rows; i++) {
        split(row[i], f, ",")
        seen[f[1], f[5]] = 1
        if (good(f)) keep(f)
    }
    print "Measured: " machine "."
    printf "\nA cache line took %d ns between the cores. Of %d rows %d were dropped because it took more than 1.5 times\nthat, or less than it over 1.5; %d because a rank had waited for its core in more than 3 %% of the time.\n", probe, rows, far, shared
    op_table("all_reduce"); op_table("reduce_scatter"); op_table("all_gather")
    op_table("all_to_all"); op_table("broadcast"); op_table("p2p")
    floor_lines()
    print "\n### Back to back, and more ranks than cores\n"
    print "| | Open MPI | MPICH | dpar | ratio | limit | dpar, registered |\n|---|---|---|---|---|---|---|"
    small_table("back", "barrier", 0); small_table("back", "all_reduce", 4)
    small_table("four", "barrier", 0); busy_row()
    hydra_lines()
    if (asked) printf "\n%d of %d limits met.%s\n", met, asked, missed == "" ? "" : " Missed:\n\n" substr(missed, 1, length(missed) - 1)
}
