#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Reports which lines, branches and messages of src/ the tests reach, with gcc's counters at -O0, read by gcov.
# All branches of index/ and schedule/ and the messages of these, cost/, host/, comm/ and halo/ must be reached, except
# those that tests/uncovered.txt lists, and 90 % of the lines of cost/, host/, comm/ and halo/; the others are only
# reported. Nightly takes everything; a push, some modules whose own test is quick. COVERAGE=FOLDER...: all
# tests of these folders.
. tests/compile/common.sh
[ "$DPAR_DIR" = "$PWD" ] || { echo 'only for src/'; exit 77; }
have gcc && have gcov || { echo 'gcc with gcov: not found'; exit 77; }
flags='-O0 -g0 --coverage -D_GNU_SOURCE -include tests/lib/coverage.h'
mkdir "$work/o" "$work/text"

# Some of the headers are enough for the units that reach no others.
part() {
    . tools/headers
    parts "$1"
    try gcc $flags "-D$(implements "$1")" -x c -c "$1.h" -o "$work/o/$1.o"
}
build() { # source, result
    try gcc $flags -I. -Itests/lib "$1" $(code_of "$1" "$work/dpar.a") -o "$work/o/$2" -lm
}
unit() {
    name=$(echo "$1" | tr '/.' '__') # two folders have a selftest.c
    build "$1" "unit_$name"
    try timeout 600 "$work/o/unit_$name" > /dev/null
}
# Runs a line of tests/list: NAME "words" ["words"...]
ranks() {
    name=$1 source=$(echo tests/*/ranks/$1.c)
    shift
    build "$source" "ranks_$name"
    for words in "$@"; do
        try timeout 600 "$work/o/ranks_$name" $words > /dev/null
    done
}
texts() { # each .gcda in one text
    data=$(basename "$1" .gcda)
    gcov -b -c -t "$work/o/$data.gcno" > "$work/text/$data" 2> /dev/null
}
read_all() {
    in_pairs texts "$work"/o/*.gcda
    LC_ALL=C awk -v judge="$1" -v said="$2" -v lines="$3" -v shown="$4" -f tests/coverage.awk tests/uncovered.txt "$work"/text/*
}

if [ -z "$COVERAGE" ] && [ "${DPAR_PARTS_OF:-1}" -gt 1 ]; then
    # folder:module, where the module's own test and that of refusals are quick and take everything that any
    # test takes
    modules=$(some_of index:flat schedule:lower index:heads schedule:steps index:context \
        schedule:check index:sampler schedule:sketch index:cover)
    tests=
    for each in $modules; do
        tests="$tests tests/${each%:*}/${each#*:}.c tests/${each%:*}/${each%:*}_refusals.c"
    done
    tests=$(printf '%s\n' $tests | sort -u)
    in_pairs part dpar dpar_schedule
    try ar rc "$work/dpar.a" "$work"/o/*.o
    in_pairs unit $tests
    judge=$(echo $modules | tr ': ' '/|')
    try read_all "^($judge)\\.c" '^$' '^$' '^$'
    echo "all branches of" $modules
    exit 0
fi

# Runs the tests of all folders, as listed in tests/list.
in_pairs part $headers
try ar rc "$work/dpar.a" "$work"/o/*.o
: "${COVERAGE:=index schedule cost host comm halo points particles pencil blocks exact train spatial debug}"
for folder in $COVERAGE; do
    case $folder in index) in_pairs unit tests/base/*.c ;; esac
    in_pairs unit $(ls tests/$folder/*.c 2> /dev/null)
    awk -v folder="$folder" '$2 == folder && $5 == "ranks"' tests/list > "$work/programs"
    while read -r level folder lane name command; do
        (eval "$command") < /dev/null || exit 1
    done < "$work/programs"
done
case " $COVERAGE " in
*" comm "*)
    for each in faults shrink; do
        build tests/comm/ranks/$each.c "$each"
        try timeout 600 "$work/o/$each" 30 1 > /dev/null
    done
    try timeout 60 "$work/o/unit_comm_refusals" slow > /dev/null
    # tests what programs print when they start and fail; they compile their own programs, whose counters are
    # written here, into a separate folder for each
    printf '#!/bin/sh\nexec gcc -dumpdir "%s/o/call$$_" "$@"\n' "$work" > "$work/cc"
    chmod +x "$work/cc"
    for each in start launch; do
        try env CC="$work/cc" CFLAGS="$flags" timeout 600 sh tests/comm/ranks/$each.sh > /dev/null
    done
    ;;
esac
folders=$(echo $COVERAGE | tr ' ' '|')
judge=$(echo $COVERAGE | tr ' ' '\n' | grep -E '^(index|schedule)$' | paste -sd '|')
said=$(echo $COVERAGE | tr ' ' '\n' | grep -E '^(index|schedule|cost|host|comm|halo)$' | paste -sd '|')
lines=$(echo $COVERAGE | tr ' ' '\n' | grep -E '^(cost|host|comm|halo)$' | paste -sd '|')
read_all "^(${judge:-none})/" "^(${said:-none})/" "^(${lines:-none})\$" "^(base|$folders)\$"
