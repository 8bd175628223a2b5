#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Breaks a folder of src/ one operator, constant or bound at a time, as tests/mutate.sh does for src/index, and
# runs all of the folder's tests:
#     tests/mutate_some.sh FOLDER [COUNT [SEED]]
# There are thousands of mutants: takes COUNT of them (40), one from each COUNT-th part of the folder's, drawn
# with SEED (1). Runs the module's own test first, then the quickest; the first test that fails, crashes or does
# not end kills the mutant. A mutant that compiles to the same code does not count. Lists the survivors; those
# that tests/mutants.txt explains ("folder/module: ...") do not count. Unlike in tests/mutate.sh another
# survivor is no failure: the exit code is 1 if fewer than MUTANTS_LEAST percent (50) are killed, because then
# the tests are too weak.
# MUTANTS=FILE: takes only those that the file lists ("folder/module: ..."); here each unexplained survivor is a
# failure.
cd "$(dirname "$0")/.." || exit 1
: "${CC:=cc}" "${MUTANTS:=}"
folder=$1 count=${2:-40} seed=${3:-1} least=${MUTANTS_LEAST:-50}
case $folder in
cost) stands_on='base index schedule' beside='' ;;
host) stands_on='base index schedule cost' beside='comm halo train' ;; # what tests of host also call
comm) stands_on='base index schedule cost host' beside='halo train' ;;
*) echo "tests/mutate_some.sh: cost, host or comm, not '$folder'" >&2; exit 2 ;;
esac
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/o" "$work/inc" "$work/other"

# Lists the modules that a test is compiled with. Tests see what modules share privately; those that call what a
# module keeps to itself are compiled together with it.
holds() {
    case $1 in
    cost/cluster) echo cost/cluster cost/calibrate ;;
    cost/models) echo cost/models ;;
    host/kernel) echo host/kernel ;;
    host/strided) echo host/strided halo/halo_box_groups ;;
    esac
}
{
    printf '#ifndef DPAR_MUTATED_H\n#define DPAR_MUTATED_H\n'
    for each in $stands_on "$folder" $beside; do
        for h in src/"$each"/*.h; do
            echo "#include \"$PWD/$h\""
        done
    done
    printf '#ifdef HELD_1\n#include HELD_1\n#endif\n#ifdef HELD_2\n#include HELD_2\n#endif\n#endif\n'
} > "$work/inc/mutated.h"
for each in dpar dpar_schedule dpar_cost dpar_comm dpar_halo dpar_train; do
    echo '#include "mutated.h"' > "$work/inc/$each.h"
done
flags="-O1 -w -Werror=implicit-function-declaration -D_GNU_SOURCE -DCHECK_STOP -I$work/inc -Itests/lib -I."
for each in $stands_on $beside; do
    for c in src/"$each"/*.c; do
        $CC $flags -c "$c" -o "$work/other/$each+$(basename "$c" .c).o" || exit 1
    done
done
for c in src/"$folder"/*.c; do
    $CC $flags -c "$c" -o "$work/o/$(basename "$c" .c).o" || exit 1
done

# compile_test NAME MODULE: compiles a test, such as "comm/ranks/p2p", with the broken module, or "-" for none
compile_test() {
    held='' k=0
    for each in $(holds "$1"); do
        k=$((k + 1))
        from=$PWD/src/$each.c
        [ "$each" != "$folder/$2" ] || from=$work/$2.c
        held="$held -DHELD_$k=\"$from\""
    done
    $CC $flags -I"src/$folder" $held -c "tests/$1.c" -o "$work/$(echo "$1" | tr / _).test.o"
}
# Links a test with all modules that it was not compiled with, into $work/test.
link_test() {
    objects=''
    for o in "$work"/o/*.o "$work"/other/*.o; do
        of=$(basename "$o" .o | tr + /)
        case $of in */*) ;; *) of=$folder/$of ;; esac
        case " $(holds "$1") " in *" $of "*) ;; *) objects="$objects $o" ;; esac
    done
    $CC "$work/$(echo "$1" | tr / _).test.o" $objects -lm -lpthread -o "$work/test" 2> "$work/link.log"
}
# passes WORDS SECONDS: runs $work/test with the words of a line of "$work/words", for at most this time
passes() {
    (ulimit -c 0; exec timeout -k 2 "$2" "$work/test" $1) > /dev/null 2>&1 < /dev/null
}

# Lists the tests, one per line: milliseconds, name, words; the quickest first.
ls tests/"$folder"/*.c | sed 's|^tests/||; s|\.c$||' > "$work/all"
awk -v folder="$folder" '$2 == folder && $5 == "ranks" && $1 == "test"' tests/list | while read -r _ _ _ _ _ name words; do
    echo "$folder/ranks/$name $words"
done >> "$work/all"
while read -r name words; do
    compile_test "$name" - && link_test "$name" || { cat "$work/link.log" >&2; exit 1; }
    printf '%s\n' "${words:-\"\"}" | tr '"' '\n' | grep -v '^ *$' > "$work/words"
    [ -s "$work/words" ] || echo > "$work/words"
    began=$(date +%s%3N)
    while read -r line; do
        passes "$line" 300 || { echo "$name $line: fails without a mutant" >&2; exit 1; }
    done < "$work/words"
    mkdir -p "$work/run"
    key=$(echo "$name" | tr / _)
    cp "$work/words" "$work/run/$key.words"
    echo "$(($(date +%s%3N) - began)) $name"
done < "$work/all" > "$work/timed" || exit 1
sort -n "$work/timed" > "$work/tests"

for c in src/"$folder"/*.c; do
    awk -f tests/mutants.awk "$c" | sed "s/^/$(basename "$c" .c)	/"
done > "$work/mutants"
if [ -n "$MUTANTS" ]; then
    awk -F '\t' -v folder="$folder" '
        NR == FNR { wanted[$0] = 1; next } folder "/" $1 ": " $6 in wanted' "$MUTANTS" "$work/mutants" > "$work/chosen"
else
    all=$(wc -l < "$work/mutants")
    awk -v all="$all" -v count="$count" -v seed="$seed" '
        BEGIN {
            x = seed * 7919 % 2147483647
            for (i = 0; i < count; i++) {
                x = x * 16807 % 2147483647
                take[int((i + x / 2147483647) * all / count) + 1] = 1
            }
        }
        NR in take' "$work/mutants" > "$work/chosen"
fi

killed=0 survived=0 explained=0 same=0 broken=0
while IFS='	' read -r module line column length new name; do
    source=src/$folder/$module.c
    awk -v line="$line" -v column="$column" -v old="$length" -v new="$new" '
        NR == line { $0 = substr($0, 1, column - 1) new substr($0, column + old) } { print }' \
        "$source" > "$work/$module.c"
    cp "$work/o/$module.o" "$work/whole.o"
    $CC -I"src/$folder" $flags -c "$work/$module.c" -o "$work/o/$module.o" 2> /dev/null || {
        broken=$((broken + 1))
        cp "$work/whole.o" "$work/o/$module.o"
        continue
    }
    strip -g -R .comment "$work/o/$module.o" -o "$work/new.o" && strip -g -R .comment "$work/whole.o" -o "$work/old.o"
    objcopy --strip-all "$work/new.o" 2> /dev/null; objcopy --strip-all "$work/old.o" 2> /dev/null
    if cmp -s "$work/new.o" "$work/old.o"; then
        same=$((same + 1))
        cp "$work/whole.o" "$work/o/$module.o"
        continue
    fi
    by=''
    for test in $(awk -v own="$folder/$module" -v own_ranks="$folder/ranks/$module" '
        $2 == own || $2 == own_ranks { print $2; next } { rest = rest " " $2 } END { print rest }' "$work/tests"); do
        key=$(echo "$test" | tr / _)
        case " $(holds "$test") " in
        *" $folder/$module "*) compile_test "$test" "$module" 2> /dev/null || { by=$test; break; } ;;
        esac
        link_test "$test" || { cat "$work/link.log" >&2; exit 1; } # no mutant changes what links
        most=$(awk -v test="$test" '$2 == test { print int($1 / 1000) * 3 + 20 }' "$work/tests")
        while read -r words; do
            passes "$words" "$most" || { by=$test; break; }
        done < "$work/run/$key.words"
        case " $(holds "$test") " in *" $folder/$module "*) compile_test "$test" - ;; esac
        [ -z "$by" ] || break
    done
    cp "$work/whole.o" "$work/o/$module.o"
    if [ -n "$by" ]; then
        killed=$((killed + 1))
        [ -z "${MUTANTS_SAY:-}" ] || echo "killed by $by: $folder/$module: $name"
    elif grep -qxF "$folder/$module: $name" tests/mutants.txt; then
        explained=$((explained + 1))
    else
        survived=$((survived + 1))
        echo "$folder/$module: $name"
    fi
done < "$work/chosen"
echo "$folder: $killed mutants killed, $explained survive and are explained, $survived survive, $same are the same code, $broken do not compile"
[ -z "$MUTANTS" ] || [ "$survived" -eq 0 ] || exit 1
[ "$killed" -gt 0 ] && [ $((killed * 100)) -ge $((least * (killed + survived))) ]
