# find_package(rackpool) gives rackpool::rackpool, and rackpool::static without a shared library.
get_filename_component(_rackpool_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET rackpool::rackpool)
  add_library(rackpool::rackpool SHARED IMPORTED)
  set_target_properties(rackpool::rackpool PROPERTIES
    IMPORTED_LOCATION "${_rackpool_prefix}/lib/librackpool.so"
    IMPORTED_SONAME "librackpool.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_rackpool_prefix}/include")
  add_library(rackpool::static STATIC IMPORTED)
  set_target_properties(rackpool::static PROPERTIES
    IMPORTED_LOCATION "${_rackpool_prefix}/lib/librackpool.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_rackpool_prefix}/include"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m;rt;gcc_s")
endif()
unset(_rackpool_prefix)
