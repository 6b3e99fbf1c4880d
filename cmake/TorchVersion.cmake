#   scalelab_require_torch_for_cuda(ROOT_INCLUDE API_INCLUDE)
# ends with an error if the LibTorch with these two folders of headers is older than 2.6. Older ones lack the fused optimizer step, or
# reject weights of 1 x 1 convolutions in channels-last layout there.
function(scalelab_require_torch_for_cuda root_include api_include)
  set(version_header "${root_include}/torch/headeronly/version.h")  # since 2.8
  if(NOT EXISTS "${version_header}")
    set(version_header "${api_include}/torch/version.h")
  endif()
  file(STRINGS "${version_header}" torch_version REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2" torch_version "${torch_version}")
  if(torch_version VERSION_LESS 2.6)
    message(FATAL_ERROR "SCALELAB_CUDA needs LibTorch 2.6 or later, but ${version_header} is that of version '${torch_version}'; "
      "set SCALELAB_TORCH to the folder of a later one")
  endif()
endfunction()
