# SPDX-License-Identifier: MIT-0
# tools/release fills in version, place and checksum: vcpkg install dpar --overlay-ports=FOLDER/packages/vcpkg
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
vcpkg_download_distfile(archive
    URLS "@URL@/dpar-@VERSION@.tar.gz"
    FILENAME "dpar-@VERSION@.tar.gz"
    SHA512 @SHA512@)
vcpkg_extract_source_archive(source ARCHIVE "${archive}")
vcpkg_cmake_configure(SOURCE_PATH "${source}")
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/dpar)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")
