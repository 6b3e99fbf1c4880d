# A stand-in for NVIDIA's management library, with its name, in a folder of its own.
include_guard(GLOBAL)
add_library(scalelab_fake_nvml SHARED ${CMAKE_CURRENT_LIST_DIR}/nvml.cc)
set_target_properties(scalelab_fake_nvml PROPERTIES PREFIX "" OUTPUT_NAME libnvidia-ml SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/nvml)
target_link_libraries(scalelab_fake_nvml PRIVATE scalelab_warnings)
