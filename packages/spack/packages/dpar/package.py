# SPDX-License-Identifier: MIT-0
# tools/release fills in version, place and checksum: spack repo add FOLDER/packages/spack
from spack.package import *

try:  # Spack 1.0 and later
    from spack_repo.builtin.build_systems.cmake import CMakePackage
except ImportError:  # before that spack.package has it
    pass


class Dpar(CMakePackage):
    """Parallel programs in C, from small headers: who owns what, in which order, at what cost, and
    it runs: shared memory, MPI, NCCL."""

    url = "@URL@/dpar-@VERSION@.tar.gz"

    license("MIT-0")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("cmake@3.13:", type="build")
