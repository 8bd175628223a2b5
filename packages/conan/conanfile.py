# SPDX-License-Identifier: MIT-0
# For Conan 2. tools/release fills in version, place and checksum: conan create FOLDER/packages/conan
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"


class Dpar(ConanFile):
    name = "dpar"
    version = "@VERSION@"
    description = "Parallel programs in C: who owns what, in which order, at what cost, and it runs"
    license = "MIT-0"
    topics = ("mpi", "halo", "parallel", "pipeline", "training")
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"

    def configure(self):  # C alone
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def layout(self):
        cmake_layout(self, src_folder="src")

    def source(self):
        get(self, "@URL@/dpar-@VERSION@.tar.gz", sha256="@SHA256@", strip_root=True)

    def generate(self):
        CMakeToolchain(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "dpar")
        self.cpp_info.set_property("cmake_target_name", "dpar::all")
        headers, code = self.cpp_info.components["headers"], self.cpp_info.components["dpar"]
        headers.set_property("cmake_target_name", "dpar::headers")
        code.set_property("cmake_target_name", "dpar::dpar")
        code.set_property("pkg_config_name", "dpar")
        code.libs = ["dpar"]
        code.requires = ["headers"]
