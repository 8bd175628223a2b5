#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests a release: the same bytes from two clones, headers as single files, the packages that tools/release
# makes, each used by a program, and tools/api-diff, which must notice what breaks programs. Each push takes a
# part of the headers, packages and faults. DPAR_PARTS: only these parts.
. tests/compile/common.sh
[ "${DPAR_PARTS_OF:-1}" -eq 1 ] || [ "${DPAR_PART:-0}" -eq 2 ] || { echo 'the release is made in another part'; exit 77; }
: "${DPAR_PARTS:=same single packages faults}"
root=$PWD
unset CFLAGS # cmake would take it: no optimiser
need git
git rev-parse -q --verify HEAD > /dev/null 2>&1 || { echo 'a repository of git: not found'; exit 77; }
out=$work/out
quietly() { "$@" > "$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "failed: $*"; exit 1; }; }
oldest=$root/build/cmake-3.13/cmake/data/bin/cmake # what CMakeLists.txt claims

# Makes two clones at other times, with other umasks, time zones and languages.
same() {
    for each in 1 2; do
        ( [ $each -eq 1 ] || { umask 077 && export TZ=Asia/Tokyo LC_ALL=C.UTF-8; }
            try git clone -q "$root" "$work/clone $each"
            [ $each -eq 1 ] || find "$work/clone $each" -type f -exec touch -d 2001-01-01 {} +
            try "$work/clone $each/tools/release" "$work/of$each" --draft --url "file://$work/of1" > "$work/log" ) || { cat "$work/log"; exit 1; }
    done
    try diff -r "$work/of1" "$work/of2"
    ( cd "$work/of1" && try sha256sum --quiet -c SHA256SUMS ) || exit 1
    mkdir "$work/untarred" && try tar -C "$work/untarred" -xf "$work"/of1/dpar-*.tar.gz
    try cmp "$work"/untarred/dpar-*/dpar_halo.h "$work/clone 1/dpar_halo.h"
    try test -s "$(echo "$work"/untarred/dpar-*)/dpar_all.h"
    [ "$(tar -tvf "$work"/of1/dpar-*.tar.gz | cut -c 1-10 | sort -u | tr '\n' ' ')" = '-rw-r--r-- -rwxr-xr-x drwxr-xr-x ' ] ||
        { echo 'the tarball has other modes than 644 and 755'; exit 1; }
    # it refuses what is not a release, and what the change log does not list
    ( cd "$work/clone 1" && sed -i '0,/^## .*/s//## 9.9.9, 2030-01-01/' CHANGELOG.md &&
        try git -c user.name=x -c user.email=x@x commit -qam x ) || exit 1
    ! "$work/clone 1/tools/release" "$work/none" > "$work/log" 2>&1 || { echo 'it releases what CHANGELOG.md does not name'; exit 1; }
    try grep -q "CHANGELOG.md begins with '9.9.9, 2030-01-01'" "$work/log"
    try test ! -e "$work/none"
    ! "$work/clone 2/tools/release" "$work/none" > "$work/log" 2>&1 || echo 'released' > "$work/log"
    [ "$newest" != "$version, unreleased" ] || try grep -q "put the date behind $version" "$work/log"
    mv "$work/of1" "$out"
    sed -i "s|$work/of1/|$out/|" $(grep -rl "$work/of1/" "$out/packages")
}

# Tests each header as one file: alone in its folder; before another one; and next to unpasted ones.
single() {
    [ -e "$out" ] || made
    for each in $(some_of $headers) dpar_all; do
        head -n 1 "$out/single/$each.h" | grep -q "^/\* $each.h of dpar [0-9]*\.[0-9]*\.[0-9]*, one file" || { echo "$each.h: no version in its first line"; exit 1; }
        alone=$work/alone_$each
        mkdir -p "$alone" && cp "$out/single/$each.h" "$alone"
        printf '#include "%s.h"\nint main(void) { return dpar_type_bytes(DPAR_F64) != 8; }\n' $each > "$alone/use.c"
        try $CC -Wall -Wextra -Werror -fsyntax-only -DDPAR_IMPLEMENTATION "$alone/use.c"
        try $CC -x c++ -Wall -Wextra -Werror -fsyntax-only -DDPAR_IMPLEMENTATION "$alone/use.c"
    done
    mkdir -p "$work/mixed"
    cp "$out/single/dpar_comm.h" "$work/mixed/one_file.h"
    printf '#include "%s"\n' one_file.h dpar_halo.h | cat - packages/user.c > "$work/mixed/user.c"
    try $CC -O1 -DDPAR_STATIC -DDPAR_IMPLEMENTATION -Wall -Werror -I. "$work/mixed/user.c" -o "$work/mixed/user" && try "$work/mixed/user"
}
made() { try tools/release "$out" --draft > /dev/null; }

packages() {
    [ -e "$out" ] || made
    for each in $(some_of oldest_cmake meson vcpkg conan) spack clib; do by_$each; done
}
# CMakeLists.txt requires 3.13: tests a fetched tarball, and an installed one that is found.
by_oldest_cmake() {
    [ -x "$oldest" ] || { echo 'CMake 3.13: not found, skipped'; return; }
    mkdir "$work/oldest"
    cp packages/user.c "$work/oldest"
    cat > "$work/oldest/CMakeLists.txt" << C
cmake_minimum_required(VERSION 3.13)
project(user C)
if(FETCH)
    include(FetchContent)
    FetchContent_Declare(dpar URL file://$(echo "$out"/dpar-*.tar.gz)
        URL_HASH SHA256=$(sha256sum "$out"/dpar-*.tar.gz | cut -d ' ' -f 1))
    FetchContent_GetProperties(dpar)
    if(NOT dpar_POPULATED)
        FetchContent_Populate(dpar)
        add_subdirectory(\${dpar_SOURCE_DIR} \${dpar_BINARY_DIR})
    endif()
else()
    find_package(dpar 0.2 REQUIRED)
endif()
add_executable(user user.c)
target_link_libraries(user dpar::dpar)
C
    quietly "$oldest" -S "$work/oldest" -B "$work/oldest/b" -DFETCH=1 -DCMAKE_INSTALL_PREFIX="$work/oldest/i"
    quietly "$oldest" --build "$work/oldest/b" -j 2
    try "$work/oldest/b/user"
    quietly "$oldest" --build "$work/oldest/b" --target install
    quietly "$oldest" -S "$work/oldest" -B "$work/oldest/f" -DFETCH=0 -DCMAKE_PREFIX_PATH="$work/oldest/i"
    quietly "$oldest" --build "$work/oldest/f"
    try "$work/oldest/f/user"
    echo "$("$oldest" --version | head -n 1): fetched, installed, found"
}
by_meson() {
    if ! have meson || ! have ninja; then echo 'meson: not found, skipped'; return; fi
    mkdir -p "$work/meson/subprojects"
    cp packages/user.c "$work/meson"
    cp "$out/packages/meson/dpar.wrap" "$work/meson/subprojects"
    cat > "$work/meson/meson.build" << 'C'
project('user', 'c', meson_version: '>=0.56.0')
executable('user', 'user.c', dependencies: dependency('dpar'))
executable('alone', 'user.c', dependencies: dependency('dpar-headers'),
  c_args: ['-DDPAR_IMPLEMENTATION', '-DDPAR_STATIC'])
C
    quietly meson setup "$work/meson/b" "$work/meson"
    quietly ninja -C "$work/meson/b"
    try "$work/meson/b/user"
    try "$work/meson/b/alone"
    echo "meson $(meson --version): a subproject by its wrap"
}
by_conan() { # the one of this machine, or what `pip install --target build/conan conan` brought
    export CONAN_HOME="$work/conan"
    conan=conan
    have conan || { conan="python3 build/conan/bin/conan" && export PYTHONPATH="$root/build/conan"; }
    $conan --version > "$work/log" 2>&1 || { echo 'conan: not found, skipped'; return; }
    version_of_it=$(cat "$work/log")
    quietly $conan profile detect
    quietly $conan create "$out/packages/conan" -s build_type=Debug
    try grep -q 'RUN: .*/user\|RUN: ./user' "$work/log"
    echo "$version_of_it: created, tested"
}
# If vcpkg itself is not installed, provides the functions that the port calls in plain CMake.
by_vcpkg() {
    have cmake || { echo 'cmake: not found, skipped'; return; }
    port=$out/packages/vcpkg/dpar
    cat > "$work/port.cmake" << 'C'
cmake_policy(VERSION 3.13)
function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_QUIET)
    if(code)
        message(FATAL_ERROR "${ARGN}: ${code}")
    endif()
endfunction()
function(vcpkg_check_linkage)
endfunction()
function(vcpkg_download_distfile to)
    cmake_parse_arguments(it "" "FILENAME;SHA512" "URLS" ${ARGN})
    file(DOWNLOAD "${it_URLS}" "${WORK}/${it_FILENAME}" EXPECTED_HASH SHA512=${it_SHA512})
    set(${to} "${WORK}/${it_FILENAME}" PARENT_SCOPE)
endfunction()
function(vcpkg_extract_source_archive to)
    cmake_parse_arguments(it "" "ARCHIVE" "" ${ARGN})
    file(MAKE_DIRECTORY "${WORK}/source")
    run(${CMAKE_COMMAND} -E chdir "${WORK}/source" ${CMAKE_COMMAND} -E tar xzf "${it_ARCHIVE}")
    file(GLOB inside "${WORK}/source/*")
    set(${to} "${inside}" PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
    cmake_parse_arguments(it "" "SOURCE_PATH" "OPTIONS" ${ARGN})
    run(${CMAKE_COMMAND} -S "${it_SOURCE_PATH}" -B "${WORK}/build" "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}"
        -DCMAKE_INSTALL_LIBDIR=lib ${it_OPTIONS})
endfunction()
function(vcpkg_cmake_install)
    run(${CMAKE_COMMAND} --build "${WORK}/build" --target install -j 2)
endfunction()
function(vcpkg_cmake_config_fixup)
    cmake_parse_arguments(it "" "CONFIG_PATH" "" ${ARGN})
    file(GLOB found "${CURRENT_PACKAGES_DIR}/${it_CONFIG_PATH}/*Config.cmake")
    if(NOT found)
        message(FATAL_ERROR "no configuration in ${it_CONFIG_PATH}")
    endif()
endfunction()
function(vcpkg_install_copyright)
    cmake_parse_arguments(it "" "" "FILE_LIST" ${ARGN})
    file(INSTALL ${it_FILE_LIST} DESTINATION "${CURRENT_PACKAGES_DIR}/share/dpar")
endfunction()
include("${PORT_DIR}/portfile.cmake")
C
    quietly cmake "-DWORK=$work/vcpkg" "-DCURRENT_PACKAGES_DIR=$work/vcpkg/i" "-DPORT_DIR=$port" -P "$work/port.cmake"
    try test -s "$work/vcpkg/i/share/dpar/LICENSE"
    try $CC "-I$work/vcpkg/i/include" packages/user.c "-L$work/vcpkg/i/lib" -ldpar -o "$work/vcpkg/user" && try "$work/vcpkg/user"
    try python3 - "$port/vcpkg.json" "$version" << 'C'
import json, re, sys
port = json.load(open(sys.argv[1]))
known = "name version-semver description license supports dependencies homepage".split()
assert not set(port) - set(known), set(port) - set(known)
assert port["name"] == "dpar" and port["version-semver"] == sys.argv[2] and port["license"] == "MIT-0"
assert all(re.fullmatch("[a-z0-9-]+", each["name"]) and each["host"] is True for each in port["dependencies"])
C
    echo 'vcpkg: the port by stand-ins for its functions'
}
# Spack is in no registry, so its directives are recorded, and the file must describe the tarball.
by_spack() {
    have python3 || { echo 'python3: not found, skipped'; return; }
    try python3 - "$out" "$version" << 'C'
import hashlib, os, sys, types
said = []
def directive(name):
    return lambda *words, **named: said.append((name, words, named))
module = types.ModuleType("spack.package")
module.CMakePackage = type("CMakePackage", (), {})
for each in ("license", "version", "depends_on"):
    setattr(module, each, directive(each))
sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": module})
out, version = sys.argv[1:]
path = os.path.join(out, "packages", "spack", "packages", "dpar", "package.py")
space = {}
exec(compile(open(path).read(), path, "exec"), space)
package = space["Dpar"]
assert issubclass(package, module.CMakePackage) and package.__doc__
assert package.url.startswith("file://"), package.url
tarball = open(package.url[len("file://"):], "rb").read()
assert ("version", (version,), {"sha256": hashlib.sha256(tarball).hexdigest()}) in said, said
assert ("license", ("MIT-0",), {}) in said and ("depends_on", ("c",), {"type": "build"}) in said, said
repository = open(os.path.join(out, "packages", "spack", "repo.yaml")).read()
assert repository == "repo:\n  namespace: dpar\n", repository
C
    echo 'spack: the package by stand-ins for its directives'
}
by_clib() {
    have python3 || { echo 'python3: not found, skipped'; return; }
    try python3 - "$version" $headers $engines << 'C'
import json, sys
package = json.load(open("clib.json"))
assert package["name"] == "dpar" and package["version"] == sys.argv[1] and package["license"] == "MIT-0"
assert sorted(package["src"]) == sorted(each + ".h" for each in sys.argv[2:]), package["src"]
C
    echo 'clib: its file names the headers and the version'
}

# Tests tools/api-diff: what it must print, and whether it must fail, for an edit of the headers.
faults() {
    have clang || { echo 'clang: not found, skipped'; return; }
    have python3 || { echo 'python3: not found, skipped'; return; }
    [ "$(uname -sm)" = 'Linux x86_64' ] || { echo 'x86-64 Linux: not found, skipped'; return; }
    mkdir "$work/api"
    try tools/api-diff # of this tree
    tools/api-diff --write > "$work/record" || exit 1
    try grep -q '^function dpar_grid_make = ' "$work/record"
    at=0
    fault fails 'removed: function dpar_mesh_rank = ' dpar 's/dpar_mesh_rank/dpar_mesh_rang/g'
    fault fails 'changed: function dpar_split_owner: was int32_t ([^)]*), is int64_t' dpar 's/^DPAR_API int32_t dpar_split_owner/DPAR_API int64_t dpar_split_owner/'
    fault fails 'changed: field dpar_grid_desc.star: was int32_t at 4, is int32_t at 8' dpar_halo 's/^\( *\)int32_t star;/\1int32_t other, star;/'
    fault fails 'changed: field dpar_grid_desc.dims: was int32_t at 0, is int64_t at 0' dpar_halo '/^typedef struct dpar_grid_desc {/,/^}/s/^\( *\)int32_t dims;/\1int64_t dims;/'
    fault fails 'removed: field dpar_grid_desc.star' dpar_halo 's/^\( *\)int32_t star;/\1int32_t stern;/'
    fault fails 'changed: struct dpar_why: was 248 bytes, alignment 8, is 312 bytes' dpar 's/^    char text\[240\];/    char text[300];/'
    fault fails 'changed: constant DPAR_F64: was 1, is 2' dpar 's/^    DPAR_TYPE_NONE,\{0,1\}\( = 0,\)\{0,1\}/    DPAR_TYPE_NONE, DPAR_OTHER,/'
    fault fails 'changed: constant DPAR_MAX_STAGES: was 65535, is 100' dpar_schedule 's/^#define DPAR_MAX_STAGES .*/#define DPAR_MAX_STAGES INT32_C(100)/'
    fault passes 'added: function dpar_other = ' dpar 's|^/\* ==== base/type.h ==== \*/|DPAR_API int32_t dpar_other(void);|'
    heading='0.2.1, unreleased' fault fails 'needs a higher version than' dpar 's/dpar_mesh_rank/dpar_mesh_rang/g'
    heading='0.2.1, unreleased
* **Breaking**: another word' fault passes 'CHANGELOG.md says so' dpar 's/dpar_mesh_rank/dpar_mesh_rang/g'
    heading="$version, unreleased" fault passes "$version is not released" dpar 's/dpar_mesh_rank/dpar_mesh_rang/g'
    number=9 fault passes 'a higher version says so' dpar 's/dpar_mesh_rank/dpar_mesh_rang/g'
}
fault() { # fails or passes, words, header, edit
    at=$((at + 1))
    [ $((at % ${DPAR_PARTS_OF:-1})) -eq $((${DPAR_PART:-0} % ${DPAR_PARTS_OF:-1})) ] || return 0
    for each in $headers $engines; do cp "$each.h" "$work/api"; done
    sed "$4" "$3.h" > "$work/api/$3.h"
    ! cmp -s "$3.h" "$work/api/$3.h" || { echo "the edit '$4' no longer matches"; exit 1; }
    [ -z "${number:-}" ] || another_version "$number" "$work/api"
    printf '# Changes\n\n## %s\n\n* A line.\n' "${heading:-$version, 2030-01-01}" > "$work/api/CHANGELOG.md"
    if DPAR_DIR="$work/api" tools/api-diff "$work/record" > "$work/log" 2>&1; then is=passes; else is=fails; fi
    grep -q "$2" "$work/log" || { cat "$work/log"; echo "api-diff does not say '$2'"; exit 1; }
    [ $is = "$1" ] || { cat "$work/log"; echo "api-diff $is: '$4'"; exit 1; }
    heading= number=
}

version=$(awk '/^#define DPAR_VERSION_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' dpar.h)
newest=$(sed -n 's/^## //p' CHANGELOG.md | head -n 1)
for part in $DPAR_PARTS; do
    $part
done
