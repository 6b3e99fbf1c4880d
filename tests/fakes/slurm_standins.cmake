# Fakes of Slurm's programs, used by unit and contract tests.
include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/local_cluster.cmake)  # fake_worker
scalelab_library(scalelab_slurm_standins ${CMAKE_CURRENT_LIST_DIR}/slurm_standins.cc)
target_compile_definitions(scalelab_slurm_standins PUBLIC FAKE_WORKER_PROGRAM="$<TARGET_FILE:fake_worker>"
  PRIVATE SLURM_STANDIN="${CMAKE_CURRENT_LIST_DIR}/slurm_standin.sh")
target_link_libraries(scalelab_slurm_standins PUBLIC scalelab_server_scheduler GTest::gtest)
add_dependencies(scalelab_slurm_standins fake_worker)
