#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that dependencies only point down, between the folders of src/ and between the modules of one. A module
# is a .c with its .h; it depends on another if its object, compiled separately, needs a symbol of the other's.
# There are three checks: no dependency points up between folders, by calls or by includes; there is no circle,
# by calls or by .h files that include each other; no file names a type of a folder above its own. Prints the
# modules of each folder by level, lowest first, as in docs/headers.md. The modules of an engine need MPI's
# compiler, or the stand-ins for CUDA and NCCL and a C++ compiler; without these it is left out. Apps, commands,
# benchmarks and examples include the headers, helpers/ and files of their own folder, but not each other's. SRC
# and PROGRAMS: where the folders are, so that self.sh can check that this test finds errors.
. tests/compile/common.sh
: "${SRC:=src}" "${PROGRAMS:=.}"
need nm
need tsort
: "${CXX:=g++}"
top=$PWD
(cd "$PROGRAMS" && grep -n '^#include "' apps/* commands/* bench/* examples/* helpers/* 2> /dev/null) | tr : ' ' |
    while read -r file line _ path; do
        path=${path#\"} path=${path%\"}
        case $path in
        ../helpers/*) true ;;
        */*) false ;;
        *) [ -e "$path" ] || [ -e "$PROGRAMS/${file%/*}/$path" ] ;;
        esac || echo "$file:$line includes another folder's file: $path"
    done > "$work/programs"
cd "$SRC" || exit 1

# Lists each folder with all folders that it may depend on.
cat > "$work/order" << 'O'
base
index base
schedule index base
cost schedule index base
host index base
proof index base
comm host index base
exchange comm host index base
halo exchange comm host index base
points exchange comm host index base
particles exchange comm host index base
pencil exchange comm host index base
exact halo points exchange comm host index base
blocks exchange comm host index base
train schedule comm host index base
spatial halo exchange train schedule comm host index base
debug halo exchange comm host index base
mpi halo exchange comm host index base
nccl comm host index base
cuda train schedule comm host index base
O
ls -d */ | tr -d / | while read -r folder; do
    grep -q "^$folder\( \|\$\)" "$work/order" || echo "$folder: which folders may it stand on? ($0 says)"
done >> "$work/programs"
mv "$work/programs" "$work/wrong"

# Compiles every module separately, two at a time.
c='-std=c99 -Werror=implicit-function-declaration'
compiler() { # file: how its folder is compiled
    case $1 in
    mpi/*) echo "mpicc $c" ;;
    nccl/*) echo "$CC $c -I$top/tests/gpu/fake" ;;
    cuda/*) echo "$CXX -std=c++17 -w -x c++ -DDPAR_TRAIN_H -I$top/tests/gpu/fake" ;;
    *) echo "$CC $c" ;;
    esac
}
compile() { # number, files
    number=$1
    shift
    for file in "$@"; do
        object=$(echo "$file" | tr / +)
        $(compiler "$file") -O0 -D_GNU_SOURCE -c "$file" \
            -o "$work/${object%.c}.o" || echo "$file does not compile alone"
    done > "$work/alone_$number" 2> "$work/said_$number"
}
left_out=
have mpicc || { left_out="$left_out mpi" && echo 'mpicc: not found, skipped'; }
have "$CXX" || { left_out="$left_out cuda" && echo "$CXX: not found, skipped"; }
set --
for file in */*.c; do
    case " $left_out " in *" ${file%%/*} "*) ;; *) set -- "$@" "$file" ;; esac
done
half=$(($# / 2)) first=
while [ $# -gt "$half" ]; do first="$first $1" && shift; done
compile 1 "$@" &
compile 2 $first
wait
cat "$work/said_1" "$work/said_2" >&2

# Prints "user used symbol": what each needs of another. Templates, which several objects define, do not count.
for object in "$work"/*.o; do
    name=${object##*/} name=${name%.o}
    nm -gP "$object" | awk -v module="$name" '$2 !~ /^[wWvV]$/ { print module, ($2 == "U" ? "U" : "D"), $1 }'
done | tr + / | awk '
    $2 == "D" { home[$3] = $1 }
    $2 == "U" { needs[++n] = $1 " " $3 }
    END {
        for (i = 1; i <= n; i++) {
            split(needs[i], a, " ")
            if (a[2] in home && home[a[2]] != a[1]) print a[1], home[a[2]], a[2]
        }
    }' | sort > "$work/arrows"
[ -s "$work/arrows" ] || { echo 'no symbols: is nm the one of this compiler?'; exit 1; }

# Finds dependencies that point up between folders: by calls, and by includes.
awk '
    FILENAME ~ /order$/ { for (i = 1; i <= NF; i++) may[$1, $i] = 1; next }
    {
        split($1, a, "/")
        split($2, b, "/")
        if (!((a[1], b[1]) in may)) print $1 " calls up: " $3 " of " $2
        else print $1, $2 > down
    }' down="$work/down" "$work/order" "$work/arrows" >> "$work/wrong"
grep -n '#include "\.\./[a-z]*/' */*.[ch] | awk -v order="$work/order" '
    BEGIN { while ((getline line < order) > 0) { n = split(line, f, " "); for (i = 1; i <= n; i++) may[f[1], f[i]] = 1 } }
    {
        split($0, file, ":")
        split(file[1], a, "/")
        split($0, path, "\"")
        split(path[2], b, "/")
        if (!((a[1], b[2]) in may)) print file[1] " includes up: " path[2]
    }' >> "$work/wrong"

# Finds circles, apart from dependencies that point up: of calls, and of includes.
circles() { # lines "user used", what they are
    if ! tsort "$1" > "$work/sorted" 2> "$work/circles" || [ -s "$work/circles" ]; then
        sed "s/^/circle of $2: /" "$work/circles" >> "$work/wrong"
    fi
}
sort -u "$work/down" > "$work/edges"
circles "$work/edges" calls
grep '#include "' */*.h | sed 's|^\([a-z]*\)/\([^:]*\):.*"\(.*\)".*|\1/\2 \1/\3|; s| [a-z]*/\.\./| |' > "$work/includes"
[ "$(wc -l < "$work/includes")" -gt 50 ] || echo "includes: only $(wc -l < "$work/includes") found" >> "$work/wrong"
circles "$work/includes" includes

# Finds which files define types and which name them, without comments.
for file in */*.[ch]; do
    awk -v file="$file" '
        {
            text = text $0 "\n"
        }
        END {
            while ((i = index(text, "/*")) > 0) {
                rest = substr(text, i + 2)
                j = index(rest, "*/")
                text = substr(text, 1, i - 1) " " (j > 0 ? substr(rest, j + 2) : "")
            }
            n = split(text, line, "\n")
            for (i = 1; i <= n; i++) {
                l = line[i]
                type = ""
                if (l ~ /^(typedef )?(struct|union|enum) dpari?_[a-z0-9_]+ *\{/) {
                    type = l
                    sub(/^(typedef )?(struct|union|enum) /, "", type)
                    sub(/ *\{.*/, "", type)
                } else if (l ~ /^typedef .*\(\*dpari?_[a-z0-9_]+\)\(/) {
                    type = l
                    sub(/^typedef .*\(\*/, "", type)
                    sub(/\).*/, "", type)
                } else if (l ~ /^typedef [a-z0-9_]+ \**dpari?_[a-z0-9_]+\(/) {
                    type = l
                    sub(/\(.*/, "", type)
                    sub(/.*[ *]/, "", type)
                } else if (l ~ /^typedef [a-z0-9_]+ dpari?_[a-z0-9_]+;/) {
                    type = l
                    sub(/;.*/, "", type)
                    sub(/.* /, "", type)
                    if (l ~ /^typedef (struct|union|enum) /) type = ""
                }
                if (type != "") print "T", file, type
                while (match(l, /dpari?_[a-z0-9_]+/)) {
                    print "N", file, substr(l, RSTART, RLENGTH)
                    l = substr(l, RSTART + RLENGTH)
                }
            }
        }' "$file"
done > "$work/names"
awk '
    FILENAME ~ /order$/ { for (i = 1; i <= NF; i++) may[$1, $i] = 1; next }
    $1 == "T" { split($2, a, "/"); home[$3] = a[1]; types++; next }
    { named[$2 " " $3] = 1 }
    END {
        for (k in named) {
            split(k, b, " ")
            split(b[1], a, "/")
            if (b[2] in home && !((a[1], home[b[2]]) in may)) print b[1] " names up: " b[2] " of " home[b[2]]
        }
        if (types < 50) print "types: only " types " found"
    }' "$work/order" "$work/names" | sort >> "$work/wrong"

# Computes the level of a module in its folder: one above the highest of those of the folder that it calls.
{
    sed 's/^/E /' "$work/edges"
    for object in "$work"/*.o; do
        name=${object##*/}
        echo "M ${name%.o}"
    done | tr + /
} | awk -v order="$work/order" '
    $1 == "E" { split($2, a, "/"); split($3, b, "/"); if (a[1] == b[1]) calls[$2] = calls[$2] " " $3; next }
    { module[++n] = $2; level[$2] = 1 }
    END {
        for (again = 1; again && turns++ < 100;) {
            again = 0
            for (i = 1; i <= n; i++) {
                k = split(calls[module[i]], low, " ")
                for (j = 1; j <= k; j++) {
                    if (level[module[i]] <= level[low[j]]) { level[module[i]] = level[low[j]] + 1; again = 1 }
                }
            }
        }
        while ((getline line < order) > 0) {
            split(line, f, " ")
            most = 0
            for (i = 1; i <= n; i++) {
                split(module[i], a, "/")
                if (a[1] != f[1]) continue
                at = f[1] " " level[module[i]]
                list[at] = list[at] " " a[2]
                if (level[module[i]] > most) most = level[module[i]]
            }
            for (l = 1; l <= most && l < 100; l++) {
                text = sprintf("%-9s %2d ", l == 1 ? f[1] : "", l)
                n_words = split(list[f[1] " " l], word, " ")
                for (i = 1; i <= n_words; i++) {
                    if (length(text " " word[i]) > 94) {
                        print text
                        text = sprintf("%13s", "")
                    }
                    text = text " " word[i]
                }
                print text
            }
        }
    }' > "$work/levels"
cat "$work/levels"
# checks that docs/headers.md shows the same
if [ "$SRC" = src ]; then
    sed -n '/^    base  *1 /,/^$/s/^    //p' ../docs/headers.md | awk -v left_out="$left_out" '
        /^[a-z]/ { folder = $1 }
        index(" " left_out " ", " " folder " ") == 0' | diff - "$work/levels" >> "$work/wrong" ||
        echo 'docs/headers.md shows other levels' >> "$work/wrong"
fi
cat "$work"/alone_* >> "$work/wrong"
[ ! -s "$work/wrong" ] || { cat "$work/wrong"; exit 1; }
