#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that pages are readable: no sentence of README, guide or the public headers' comments has more than 35
# words; no line of README and docs/ is wider than 100 columns. Rows of tables may be wider in docs/ except
# guide and from-*.md; generated pages may be wider. README has at most 160 lines, CHANGELOG 120, each of at
# most 120 columns. Links lead to existing files. No page and no comment has a word of idioms.txt. The maps
# src/README.md and tests/README.md name every file, and no other. DPAR_PAGES: other pages, checked like README;
# DPAR_COMMENTS: other headers; DPAR_MAPS: where the maps are (self.sh uses them).
generated='docs/api.md docs/records/accuracy.md docs/records/performance.md'
bad=0
complain() { echo "$1"; bad=1; }
if [ -n "${DPAR_PAGES:-}" ]; then
    first=$DPAR_PAGES others=
else
    first="README.md $(echo docs/guide.md docs/guide/*.md docs/from-*.md)" others=
    for page in CHANGELOG.md CONTRIBUTING.md src/README.md tests/README.md examples/README.md docs/*.md docs/records/*.md; do
        case " $generated $first " in *" $page "*) ;; *) others="$others $page" ;; esac
    done
    [ "$(wc -l < README.md)" -le 160 ] || complain "README.md: $(wc -l < README.md) lines, 160 are enough"
    [ "$(wc -l < CHANGELOG.md)" -le 120 ] || complain "CHANGELOG.md: $(wc -l < CHANGELOG.md) lines, 120 are enough"
fi
for page in $first $others; do
    tables=1
    case " $others " in *" $page "*) tables=0 ;; esac
    awk -v page="$page" -v tables=$tables '
        BEGIN { most = page == "CHANGELOG.md" ? 120 : 100 }
        length($0) > most && (tables || !/^ *\|/) { print page ":" NR ": " length($0) " wide"; bad = 1 }
        END { exit bad }' "$page" || bad=1
done
# Checks the sentences of paragraphs and of list items; a cell of a table is one text. Code does not count.
for page in $first; do
    awk -v page="$page" '
        function judge(text, line,   n, word, i, count) {
            gsub(/\]\([^)]*\)/, "]", text)
            gsub(/`[^`]*`/, "code", text)
            n = split(text, word, /[ \t]+/); count = 0
            for (i = 1; i <= n; i++) {
                if (word[i] ~ /[A-Za-z0-9]/) count++
                if (word[i] ~ /[.?!][)\]*_"]*$/ && word[i] !~ /^(e\.g|i\.e|vs|cf|abs)\.$/) {
                    if (count > 35) { print page ":" line ": a sentence of " count " words"; bad = 1 }
                    count = 0
                }
            }
            if (count > 35) { print page ":" line ": a sentence of " count " words"; bad = 1 }
        }
        function flush() { if (text != "") judge(text, began); text = "" }
        /^```/ { flush(); code = !code; next }
        code { next }
        /^[ ]*$/ { flush(); next }
        /^(    |#)/ && text == "" { next }
        /^ *\|/ { flush(); n = split($0, cell, "|"); for (i = 1; i <= n; i++) judge(cell[i], NR); next }
        /^ *(\* |[0-9]+\. )/ { flush() }
        { if (text == "") began = NR; text = text " " $0 }
        END { flush(); exit bad }' "$page" || bad=1
done
# Checks the sentences of comments above "Stop here". Lines that are indented by five blanks or more behind the
# star are code.
if [ -n "${DPAR_PAGES:-}" ]; then
    commented=${DPAR_COMMENTS:-}
else
    . tools/headers
    commented=$(echo src/*/first.txt)
    for header in $headers $engines; do
        parts "$header"
        for module in $api $with_api; do commented="$commented src/$module.h"; done
    done
fi
for header in $commented; do
    awk -v page="$header" '
        function judge(   n, word, i, count) {
            gsub(/`[^`]*`/, "code", text)
            n = split(text, word, /[ \t]+/); count = 0
            for (i = 1; i <= n; i++) {
                if (word[i] ~ /[A-Za-z0-9]/) count++
                if (i == n || word[i] ~ /[.?!][)"*_]*$/ && word[i] !~ /^(e\.g|i\.e|vs|cf|abs)\.$/) {
                    if (count > 35) { print page ":" began ": a sentence of " count " words"; bad = 1 }
                    count = 0
                }
            }
            text = ""
        }
        function take(s) { if (text == "") began = NR; text = text " " s }
        /Stop here if you only want the API/ { exit }
        {
            line = $0
            begins = 0
            while (line != "") {
                if (!inside) {
                    if (!(at = index(line, "/*"))) break
                    line = substr(line, at + 2); inside = begins = 1
                }
                ends = index(line, "*/")
                part = ends ? substr(line, 1, ends - 1) : line
                if (!begins) sub(/^ *\*? ?/, "", part)
                if (!begins && /^ *\*( ?$|     )/) judge()
                else { if (!begins && /^ *\*  - /) judge(); take(part) }
                if (!ends) break
                inside = 0; judge(); line = substr(line, ends + 2)
            }
        }
        END { exit bad }' "$header" || bad=1
done
# Words that the glossary replaced: in pages without their code, and in all comments of src/.
for page in $first $others ${DPAR_COMMENTS:-$([ -n "${DPAR_PAGES:-}" ] || echo src/*/*.[ch] src/*/first.txt)}; do
    case $page in docs/records/*) continue ;; esac
    awk -v page="$page" -v source="$(case $page in *.md) echo 0 ;; *) echo 1 ;; esac)" '
        FNR == NR { if (!/^#/ && split($0, row, "\t") == 2) { idiom[++idioms] = row[1]; better[idioms] = row[2] } next }
        !source && /^```/ { code = !code }
        !source && (code || /^    /) { next }
        {
            line = $0
            if (source) { # only what is between the marks of a comment, and no examples in it
                if (!inside && !index(line, "/*")) next
                if (!inside) line = substr(line, index(line, "/*") + 2)
                inside = !index(line, "*/")
                sub(/\*\/.*/, "", line)
                if (line ~ /^ \*     /) next
            }
            gsub(/`[^`]*`/, "", line)
            line = " " line " "
            for (i = 1; i <= idioms; i++)
                if (match(line, "[^A-Za-z0-9_]" idiom[i] "[^A-Za-z0-9_]")) {
                    print page ":" FNR ": \"" substr(line, RSTART + 1, RLENGTH - 2) "\": write " better[i]
                    bad = 1
                }
        }
        END { exit bad }' tests/compile/idioms.txt "$page" || bad=1
done
# Checks that links lead to existing files.
for page in $first $others; do
    for link in $(grep -ohE '\]\([^)]*\)' "$page" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^http'); do
        [ -e "$(dirname "$page")/$link" ] || complain "$page: no $link"
    done
done
# Checks the maps. A heading "## folder" names the folder of the list below it, a heading of several words the
# top folder. In src/ `name` is name.h and name.c.
named() { # folder, map
    awk -v map="$1" '
        /^## / { folder = NF == 2 || /^## [a-z]+, for/ ? $2 "/" : ""; sub(/,/, "", folder); next }
        /^\* `/ {
            sub(/: .*/, "")
            while (match($0, /`[^`]+`/)) {
                name = substr($0, RSTART + 1, RLENGTH - 2)
                $0 = substr($0, RSTART + RLENGTH)
                if (map == "tests" || name ~ /\./) print folder name
                else { print folder name ".c"; print folder name ".h" }
            }
        }' "$2" | sort
}
there() { # a folder; what is in data and in a corpus has a line for all of it
    ( cd "$1" && find . -type f ! -name README.md ! -path '*/__pycache__/*' ) |
        sed 's|^\./||; s|^\(data/[^/]*\)/.*|\1|; s|^\(fuzz/corpus\)/.*|\1|' | sort -u
}
if [ -z "${DPAR_PAGES:-}" ]; then
    mkdir -p build
    for folder in src tests; do
        named "$folder" "${DPAR_MAPS:-.}/$folder/README.md" > build/named
        there "$folder" | diff build/named - > build/differ ||
            complain "$folder/README.md: names what is not there (<), or lacks what is (>):
$(grep '^[<>]' build/differ)"
    done
fi
exit $bad
