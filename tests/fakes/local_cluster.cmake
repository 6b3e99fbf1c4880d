# The local scheduler with fake workers, used by unit and contract tests.
include_guard(GLOBAL)
add_executable(fake_worker ${CMAKE_CURRENT_LIST_DIR}/fake_worker.cc)
target_link_libraries(fake_worker PRIVATE scalelab_warnings)
set_target_properties(fake_worker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

scalelab_library(scalelab_local_cluster ${CMAKE_CURRENT_LIST_DIR}/local_cluster.cc)
target_compile_definitions(scalelab_local_cluster PUBLIC FAKE_WORKER_PROGRAM="$<TARGET_FILE:fake_worker>")
target_link_libraries(scalelab_local_cluster PUBLIC scalelab_server_scheduler GTest::gtest)
add_dependencies(scalelab_local_cluster fake_worker)
