# SPDX-License-Identifier: MIT-0
# Reports which code of src/ ran: reads the text output of gcov -b -c -t for several programs that contain the
# same headers, and counts a line or a branch if one of them took it. The marks in the headers tell which file
# of src/ a line is from.
#
# The first file is tests/uncovered.txt, which lists what need not be taken, each with a reason above. `judge`
# is a regular expression for the modules whose branches and messages must all be taken or be listed there;
# `said` for those whose messages must; `lines` for folders of which 90 % of the lines must be.
FNR == 1 { files++ }
files == 1 { if ($0 !~ /^#/ && $0 != "") listed[$0] = 1; next }
/^ *-: *0:/ {
    if (!/:Source:/) next
    file = $0
    sub(/.*:Source:/, "", file)
    sub(/.*\//, "", file)
    ours = file ~ /^dpar(_[a-z]+)?\.h$/
    line = 0
    next
}
!ours { next }
/^branch/ {
    if (line == 0) next
    key = file SUBSEP line SUBSEP $2
    if (!(key in taken)) taken[key] = 0
    if ($2 >= branches[file, line]) branches[file, line] = $2 + 1
    if ($3 == "taken") taken[key] += $4
    next
}
/^ *[0-9#=*-]+: *[0-9]+:/ {
    split($0, part, ":")
    count = part[1]
    gsub(/[ *]/, "", count)
    line = part[2] + 0
    if (line > last[file]) {
        last[file] = line
        text[file, line] = $0
        sub(/^[^:]*:[^:]*:/, "", text[file, line])
    }
    if (count == "-") next
    code[file, line] = 1
    if (count !~ /[#=]/) ran[file, line] += count
}
function trimmed(s) { sub(/^ +/, "", s); return s }
function miss(name, needed) {
    if (name in listed) { met[name] = 1; excepted[folder]++; return }
    if (!needed) return
    if (!(name in told)) print "not taken: " name
    told[name] = 1
    failed = 1
}
# Checks that the messages in the statement from line `from` to line `to` of a file, which calls a writer, were
# all written.
function sentences(from, to,    l, at, n, k, s, spoken, all) {
    for (l = at = from; l <= to; l++) {
        if ((file, l) in code) at = l
        s = text[file, l]
        n = gsub(/"[^"]* [^"]*"/, "&", s)
        if (n == 0) continue
        spoken = !((file, at) in code) || ran[file, at] > 0
        for (k = 0; n > 1 && k < branches[file, at]; k++) { # one of two
            if ((file, at, k) in taken && taken[file, at, k] == 0) spoken = 0
        }
        said_all[folder]++
        if (spoken) said_now[folder]++
        else miss("say " module ": " trimmed(text[file, l]), module ~ said)
    }
}
END {
    for (file in last) {
        module = ""
        from = 0
        for (l = 1; l <= last[file]; l++) {
            t = text[file, l]
            if (t ~ /^\/\* ==== [a-z]+\/[a-z0-9_]+\.[ch] ==== \*\/$/) {
                module = t
                gsub(/^\/\* ==== | ==== \*\/$/, "", module)
                folder = module
                sub(/\/.*/, "", folder)
                here[module] = 1
            }
            if (module == "" || (module in ended && ended[module] != file)) continue
            ended[module] = file
            if ((file, l) in code) {
                all_lines[folder]++
                if (ran[file, l] > 0) ran_lines[folder]++
            }
            for (k = 0; k < branches[file, l]; k++) {
                if (!((file, l, k) in taken)) continue
                all_branches[folder]++
                if (taken[file, l, k] > 0) taken_branches[folder]++
                else miss(module ": " k ": " trimmed(t), module ~ judge)
            }
            if (from == 0 && t ~ /^ .*(dpari_[a-z_]*(say|wrong|refuse|fail)[a-z_]*|dpari_os_why|dpari_alloc_why|dpari_advice_why|dpar_fail)\(/ &&
                t !~ /^ *(if|while|for) \(.*\{$/) from = l
            if (from > 0 && t ~ /[;{}]( \/\*.*\*\/)?$/) {
                sentences(from, l)
                from = 0
            }
        }
    }
    for (name in listed) {
        module = name
        sub(/^say /, "", module)
        sub(/:.*/, "", module)
        if (!(name in met) && (module ~ judge || (name ~ /^say / && module ~ said))) {
            print "tests/uncovered.txt: no longer so: " name
            failed = 1
        }
    }
    n = split("base index schedule cost comm halo points train spatial debug", order, " ")
    for (i = 1; i <= n; i++) {
        folder = order[i]
        if (all_lines[folder] == 0 || folder !~ shown) continue
        printf "%-9s lines %6.2f %% of %5d   branches %6.2f %% of %5d   sentences %4d of %4d   listed %d\n", folder,
            100 * ran_lines[folder] / all_lines[folder], all_lines[folder],
            all_branches[folder] ? 100 * taken_branches[folder] / all_branches[folder] : 100, all_branches[folder],
            said_now[folder], said_all[folder], excepted[folder]
        if (folder ~ lines && ran_lines[folder] < 0.9 * all_lines[folder]) {
            print folder ": less than 90 % of the lines"
            failed = 1
        }
    }
    exit failed
}
