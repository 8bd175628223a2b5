#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Builds the stand-ins: build.sh DIR [VERSION...] -> DIR/libcudart.so, DIR/libnccl.so.2, libnccl.so
# (the newest version) and DIR/VERSION/libnccl.so.2, which report that version and lack later symbols.
# Uses CXX and CXXFLAGS of the environment.
set -e
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
shift
flags="-std=c++17 ${CXXFLAGS:--O1 -g} -fPIC -pthread -Wall -Wextra -Wshadow -Wno-unknown-pragmas"
mkdir -p "$dir"
${CXX:-g++} $flags -shared "$here/fake_cuda.cc" -o "$dir/libcudart.so" -Wl,-soname,libcudart.so &
${CXX:-g++} $flags -c "$here/fake_nccl.cc" -o "$dir/fake_nccl.o"
wait $!

# FOLDER VERSION
library() {
    mkdir -p "$1"
    echo "int fake_nccl_built = $2;" > "$1/version.c"
    ${CC:-cc} -fPIC -c "$1/version.c" -o "$1/version.o"
    {
        echo '{ local:'
        while read -r since names; do
            [ "$since" -le "$2" ] || for name in $names; do echo "nccl$name;"; done
        done << SINCE
21901 MemAlloc MemFree CommRegister CommDeregister
22304 CommInitRankScalable
22703 CommShrink CommWindowRegister CommWindowDeregister
22803 AlltoAll Gather Scatter
22807 CommRevoke
22902 GetPeerDevicePointer
SINCE
        echo 'fake_nccl_built; };'
    } > "$1/symbols"
    ${CXX:-g++} $flags -shared "$dir/fake_nccl.o" "$1/version.o" -o "$1/libnccl.so.2" -L"$dir" -lcudart \
        -Wl,-soname,libnccl.so.2 -Wl,--version-script="$1/symbols" -Wl,-rpath,"\$ORIGIN:\$ORIGIN/.."
}
library "$dir" 23007
ln -sf libnccl.so.2 "$dir/libnccl.so"
for version in "$@"; do library "$dir/$version" "$version"; done
