# What is installed: library, headers, CMake package, pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tensorbus EXPORT tensorbusTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tensorbus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tensorbusTargets NAMESPACE tensorbus::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus)
configure_package_config_file(
  ${CMAKE_SOURCE_DIR}/cmake/tensorbusConfig.cmake.in ${CMAKE_BINARY_DIR}/tensorbusConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tensorbusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tensorbusConfig.cmake
              ${CMAKE_BINARY_DIR}/tensorbusConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tensorbus)
configure_file(${CMAKE_SOURCE_DIR}/cmake/tensorbus.pc.in ${CMAKE_BINARY_DIR}/tensorbus.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tensorbus.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
