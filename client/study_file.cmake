# The study file reader: a separate library, so that tests and benchmarks can link it without the rest
# of the client.
find_package(yaml-cpp REQUIRED)
scalelab_room(scalelab_study_file study_file.cc study_reader.cc time_limit.cc yaml_document.cc)
target_include_directories(scalelab_study_file SYSTEM PRIVATE ${YAML_CPP_INCLUDE_DIR})
target_link_libraries(scalelab_study_file PUBLIC scalelab_study PRIVATE yaml-cpp absl::str_format)
scalelab_use_message_headers(scalelab_study_file)
