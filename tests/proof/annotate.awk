# SPDX-License-Identifier: MIT-0
# Puts annotations into a copy of a header: awk -f annotate.awk LIST HEADER. LIST has lines "function: text of a
# line", each followed by the text to insert before that line of the function; with > after it; with = in its
# place. A line that is not found exactly once is an error: the code has changed, and so must the list.
FNR == NR {
    if (/^[a-z0-9_]+[:>=] /) key = $0
    else if (key != "" && !/^#/) text[key] = text[key] $0 "\n"
    next
}
/^[A-Za-z].*dpari?_[a-z0-9_]+\(/ && !/;$/ {
    match($0, /dpari?_[a-z0-9_]+\(/)
    of = substr($0, RSTART, RLENGTH - 1)
}
function said(mark) {
    if (!((of mark " " line) in text)) return 0
    printf "%s", text[of mark " " line]
    return ++found[of mark " " line]
}
{
    line = $0
    sub(/^ +/, "", line)
    said(":")
    if (!said("=")) print
    said(">")
}
END {
    for (key in text) if (found[key] != 1) {
        print "found " found[key] + 0 " times: " key > "/dev/stderr"
        bad = 1
    }
    exit bad
}
