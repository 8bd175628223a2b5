# SPDX-License-Identifier: MIT-0
# halo - the tables of a section of docs/records/performance.md from the rows of bench/halo.sh:
#   part,label,ranks,grid,n,w,shape,engine,halo_bytes,samples,min_us,median_us,left_out
# A limit is the largest allowed ratio of two medians.

$1 == "machine" { sub(/^machine,/, ""); machine = machine (machine == "" ? "" : "; ") $0; next }

{
    key = $1 SUBSEP $5 SUBSEP $6 SUBSEP $7 SUBSEP $8 SUBSEP $2
    value[key, ++count[key]] = $12 + 0
    samples += $10; left_out += $13
}

# Of one engine under one MPI library, over rounds; 0 when there is none
function median(part, n, w, shape, engine, label, key, m, i, j, t) {
    key = part SUBSEP n SUBSEP w SUBSEP shape SUBSEP engine SUBSEP label
    m = count[key]
    if (m == 0) return 0
    if (key in medians) return medians[key]
    for (i = 2; i <= m; i++) {
        t = value[key, i]
        for (j = i - 1; j > 0 && value[key, j] > t; j--) value[key, j + 1] = value[key, j]
        value[key, j + 1] = t
    }
    return medians[key] = m % 2 ? value[key, (m + 1) / 2] : (value[key, m / 2] + value[key, m / 2 + 1]) / 2
}

# dpar's own: its code is the same under both libraries; the middle of the two
function own(part, n, w, shape, engine, a, b) {
    a = median(part, n, w, shape, engine, "openmpi"); b = median(part, n, w, shape, engine, "mpich")
    return a == 0 ? b : b == 0 ? a : (a + b) / 2
}

function best_peer(part, n, w, shape, names, labels, i, j, t, best) {
    split("types neighbour pack ordered", names, " "); split("openmpi mpich", labels, " ")
    best = 0; peer = "-"
    for (i = 1; i <= 4; i++) for (j = 1; j <= 2; j++) {
        t = median(part, n, w, shape, names[i], labels[j])
        if (t > 0 && (best == 0 || t < best)) { best = t; peer = title[labels[j]] ", " names[i] }
    }
    return best
}

function us(t) { return t == 0 ? "-" : t < 10 ? sprintf("%.2f", t) : t < 100 ? sprintf("%.1f", t) : sprintf("%d", t + 0.5) }
function ratio(a, b) { return a == 0 || b == 0 ? "-" : sprintf("%.2f", a / b) }

function judged(what, r, limit) {
    asked++
    if (r <= limit) { met++; return "met" }
    missed = missed sprintf("* %s: %.2f, limit %s\n", what, r, limit)
    return "**missed**"
}

# "| ratio, met |"; nothing where there is nothing to compare
function against(what, a, b, limit) {
    if (a == 0 || b == 0) return "-"
    return ratio(a, b) ", " judged(what, a / b, limit)
}

function two_table(part, words, n, w, s, i, k, best, reg, priv, name) {
    printf "\n### Two ranks, cut along %s\n\n", words
    print "| n, w, shape | best MPI | us | registered | ratio (0.8) | private | ratio (1) | messages | adjoint / forward (1.25) | floor / registered |"
    print "|---|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= sizes; i++) for (w = 1; w <= 2; w++) for (s = 1; s <= 2; s++) {
        n = size[i]; name = part " cut, " n ", w " w ", " shape[s]
        best = best_peer(part, n, w, shape[s]); reg = own(part, n, w, shape[s], "registered")
        if (best == 0 || reg == 0) continue
        all_ratios[++ratios] = reg / best
        priv = own(part, n, w, shape[s], "private")
        printf "| %d, %d, %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", n, w, shape[s], peer, us(best), us(reg),
            against(name ", registered", reg, best, 0.8), us(priv), against(name ", private", priv, best, 1),
            us(own(part, n, w, shape[s], "messages")),
            against(name ", adjoint / forward", own(part, n, w, shape[s], "adjoint"), reg, 1.25),
            ratio(own(part, n, w, shape[s], "floor"), reg)
    }
}

function full_table(part, i, w, a, b) {
    for (i = 1; i <= sizes; i++) for (w = 1; w <= 2; w++) {
        a = own(part, size[i], w, "full", "registered"); b = own(part, size[i], w, "faces", "registered")
        if (a && b) printf "| %s | %d, %d | %s | %s | %s | %s |\n", part, size[i], w, us(b), us(a),
            ratio((size[i] + 2 * w) ^ 3 - size[i] ^ 3, 6 * w * size[i] ^ 2),
            against(part " cut, " size[i] ", w " w ", full / faces", a, b, 1.1)
    }
}

function middle(n, i, j, t) {
    for (i = 2; i <= n; i++) {
        t = all_ratios[i]
        for (j = i - 1; j > 0 && all_ratios[j] > t; j--) all_ratios[j + 1] = all_ratios[j]
        all_ratios[j + 1] = t
    }
    return n % 2 ? all_ratios[(n + 1) / 2] : (all_ratios[n / 2] + all_ratios[n / 2 + 1]) / 2
}

function petsc_table(i, w, s, p, r) {
    for (i = 1; i <= sizes; i++) for (w = 1; w <= 2; w++) for (s = 1; s <= 2; s++) {
        p = median("z", size[i], w, shape[s], "petsc", "openmpi"); r = own("z", size[i], w, shape[s], "registered")
        if (!p || !r) continue
        if (!had_petsc++) print "\n### PETSc\n\nDMGlobalToLocal of a DMDA, which copies the own cells, too.\n\n| n, w, shape | PETSc | registered | ratio |\n|---|---|---|---|"
        printf "| %d, %d, %s | %s | %s | %s |\n", size[i], w, shape[s], us(p), us(r),
            size[i] == 128 ? against("PETSc, 128, w " w ", " shape[s], r, p, 0.15) " (0.15)" : ratio(r, p)
    }
}

function one_table(i, w, s, f, r, name) {
    print "\n### One rank, periodic: its own neighbour\n\nThe local copy is the hand-written one of the same boxes.\n"
    print "| n, w, shape | best MPI type or neighbour call | local copy | registered | ratio (1) | private |\n|---|---|---|---|---|---|"
    for (i = 1; i <= sizes; i++) for (w = 1; w <= 2; w++) for (s = 1; s <= 2; s++) {
        f = own("one", size[i], w, shape[s], "pack"); r = own("one", size[i], w, shape[s], "registered")
        if (f && r) printf "| %d, %d, %s | %s | %s | %s | %s | %s |\n", size[i], w, shape[s], us(own("one", size[i], w, shape[s], "neighbour")),
            us(f), us(r), against("one rank, " size[i] ", w " w ", " shape[s], r, f, 1), us(own("one", size[i], w, shape[s], "private"))
    }
}

# Eight fields may take 8 times the bytes and 1.3 times the latency of one. A block of 1^3, which has a
# cell on each side, is latency: 1.3 times one. The bytes of all others may take no longer than in
# eight exchanges, of which those of one that is exchanged over and over would stay in the caches: one
# is an eighth of eight in turn. The mark takes 6.7 latencies off those eight, too, as if none of it
# went by behind copies.
function eight_table(i, n, sizes_of_eight, fixed, lone, a, b, mark, bar) {
    fixed = own("eight", 1, 1, "faces", "in_turn") / 8
    if (!fixed) return
    print "\n### Eight fields at once\n\nIn one message a peer (8 times the bytes of one, which `tests/halo/ranks/halo_oracle.c` counts), beside eight\nexchanged one after the other: *one of eight* is an eighth of that. (A field alone, exchanged over and over,\nis in the caches, where eight of its size are not.) A block of 1^3, the smallest there is, takes the latency\nof an exchange: eight of them may take 1.3 times one; all others 8 times one of eight. *Mark*: eight fields\nbeside 1.3 times that latency, " us(fixed) " us, and 8 times what one of eight takes beyond it, which would be a limit\nif exchanges hid nothing of their latency behind copies. *By hand*: eight fields in shared windows of MPI, each\nrank copying out of the other's arrays between two rounds of flags.\n"
    print "| n | one field alone | one of eight | eight fields | ratio | mark | by hand |\n|---|---|---|---|---|---|---|"
    split("1 2 16 32 64", sizes_of_eight, " ")
    for (i = 1; i <= 5; i++) {
        n = sizes_of_eight[i]
        lone = own("eight", n, 1, "faces", "registered")
        a = own("eight", n, 1, "faces", "in_turn") / 8; b = own("eight", n, 1, "faces", "eight")
        mark = 1.3 * fixed + (a > fixed ? 8 * (a - fixed) : 0)
        bar = n == 1 ? 1.3 : 1
        if (a && b && lone) printf "| %d | %s | %s | %s | %s (%s) | %s | %s |\n", n, us(lone), us(a), us(b), against("eight fields, " n, b, n == 1 ? lone : 8 * a, bar), bar, ratio(b, mark), us(own("eight", n, 1, "faces", "windows"))
    }
}

function crowd_table(i, s, best, r, p) {
    for (i = 1; i <= sizes; i++) for (s = 1; s <= 2; s++) {
        best = best_peer("crowd", size[i], 1, shape[s]); r = own("crowd", size[i], 1, shape[s], "registered")
        if (!best || !r) continue
        if (!had_crowd++) print "\n### Eight ranks on two cores\n\n| n, shape | best MPI | us | registered | ratio (1) | private | messages |\n|---|---|---|---|---|---|---|"
        printf "| %d, %s | %s | %s | %s | %s | %s | %s |\n", size[i], shape[s], peer, us(best), us(r),
            against("8 ranks, " size[i] ", " shape[s], r, best, 1), us(own("crowd", size[i], 1, shape[s], "private")),
            us(own("crowd", size[i], 1, shape[s], "messages"))
    }
}

END {
    title["openmpi"] = "Open MPI"; title["mpich"] = "MPICH"
    sizes = split("32 64 128", size, " "); split("faces full", shape, " ")
    print "Measured: " machine "."
    if (left_out) printf "\n%d of %d samples were taken and left out: a rank had waited for its core in more than 3 %% of the time, another\nguest of the host had used it (a small loop took more than 1.1 times as long as alone), or a cache line took longer\nor shorter between the cores than usual, beyond 1.5 times. They were taken again.\n", left_out, left_out + samples
    two_table("z", "planes"); two_table("x", "the contiguous dim")
    if (ratios) printf "\nMedian of the %d ratios of registered fields: %s (limit 0.6).\n", ratios, against("median ratio, registered", middle(ratios), 1, 0.6)
    print "\n### Full against faces\n\n*Bytes* is the ratio of the cells: what edges and corners add.\n\n| cut | n, w | faces | full | bytes | ratio (1.1) |\n|---|---|---|---|---|---|"
    full_table("z"); full_table("x")
    petsc_table(); one_table(); eight_table(); crowd_table()
    if (asked) printf "\n%d of %d limits met.%s\n", met, asked, missed == "" ? "" : " Missed:\n\n" substr(missed, 1, length(missed) - 1)
}
