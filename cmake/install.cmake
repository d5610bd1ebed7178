# What is installed: library, headers, command, CMake package, pkg-config file, licence. All of it works
# from wherever the prefix is moved to (cmake --install --prefix, DESTDIR).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(TB_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus)
install(TARGETS tensorbus EXPORT tensorbusTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tensorbus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT tensorbusTargets NAMESPACE tensorbus:: DESTINATION ${TB_CMAKE_DIR})
configure_package_config_file(
  ${CMAKE_SOURCE_DIR}/cmake/tensorbusConfig.cmake.in ${CMAKE_BINARY_DIR}/tensorbusConfig.cmake
  INSTALL_DESTINATION ${TB_CMAKE_DIR})
# Before 1.0 a minor release may break its users, a patch release may not.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tensorbusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tensorbusConfig.cmake
              ${CMAKE_BINARY_DIR}/tensorbusConfigVersion.cmake
        DESTINATION ${TB_CMAKE_DIR})

# The prefix as seen from the folder of the .pc file, however deep the library folder is.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(TB_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  set(TB_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR})
  set(TB_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH TB_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" TB_PC_UP ${TB_PC_UP})
  set(TB_PC_PREFIX "\${pcfiledir}/${TB_PC_UP}")
  set(TB_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(TB_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/tensorbus.pc.in ${CMAKE_BINARY_DIR}/tensorbus.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tensorbus.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
