#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests that an installed dpar is found: make install with pkg-config, for C and Fortran; CMake with
# find_package and, in turn, add_subdirectory and FetchContent. tests/compile/release.sh tests other tools and
# the oldest CMake.
. tests/compile/common.sh
root=$PWD
unset CFLAGS # cmake would take it: no optimiser
cp packages/user.c "$work"
# If a program has its own implementation, only what it calls is compiled.
lone='-O1 -DDPAR_STATIC -DDPAR_IMPLEMENTATION'
try make -s install PREFIX="$work/prefix"
for page in plan pipeline decompose doctor; do
    try grep -q '^\.SH EXAMPLES' "$work/prefix/share/man/man1/$page.1"
done
# with DESTDIR; if the commands cannot run, everything else must still be installed
mkdir "$work/away"
cp -R Makefile dpar*.h bindings tools src commands "$work/away"
( cd "$work/away" && try make -s install CC=false DESTDIR="$work/stage" PREFIX=/opt > "$work/log" 2>&1 ) || { cat "$work/log"; exit 1; }
try grep -q 'no man pages are installed' "$work/log"
try test -e "$work/stage/opt/include/dpar.h"
try test ! -e "$work/stage/opt/share/man"
try make -s install DESTDIR="$work/stage" PREFIX=/opt
try cmp "$work/stage/opt/share/man/man1/plan.1" "$work/prefix/share/man/man1/plan.1"
if have pkg-config; then
    flags=$(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --cflags dpar) || exit 1
    try $CC $lone $flags "$work/user.c" -o "$work/user" && try "$work/user"
    if have mpicc; then
        printf '#include "dpar_mpi.h"\nint main(void) { return dpar_mpi_make(MPI_COMM_WORLD, 0, 0, 0) < 0; }\n' > "$work/over.c"
        try mpicc $lone $flags "$work/over.c" -o "$work/over"
    else
        echo 'mpicc: not found, dpar_mpi.h only compared'
    fi
else
    echo 'pkg-config: not found, skipped'
fi
# Fortran: the module and its library are installed as sources; the program is from docs/fortran.md.
fortran=$work/prefix/share/dpar/fortran
for file in dpar.f90 dpar.c; do
    try cmp "bindings/fortran/$file" "$fortran/$file"
done
if have gfortran; then
    ! have pkg-config ||
        try test "$(PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig" pkg-config --variable=fortran dpar)" = "$fortran"
    awk '/^```fortran$/ { on = 1; next } /^```/ { on = 0 } on' "${DPAR_README:-docs/fortran.md}" > "$work/user.f90"
    try test -s "$work/user.f90"
    try $CC "-I$work/prefix/include" -c "$fortran/dpar.c" -o "$work/dpar.o"
    try gfortran "-J$work" "$fortran/dpar.f90" "$work/user.f90" "$work/dpar.o" -o "$work/user_f"
    try timeout 60 "$work/user_f" > "$work/said"
    try grep -q 'rank 1' "$work/said"
else
    echo 'gfortran: not found, dpar.f90 only compared'
fi
need cmake
try cmake -S "$root" -B "$work/build" -DCMAKE_INSTALL_PREFIX="$work/cmake" > "$work/log"
try cmake --build "$work/build" > "$work/log"
try cmake --install "$work/build" > "$work/log"
for header in $(printf "%s.h " $headers $engines); do
    try cmp "$header" "$work/prefix/include/$header"
    try cmp "$header" "$work/cmake/include/$header"
done
for file in dpar.f90 dpar.c; do
    try cmp "bindings/fortran/$file" "$work/cmake/share/dpar/fortran/$file"
done
for page in plan pipeline decompose doctor; do # made for make install above
    try cmp "$work/prefix/share/man/man1/$page.1" "$work/cmake/share/man/man1/$page.1"
done
mkdir "$work/find" "$work/sub" "$work/fetch"
cat > "$work/find/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.13)
project(user C)
find_package(dpar 0.2 REQUIRED)
add_executable(user ../user.c)
target_link_libraries(user dpar::dpar)
add_executable(alone ../user.c)
target_link_libraries(alone dpar::headers)
target_compile_definitions(alone PRIVATE DPAR_IMPLEMENTATION DPAR_STATIC)
target_compile_options(alone PRIVATE -O1)
C
sed "s|find_package.*|add_subdirectory(\"$root\" dpar)|" "$work/find/CMakeLists.txt" > "$work/sub/CMakeLists.txt"
awk -v root="$root" '
    /^find_package/ {
        print "include(FetchContent)\nFetchContent_Declare(dpar SOURCE_DIR \"" root "\")"
        print "FetchContent_MakeAvailable(dpar)"
        next
    }
    { sub("3[.]13", "3.14"); print }' "$work/find/CMakeLists.txt" > "$work/fetch/CMakeLists.txt"
both='sub fetch'
[ "${DPAR_PARTS_OF:-1}" -eq 1 ] || both=$([ $((${DPAR_PART:-0} % 2)) -eq 0 ] && echo sub || echo fetch)
for way in find $both; do
    try cmake -S "$work/$way" -B "$work/$way/build" -DCMAKE_PREFIX_PATH="$work/cmake" > "$work/log"
    try cmake --build "$work/$way/build" --parallel 2 --target user > "$work/log"
    try "$work/$way/build/user"
done
try cmake --build "$work/find/build" --target alone > "$work/log"
try "$work/find/build/alone"
