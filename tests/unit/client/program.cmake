include(${PROJECT_SOURCE_DIR}/tests/fakes/image_folder.cmake)

# Tests of the whole program and of its parts, against a test server.
add_library(client_test_settings INTERFACE)
target_compile_definitions(client_test_settings INTERFACE SCALELAB_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
target_link_libraries(client_test_settings INTERFACE scalelab_client nlohmann_json::nlohmann_json)
scalelab_test(client_program_test LABEL unit GRPC
  SOURCES connection_test.cc curve_test.cc data_commands_test.cc explain_test.cc run_commands_test.cc study_commands_test.cc text_test.cc
  LIBS client_test_settings scalelab_fake_images)
