# Tests cmake/TorchVersion.cmake with headers of several versions. Script variables: MODULE, the path of that file; FOLDER, a folder for
# temporary files.
set(old_place api/torch/version.h)
set(new_place root/torch/headeronly/version.h)

# Writes the version header of LibTorch MAJOR.MINOR to PLACE.
function(write_version place major minor)
  file(WRITE ${FOLDER}/${place}
    "#pragma once\n#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 1\n")
endfunction()

# Runs the check with the headers that exist now. EXPECTED is a text in the error message, or "" if the check must pass.
function(expect expected)
  file(WRITE ${FOLDER}/check.cmake
    "include(\"${MODULE}\")\nscalelab_require_torch_for_cuda(\"${FOLDER}/root\" \"${FOLDER}/api\")\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -P ${FOLDER}/check.cmake RESULT_VARIABLE result ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")  # CMake breaks lines of messages
  if(expected STREQUAL "")
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "a supported version is refused: ${errors}")
    endif()
    return()
  endif()
  string(FIND "${errors}" "${expected}" position)
  if(result EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "expected an error with \"${expected}\", found result ${result}: ${errors}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
write_version(${old_place} 1 13)
expect("needs LibTorch 2.6 or later")
expect("version '1.13'")
write_version(${old_place} 2 5)
expect("version '2.5'")
write_version(${old_place} 2 6)
expect("")
write_version(${old_place} 2 11)
expect("")  # 2.11 is later than 2.6
# Since 2.8 the other header has the version.
write_version(${old_place} 2 5)
write_version(${new_place} 2 8)
expect("")
write_version(${new_place} 2 5)
write_version(${old_place} 2 8)
expect("version '2.5'")
