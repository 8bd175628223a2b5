#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that every dpar name in a document (dpar_mesh_init, DPAR_F32, dpar_grid_desc.cells) is in the code of a
# header, in the Fortran module, in a script or a program, and that a field is in its struct. Lists of renames
# may have old names. DPAR_PAGES: other pages (self.sh uses it).
. tests/compile/common.sh
: "${DPAR_PAGES:=$(ls README.md CONTRIBUTING.md */README.md examples/*.md docs/*.md docs/guide/*.md docs/records/*.md 2> /dev/null | grep -vE '^docs/(api\.md|records/renames.*)$')}" # made; old names

# Lists the code without comments: words, and "type.field".
cat dpar*.h bindings/fortran/dpar.f90 bindings/fortran/dpar.c > "$work/all"
awk '
    { # comments go, those of Fortran stay
        line = $0; out = ""
        while (line != "") {
            if (open) { at = index(line, "*/"); if (!at) break; line = substr(line, at + 2); open = 0; continue }
            at = index(line, "/*"); if (!at) { out = out line; break }
            out = out substr(line, 1, at - 1); line = substr(line, at + 2); open = 1
        }
        if (out ~ /^(typedef )?struct dpar_[a-z0-9_]+ \{/) { type = out; sub(/^(typedef )?struct /, "", type); sub(/ .*/, "", type); depth = 0 }
        s = out
        while (match(s, /[A-Za-z_][A-Za-z0-9_]*/)) {
            word = substr(s, RSTART, RLENGTH); s = substr(s, RSTART + RLENGTH)
            if (word ~ /^(dpar|DPAR)_/) print word
            if (type != "") print type "." word
        }
        if (type != "") { depth += gsub(/\{/, "{", out) - gsub(/\}/, "}", out); if (depth <= 0) type = "" }
    }' "$work/all" | sort -u > "$work/known"
# Lists words that look like names of the headers but are not: their files, and an object of a page's own.
{
    ls dpar*.h | sed 's/\.h$//'
    echo dpar_all
    echo dpar_fortran
    grep -ohE 'DPAR_[A-Z0-9_]+' tools/gpu-check tests/gpu/*.sh # what scripts read of the environment
} > "$work/other"
cat $DPAR_PAGES | grep -oE '(dpar|DPAR)_[A-Za-z0-9_]+(\.[a-z_0-9]+)?' | sort -u > "$work/said"
awk -v known="$work/known" -v other="$work/other" '
    BEGIN {
        while ((getline line < known) > 0) { is[line] = 1; if (line ~ /\./) { split(line, part, "."); has[part[1]] = 1 } }
        while ((getline line < other) > 0) also[line] = 1
    }
    { # a star or an ellipsis stands for more: DPAR_x, dpar_mesh_
        name = $0; sub(/\..*/, "", name); field = $0; sub(/^[^.]*\.?/, "", field)
        if (name ~ /_[xi]$|_X$|_$/) next
        if (!(name in is) && !(name in also)) { print "no header has " name; bad = 1 }
        else if (field != "" && (name in has) && !((name "." field) in is) && !(name in also)) { print name " has no field " field; bad = 1 }
    }
    END { exit bad }' "$work/said" || exit 1
[ "$(wc -l < "$work/said")" -gt 100 ] || { echo 'the documents name nothing'; exit 1; }
