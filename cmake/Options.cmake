# Build options of all targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# With BUILD_SHARED_LIBS (preset dev) a change of one source links one library again, and no program. All libraries are in one
# folder, because the loader searches every folder of the RPATH. It is below bin, because containers see the folder of the trainer.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/lib)
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # a copy of bin works
if(BUILD_SHARED_LIBS)
  # The loader looks up fewer symbols, so programs start faster.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:LINKER:-Bsymbolic-functions>)
endif()

find_program(CCACHE ccache)
if(CCACHE AND SCALELAB_REPEATED_BUILDS AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/ccache.sh)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# mold links a program in a third of the time of GNU ld, and a change of one file links many programs of the tests.
find_program(MOLD mold)
if(MOLD AND (CMAKE_CXX_COMPILER_ID STREQUAL Clang OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1))
  add_link_options(-fuse-ld=mold)
endif()

find_package(Threads REQUIRED)

if(SCALELAB_SANITIZE)
  # Undefined behaviour ends the program like all other findings; a report alone would not fail a test.
  add_compile_options(-fsanitize=${SCALELAB_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${SCALELAB_SANITIZE})
  if(SCALELAB_SANITIZE MATCHES thread)
    # protobuf's headers change the layout of messages if this macro is defined; the packaged library was built without it.
    add_compile_options(-U__SANITIZE_THREAD__)
  endif()
endif()

# The project's code must compile without warnings; generated code does not link this target.
add_library(scalelab_warnings INTERFACE)
if(NOT SCALELAB_REPEATED_BUILDS)
  target_compile_options(scalelab_warnings INTERFACE -w)
else()
  target_compile_options(scalelab_warnings INTERFACE -Wall -Wextra -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    # Checks ABSL_GUARDED_BY and similar annotations. GCC ignores them; with GCC, deploy/lint checks them.
    target_compile_options(scalelab_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # With full optimisation GCC 12 warns about std::string's operator+ (GCC bug 105651), and in precompiled headers it does not
  # recognise system headers as such.
  target_compile_options(scalelab_warnings INTERFACE
    $<$<NOT:$<CONFIG:RelWithDebInfo>>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>)
  if(SCALELAB_SANITIZE)
    # Because of the sanitizers' instrumentation GCC cannot see that Torch's headers read an optional only if it has a value.
    target_compile_options(scalelab_warnings INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# scalelab_library(NAME sources...): defines a library of the project. Include paths start at the top folder: "<folder>/<file>.h".
function(scalelab_library name)
  add_library(${name} ${ARGN})
  # Libraries share precompiled headers, so none may define a macro of its own.
  set_target_properties(${name} PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE scalelab_warnings)
  # Several sources in one translation unit instantiate the templates of the headers once (option SCALELAB_UNITY).
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${SCALELAB_UNITY} UNITY_BUILD_BATCH_SIZE 20)
endfunction()

# scalelab_folder(SOURCE...): the library of the current folder. Its target is named after the folder's path:
# server/core is scalelab_server_core.
function(scalelab_folder)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE / _ name scalelab_${name})
  scalelab_library(${name} ${ARGN})
endfunction()

# scalelab_reuse_headers(TARGET OWNER): compiles TARGET with the precompiled header of library OWNER. It works only with the flags
# that it was compiled with, and CMake gives programs -fPIE where it gives libraries -fPIC.
function(scalelab_reuse_headers target owner)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# For targets that link scalelab_proto.
function(scalelab_use_message_headers)
  foreach(target ${ARGN})
    scalelab_reuse_headers(${target} scalelab_proto)
  endforeach()
endfunction()

# For targets that do not link scalelab_proto. A build of only the trainer has no scalelab_files.
function(scalelab_use_base_headers)
  if(TARGET scalelab_files)
    foreach(target ${ARGN})
      target_compile_options(${target} PRIVATE -pthread)  # as gRPC's targets require it
      scalelab_reuse_headers(${target} scalelab_files)
    endforeach()
  endif()
endfunction()
