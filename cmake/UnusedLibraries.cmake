# Debian's LibTorch names the libraries of OpenCV and FFmpeg as needed, but uses no symbol of them. Loading them also loads 200
# other libraries (GDAL, Qt, Poppler, ...), which takes a third of the CPU time of a rank's start. Therefore one empty library
# gets their names, in a folder that the loader searches first.
#
#   scalelab_empty_unused_libraries(LIBRARY PATTERN FOLDER)
# makes links to the empty library in FOLDER, with the names of the libraries that LIBRARY needs and that match PATTERN. FOLDER
# stays empty if LIBRARY needs none of them, or refers to a symbol of one.
function(scalelab_empty_unused_libraries library pattern folder)
  file(GLOB links ${folder}/lib*.so.*)
  if(links)
    file(REMOVE ${links})
  endif()
  file(MAKE_DIRECTORY ${folder})
  # Otherwise readelf translates its output.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${CMAKE_READELF} --dynamic --wide ${library}
    OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "Shared library: \\[[^]]*\\]" entries "${dynamic}")
  set(names ${entries})
  list(TRANSFORM names REPLACE "Shared library: \\[(.*)\\]" "\\1")
  list(FILTER names INCLUDE REGEX "${pattern}")
  if(NOT names)
    return()
  endif()
  set(places)
  foreach(name IN LISTS names)
    find_library(place NAMES ${name} NO_CACHE)
    if(NOT place)
      return()
    endif()
    list(APPEND places ${place})
    unset(place)
  endforeach()
  # Prints the symbols that the first library uses and that one of the others defines.
  set(script "nm --dynamic --undefined-only \"$1\" | awk '{print $NF}' | sed 's/@.*//' | sort -u >undefined
    shift
    for library do nm --dynamic --defined-only \"$library\"; done | awk '{print $NF}' | sed 's/@.*//' | sort -u >defined
    comm -12 undefined defined")
  execute_process(COMMAND sh -c "${script}" sh ${library} ${places} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
    OUTPUT_VARIABLE used OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  # The linker adds these to every library.
  string(REGEX REPLACE "(^|\n)(_edata|_end|_fini|_init|__bss_start)" "" used "${used}")
  if(used)
    message(STATUS "${library} uses ${used}; the libraries that match ${pattern} are loaded")
    return()
  endif()
  foreach(name IN LISTS names)
    file(CREATE_LINK libempty.so ${folder}/${name} SYMBOLIC)
  endforeach()
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.c "/* Replaces libraries that a program names and never uses. */\n")
  add_library(scalelab_empty SHARED ${CMAKE_CURRENT_BINARY_DIR}/empty.c)
  set_target_properties(scalelab_empty PROPERTIES OUTPUT_NAME empty LIBRARY_OUTPUT_DIRECTORY ${folder} LINKER_LANGUAGE C)
  # install(DIRECTORY) does not strip, and lintian reports libraries with symbols as an error.
  target_link_options(scalelab_empty PRIVATE LINKER:--strip-all)
endfunction()
