# Communicator: one suite, in one process and over real MPI processes.
if(SCALELAB_TRAINER)
  scalelab_test(communicator_contract_test LABEL contract
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/communicator_contract_test.cc LIBS scalelab_trainer_lib)
  scalelab_use_torch_header(communicator_contract_test)

  add_executable(mpi_communicator_contract_test ${CMAKE_CURRENT_LIST_DIR}/mpi_communicator_contract_test.cc)
  target_include_directories(mpi_communicator_contract_test PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(mpi_communicator_contract_test PRIVATE scalelab_trainer_lib GTest::gtest scalelab_warnings)
  scalelab_use_torch_header(mpi_communicator_contract_test)
  set_target_properties(mpi_communicator_contract_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(ranks 1 2 4)
    add_test(NAME MpiCommunicatorContract.${ranks}_ranks
      COMMAND ${MPIEXEC_EXECUTABLE} -np ${ranks} --oversubscribe --allow-run-as-root
              $<TARGET_FILE:mpi_communicator_contract_test> ${ranks})
    set_tests_properties(MpiCommunicatorContract.${ranks}_ranks PROPERTIES LABELS contract TIMEOUT 120
      ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_MCA_rmaps_base_oversubscribe=1;ASAN_OPTIONS=detect_leaks=0")
  endforeach()
endif()
