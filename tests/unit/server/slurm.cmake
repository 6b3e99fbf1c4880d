scalelab_test(slurm_parse_test LABEL unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/slurm_queue_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/slurm_view_test.cc ${CMAKE_CURRENT_LIST_DIR}/slurm_errors_test.cc LIBS scalelab_slurm)
scalelab_test(slurm_script_test LABEL unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/slurm_script_test.cc LIBS scalelab_slurm)
target_compile_definitions(slurm_script_test PRIVATE SCALELAB_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
scalelab_test(slurm_commands_test LABEL unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/slurm_commands_test.cc LIBS scalelab_slurm)
